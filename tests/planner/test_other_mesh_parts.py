"""Axes of another mesh as parts that cut tensors and no op; what lies between the two meshes."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.costing.costing import Costing, cost_model_for
from autoshard.errors import ShardingError
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.reshard import Resharder, StepKind
from autoshard.sharding import (
    Mesh,
    MeshAxis,
    device_to_shard,
    format_sharding,
    parse_mesh,
    parse_mesh_sizes,
    parse_sharding,
)
from cost_models import get_hardware

PLAN = parse_mesh_sizes("a=4,b=2")
SWAPPED = parse_mesh('<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>')
SHUFFLED = parse_mesh('<["u"=2, "v"=4], device_ids=[3, 1, 0, 2, 7, 5, 6, 4]>')
PARTS = MeshParts.of(PLAN, {"a": (2, 2)}, [MeshParts.of(SWAPPED), MeshParts.of(SHUFFLED)])
A0, A1, B, PP, Q, U, V = range(7)


def test_parts_of_other_meshes_are_numbered_after_those_of_the_plan() -> None:
    assert PARTS.axes == ("a", "a", "b")
    assert PARTS.sizes == (2, 2, 2, 4, 2, 2, 4)
    assert PARTS.parts_by_axis == {"a": (A0, A1), "b": (B,)}


@pytest.mark.parametrize(
    ("layout", "text"),
    [
        (((A0, A1), (B,)), '<@mesh, [{"a"}, {"b"}]>'),
        (((), ()), "<@mesh, [{}, {}]>"),
        (
            ((Q,), (PP,)),
            '<mesh<["p"=4, "q"=2], device_ids=[0, 1, 2, 3, 4, 5, 7, 6]>, [{"q"}, {"p"}]>',
        ),
        (
            ((), (V, U)),
            '<mesh<["u"=2, "v"=4], device_ids=[3, 1, 0, 2, 7, 5, 6, 4]>, [{}, {"v", "u"}]>',
        ),
    ],
)
def test_a_layout_is_the_sharding_on_its_mesh(layout: Layout, text: str) -> None:
    assert format_sharding(PARTS.to_sharding(layout)) == text
    assert PARTS.to_layout(parse_sharding(text)) == layout


def test_a_mesh_without_parts_is_named() -> None:
    with pytest.raises(ShardingError) as caught:
        PARTS.to_layout(parse_sharding('<mesh<["z"=8]>, [{"z"}, {}]>'))
    assert caught.value.what == "no tensor is pinned on mesh (z=8)"


@pytest.mark.parametrize(
    ("layout", "twin"),
    [
        (((PP,), (Q,)), ((A0, A1), (B,))),
        (((Q,), (PP,)), ((A0,), (A1, B))),
        (((), (U, V)), ((), (A0, A1, B))),
        (((B,), ()), ((B,), ())),
    ],
)
def test_the_twin_cuts_every_dimension_into_as_many_pieces(layout: Layout, twin: Layout) -> None:
    assert PARTS.twin(layout) == twin


@pytest.mark.parametrize(
    ("chosen", "spanned"),
    [
        ((B,), (B,)),
        ((A1, A0), (A0, A1)),
        ((PP,), (A0, A1, B)),
        ((Q,), (B,)),
        ((U,), (A0, A1)),
        ((V,), (A1, B)),
        ((PP, Q), (A0, A1, B)),
    ],
)
def test_groups_of_another_mesh_span_these_axes(chosen: Parts, spanned: Parts) -> None:
    assert PARTS.spanned(chosen) == spanned


def test_pieces_move_along_the_axes_in_which_owners_differ() -> None:
    assert PARTS.crossed(((A0, A1), (B,)), ((PP,), (Q,))) == (B,)
    assert PARTS.crossed(((A0, A1), (B,)), ((A0, A1), (B,))) == ()
    assert PARTS.crossed(((A0,), (A1, B)), ((U,), (V,))) == (A1, B)


@st.composite
def permuted(draw: st.DrawFn) -> MeshParts:
    ids = tuple(draw(st.permutations(range(8))))
    sizes = draw(st.sampled_from([(8,), (2, 4), (4, 2), (2, 2, 2)]))
    other = Mesh(tuple(MeshAxis(f"o{i}", size) for i, size in enumerate(sizes)), ids)
    return MeshParts.of(PLAN, {"a": (2, 2)}, [MeshParts.of(other)])


@given(parts=permuted(), cut=st.integers(0, 3))
def test_nothing_moves_between_two_layouts_with_the_same_pieces_on_the_same_devices(
    parts: MeshParts, cut: int
) -> None:
    theirs = tuple(range(3, len(parts.sizes)))
    layout = (theirs[:cut], theirs[cut:])
    twin = parts.twin(layout)
    assert twin is not None
    assert [*map(parts.num_shards, twin)] == [*map(parts.num_shards, layout)]
    plain = Mesh(PLAN.axes)
    same = device_to_shard(parts.to_sharding(layout), plain) == device_to_shard(
        parts.to_sharding(twin), plain
    )
    assert (parts.crossed(twin, layout) == ()) == same


def test_a_permutation_lies_between_twins_and_a_gather_before_a_whole_tensor() -> None:
    costing = Costing(cost_model_for(get_hardware("cpu-host"), PARTS), PARTS)
    here, there, whole = ((A0, A1), (B,)), ((PP,), (Q,)), ((), ())
    only_rows = ((PP,), ())
    layouts = tuple(sorted([here, there, whole, only_rows]))
    table = Resharder(PARTS, costing).table(layouts, (64, 64), 32)
    (step,) = table.chain(here, there)
    assert (step.kind, step.parts) == (StepKind.PERMUTE, (B,))
    assert [step.kind for step in table.chain(there, whole)] == [StepKind.ALL_GATHER] * 2
    assert [step.kind for step in table.chain(whole, there)] == [StepKind.SLICE]
    seconds = table.seconds[table.index[here], table.index[there]]
    assert 0 < seconds < table.seconds[table.index[there], table.index[whole]]
