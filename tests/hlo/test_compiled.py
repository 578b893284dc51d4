"""What is read from a compiled program: each collective once, with its axes, bytes and counts."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

from autoshard.errors import InputError
from autoshard.graph.collective import PredictedCollective
from autoshard.hlo.compiled import (
    CompiledCollective,
    compare_collectives,
    read_collectives,
    read_compiled,
)
from autoshard.hlo.replica_groups import crossed_axes, parse_groups
from autoshard.hlo.text import laid_out_bytes, parse_hlo, type_bytes
from autoshard.sharding import AxisRef, parse_mesh_sizes, spanned_axes

MESH = parse_mesh_sizes("x=2,y=4")


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("f32[4,8]{1,0}", 128),
        ("bf16[3]{0}", 6),
        ("pred[]", 1),
        ("(f32[2]{0}, /*index=1*/s32[4]{0})", 24),
        ("f8e4m3fn[16]{0}", 16),
        ("s4[3]{0}", 2),
        ("c64[2,2]", 32),
        ("token[]", 0),
        ("f32[<=8]{0:T(128)}", 32),
    ],
)
def test_bytes_of_a_type(text: str, num_bytes: int) -> None:
    assert type_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("text", "num_bytes"),
    [
        ("f32[96,16]{1,0:T(8,128)}", 96 * 128 * 4),
        ("f32[96,16]{0,1:T(8,128)S(1)}", 128 * 16 * 4),
        ("bf16[10,4,16]{2,1,0:T(4,128)(2,1)}", 10 * 4 * 128 * 2),
        ("s32[1000]{0:T(1024)}", 4096),
        ("(f32[2,128]{1,0:T(8,128)}, f32[3]{0})", 4096 + 12),
        ("f32[4,8]{1,0}", 128),
        ("f32[]", 4),
    ],
)
def test_bytes_of_a_type_as_it_lies_in_tiles(text: str, num_bytes: int) -> None:
    assert laid_out_bytes(text) == num_bytes


@pytest.mark.parametrize(
    ("attributes", "groups"),
    [
        ("replica_groups={{0,1},{2,3}}, to_apply=%add", ((0, 1), (2, 3))),
        ("replica_groups={}, to_apply=%add", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("to_apply=%add", ((0, 1, 2, 3, 4, 5, 6, 7),)),
        ("channel_id=1, replica_groups=[2,4]<=[8]", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=[4,2]<=[2,4]T(1,0)", ((0, 4), (1, 5), (2, 6), (3, 7))),
        ("replica_groups=[4,2]<=[2,2,2]T(0,2,1), a=1", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'b'}, a=1", ((0, 1, 2, 3), (4, 5, 6, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'a'}", ((0, 4), (1, 5), (2, 6), (3, 7))),
        (
            "replica_groups=mesh['a'=4,'c'=1,'b'=2], device_ids=([2,4]T(1,0)) {'a'}, a=1",
            ((0, 1, 2, 3), (4, 5, 6, 7)),
        ),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(2)2}", ((0, 1), (2, 3), (4, 5), (6, 7))),
        ("replica_groups=mesh['a'=2,'b'=4] {'b':(1)2}", ((0, 2), (1, 3), (4, 6), (5, 7))),
        ("source_target_pairs={{0,0},{1,2},{2,1},{3,3}}", ((1, 2),)),
        ("source_target_pairs={{0,1},{1,2},{4,5}}", ((0, 1, 2), (4, 5))),
    ],
)
def test_device_groups_in_every_spelling(
    attributes: str, groups: tuple[tuple[int, ...], ...]
) -> None:
    assert parse_groups(attributes, 8) == groups


def test_an_unknown_spelling_of_groups_is_refused() -> None:
    with pytest.raises(InputError, match="unknown spelling of device groups"):
        parse_groups("replica_groups=ring(8)", 8)


def test_groups_are_named_by_the_axes_along_which_their_devices_differ() -> None:
    def axes(text: str) -> tuple[AxisRef, ...] | None:
        return spanned_axes(parse_groups(text, 8), MESH)

    assert axes("replica_groups=[2,4]<=[8]") == (AxisRef("y"),)
    assert axes("replica_groups=[4,2]<=[2,4]T(1,0)") == (AxisRef("x"),)
    assert axes("replica_groups={}") == (AxisRef("x"), AxisRef("y"))
    assert axes("replica_groups=[4,2]<=[8]") == (AxisRef("y", 2, 2),)
    assert axes("replica_groups={{0,2},{1,3},{4,6},{5,7}}") == (AxisRef("y", 1, 2),)
    assert axes("replica_groups={{0,5},{1,4},{2,7},{3,6}}") is None


def test_a_permutation_crosses_the_axes_in_which_its_pairs_differ() -> None:
    assert crossed_axes("source_target_pairs={{0,0},{1,2},{2,1},{3,3}}", MESH) == (AxisRef("y"),)
    assert crossed_axes("source_target_pairs={{0,5},{5,0}}", MESH) == (AxisRef("x"), AxisRef("y"))


@given(
    sizes=st.lists(st.sampled_from([2, 3, 4]), min_size=1, max_size=3),
    chosen=st.sets(st.integers(0, 2)),
)
def test_groups_made_along_axes_are_named_by_these_axes(sizes: list[int], chosen: set[int]) -> None:
    names = [f"a{index}" for index in range(len(sizes))]
    mesh = parse_mesh_sizes(",".join(f"{n}={s}" for n, s in zip(names, sizes, strict=True)))
    along = sorted(index for index in chosen if index < len(sizes))
    grid = np.arange(np.prod(sizes)).reshape(sizes)
    rows = np.moveaxis(grid, along, range(-len(along), 0)).reshape(
        -1, int(np.prod([sizes[index] for index in along]))
    )
    text = ",".join("{" + ",".join(map(str, row)) + "}" for row in rows)
    groups = parse_groups(f"replica_groups={{{text}}}", grid.size)
    assert spanned_axes(groups, mesh) == tuple(AxisRef(names[index]) for index in along)


PROGRAM = (Path(__file__).parent / "collectives.hlo").read_text()


def described(found: tuple[CompiledCollective, ...]) -> list[tuple[Any, ...]]:
    return [
        (c.kind, c.axes, c.group_size, c.num_groups, c.bytes_per_device, c.count) for c in found
    ]


def test_every_collective_is_found_once_with_its_bytes_and_how_often_it_runs() -> None:
    found = read_collectives(PROGRAM, MESH)
    assert described(found) == [
        ("all-reduce", ("x",), 2, 4, 32 + 32, 1.0),  # two tensors combined
        ("all-gather", ("y:(2)2",), 2, 4, 64, 1.0),  # start and done: once
        ("collective-permute", ("x",), 2, 4, 32, 1.0),  # inside an async computation
        ("all-reduce", ("x", "y"), 8, 1, 32, 0.5),  # in one of two branches
        ("all-gather", ("y",), 4, 2, 128, 5.0),  # trip count from the compiler
        ("all-gather", ("y",), 4, 2, 128, 3.0),  # from the condition of the inner loop
    ]


def test_a_loop_that_does_not_tell_its_trip_count_is_flagged() -> None:
    *others, last = read_collectives(PROGRAM)
    assert last.trip_count == 3
    assert not last.is_trip_count_known
    assert all(collective.is_trip_count_known for collective in others)


def test_name_and_source_of_a_collective_are_read() -> None:
    first = read_collectives(PROGRAM)[0]
    assert first.source == "train.py:12"
    assert first.op_name == 'jit(f)/dot \\"a, b\\"'


def test_without_a_mesh_groups_have_sizes_and_no_axes() -> None:
    assert {collective.axes for collective in read_collectives(PROGRAM)} == {None}


def test_text_that_is_no_program_is_refused() -> None:
    with pytest.raises(InputError, match="no ENTRY computation"):
        parse_hlo("module {}")


@pytest.fixture(scope="module")
def jax_mesh() -> jax.sharding.Mesh:
    return jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)


def array(*shape: int) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, np.dtype(np.float32))


def test_a_compiled_scan_is_read_with_its_trip_count_and_memory(
    jax_mesh: jax.sharding.Mesh,
) -> None:
    def f(x: Any, weights: Any) -> Any:
        return lax.scan(lambda c, w: (jnp.tanh(c @ w), None), x, weights)[0]

    def cut(*spec: str | None) -> NamedSharding:
        return NamedSharding(jax_mesh, PartitionSpec(*spec))

    compiled = (
        jax.jit(
            f,
            in_shardings=(cut("x", "y"), cut(None, "y", None)),
            out_shardings=cut("x", "y"),
            donate_argnums=0,
        )
        .lower(array(64, 128), array(5, 128, 128))
        .compile()
    )
    program = read_compiled(compiled, MESH)
    assert described(program.collectives) == [
        ("all-reduce", ("y",), 4, 2, 32 * 128 * 4, 5.0),
    ]
    assert "test_compiled.py:" in program.collectives[0].source
    assert program.argument_bytes == (64 * 128 + 5 * 128 * 128 * 2) // 8 * 4
    assert program.output_bytes == program.alias_bytes == 64 * 128 // 8 * 4
    assert program.peak_bytes == program.argument_bytes + program.temp_bytes
    assert [s.spec for s in program.input_shardings] == [
        PartitionSpec("x", "y"),
        PartitionSpec(None, "y", None),
    ]


@pytest.mark.parametrize(
    ("before", "after", "expected"),
    [
        (("x", "y"), ("x", None), [("all-gather", ("y",), 4, 2, 32 * 128 * 4, 1.0)]),
        (("x", None), (None, "x"), [("all-to-all", ("x",), 2, 4, 32 * 128 * 4, 1.0)]),
        (
            (("x", "y"), None),
            (("y", "x"), None),
            [("collective-permute", ("x", "y"), 8, 1, 8 * 128 * 4, 1.0)],
        ),
        ((None, None), ("x", "y"), []),
    ],
)
def test_a_compiled_reshard_is_one_collective(
    before: Any, after: Any, expected: list[Any], jax_mesh: jax.sharding.Mesh
) -> None:
    old, new = (NamedSharding(jax_mesh, PartitionSpec(*spec)) for spec in (before, after))
    compiled = (
        jax.jit(lambda a: jnp.sin(lax.with_sharding_constraint(a, new)), in_shardings=old)
        .lower(array(64, 128))
        .compile()
    )
    assert described(read_compiled(compiled, MESH).collectives) == expected


def predicted(kind: str, axes: tuple[str, ...], size: int, num_bytes: int) -> PredictedCollective:
    return PredictedCollective(kind, axes, size, num_bytes, 1.0, "dot (train.py:1)")


def test_predicted_and_compiled_collectives_meet_by_kind_axes_and_group_size() -> None:
    compiled = read_collectives(PROGRAM, MESH)
    plan = [
        predicted("all-reduce", ("x",), 2, 64),
        predicted("all-gather", ("y",), 4, 1000),
        predicted("all-to-all", ("x",), 2, 10),
    ]
    comparison = compare_collectives(plan, compiled)
    rows = {
        (row.kind, row.axes, row.group_size): (row.predicted_bytes, row.compiled_bytes)
        for row in comparison.rows
    }
    assert rows == {
        ("all-reduce", ("x",), 2): (64, 64),
        ("all-reduce", ("x", "y"), 8): (0, 16),
        ("all-gather", ("y",), 4): (1000, 1024),
        ("all-gather", ("y:(2)2",), 2): (0, 64),
        ("collective-permute", ("x",), 2): (0, 32),
        ("all-to-all", ("x",), 2): (10, 0),
    }
    assert (comparison.predicted_bytes, comparison.compiled_bytes) == (1074, 1200)
    assert comparison.difference_percent == pytest.approx(-10.5)


def test_nothing_predicted_and_nothing_compiled_do_not_differ() -> None:
    assert compare_collectives([], []).difference_percent == 0.0


def test_joined_sums_of_one_channel_are_all_counted() -> None:
    """As seen from libtpu: two fused reduce-scatters that nothing runs beside, on channel 1."""

    def summed(name: str, columns: int) -> str:
        return (
            f"%{name} (input: f32[8,{columns}]) -> f32[2,{columns}] {{\n"
            f"  %input = f32[8,{columns}]{{1,0}} parameter(0)\n"
            f"  %sum.{name} = f32[8,{columns}]{{1,0}} all-reduce(%input), channel_id=1,"
            " replica_groups={{0,1,2,3}}, to_apply=%add\n"
            f"  ROOT %cut.{name} = f32[2,{columns}]{{1,0}} slice(%sum.{name}),"
            f" slice={{[0:2], [0:{columns}]}}\n}}\n"
        )

    text = (
        "HloModule step, is_scheduled=true, num_partitions=4\n\n"
        + summed("all-reduce-scatter.1", 16)
        + summed("all-reduce-scatter.2", 64)
        + "ENTRY %main (a: f32[8,16], b: f32[8,64]) -> f32[2,64] {\n"
        "  %a = f32[8,16]{1,0} parameter(0)\n"
        "  %b = f32[8,64]{1,0} parameter(1)\n"
        "  %one = f32[2,16]{1,0} fusion(%a), kind=kCustom, calls=%all-reduce-scatter.1\n"
        "  ROOT %two = f32[2,64]{1,0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter.2\n"
        "}\n"
    )
    found = read_collectives(text)
    assert [(c.kind, c.bytes_per_device) for c in found] == [
        ("reduce-scatter", 8 * 16 * 4),
        ("reduce-scatter", 8 * 64 * 4),
    ]


def test_a_gather_carried_on_through_a_loop_is_counted_once() -> None:
    """As seen from libtpu: started before a loop, carried on in its body, waited for after it."""

    found = read_collectives(gather_through_a_loop(body=""))
    assert [(c.kind, c.bytes_per_device * c.count) for c in found] == [("all-gather", 128.0)]


def test_a_sum_while_a_gather_of_its_channel_is_carried_on_is_counted() -> None:
    """As seen from libtpu: joined sums of gradients, rows gathered beside their products."""
    text = gather_through_a_loop(
        body="  %sum = f32[2]{0} fusion(%b), kind=kCustom, calls=%all-reduce-scatter\n"
    )
    found = read_collectives(text)
    assert [(c.kind, c.bytes_per_device * c.count) for c in found] == [
        ("all-gather", 128.0),
        ("reduce-scatter", 16 * 32.0),
    ]


def gather_through_a_loop(*, body: str) -> str:
    """A gather that 16 runs of a loop carry on, and a sum on its channel that its body may call."""

    def part(name: str, mark: str) -> str:
        marked = (
            f'  %mark.{name} = f32[] custom-call(), custom_call_target="{mark}"\n' if mark else ""
        )
        return (
            f"%{name} (input: f32[8]) -> f32[32] {{\n  %input = f32[8]{{0}} parameter(0)\n{marked}"
            f"  ROOT %gather.{name} = f32[32]{{0}} all-gather(%input), channel_id=3,"
            " replica_groups={{0,1,2,3}}, dimensions={0}\n}\n"
        )

    return (
        "HloModule step, is_scheduled=true, num_partitions=4\n\n"
        + part("first", "AsyncCollectiveStart")
        + part("middle", "")
        + part("last", "AsyncCollectiveDone")
        + "%all-reduce-scatter (input: f32[8]) -> f32[2] {\n  %input = f32[8]{0} parameter(0)\n"
        "  %whole = f32[8]{0} all-reduce(%input), channel_id=3, replica_groups={{0,1,2,3}},"
        " to_apply=%add\n  ROOT %cut = f32[2]{0} slice(%whole), slice={[0:2]}\n}\n"
        + "%body (b: f32[8]) -> f32[8] {\n  ROOT %b = f32[8]{0} parameter(0)\n"
        "  %on = f32[32]{0} fusion(%b), kind=kCustom, calls=%middle\n" + body + "}\n"
        "%test (t: f32[8]) -> pred[] {\n  ROOT %t = pred[] constant(true)\n}\n"
        "ENTRY %main (a: f32[8]) -> f32[32] {\n"
        "  %a = f32[8]{0} parameter(0)\n"
        "  %begin = f32[32]{0} fusion(%a), kind=kCustom, calls=%first\n"
        "  %loop = f32[8]{0} while(%a), condition=%test, body=%body,"
        ' backend_config={"known_trip_count":{"n":"16"}}\n'
        "  ROOT %end = f32[32]{0} fusion(%a), kind=kCustom, calls=%last\n"
        "}\n"
    )
