"""The standard cost model: laws that hold on every machine and mesh."""

from __future__ import annotations

import dataclasses
import math
import typing

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import (
    CATALOG,
    AlphaBetaModel,
    AxisPart,
    CostModel,
    CostModelError,
    Hardware,
    get_hardware,
)
from cost_models.measured import CollectiveKind

COLLECTIVES = (
    "all_gather_seconds",
    "reduce_scatter_seconds",
    "all_reduce_seconds",
    "all_to_all_seconds",
    "permute_seconds",
)
MESHES = ((8,), (2, 4), (4, 2), (2, 2, 2), (4, 4), (8, 8), (2, 4, 4), (16, 16))


@st.composite
def cases(
    draw: st.DrawFn,
) -> tuple[Hardware, tuple[tuple[str, int], ...], tuple[AxisPart, ...]]:
    """A machine, a mesh, and parts of some of its axes."""
    hardware = draw(st.sampled_from(CATALOG))
    sizes = draw(st.sampled_from(MESHES))
    mesh = tuple((f"a{index}", size) for index, size in enumerate(sizes))
    parts = []
    for name, axis_size in mesh:
        bits = axis_size.bit_length() - 1
        low = draw(st.integers(0, bits))
        high = draw(st.integers(low, bits))
        parts.append(AxisPart(name, 2**low, 2 ** (high - low)))
    chosen = draw(st.permutations(parts))
    return hardware, mesh, tuple(chosen[: draw(st.integers(0, len(chosen)))])


def seconds(
    model: AlphaBetaModel, collective: str, amount: float, axes: tuple[AxisPart, ...]
) -> float:
    return float(getattr(model, collective)(amount, axes))


def whole(model: AlphaBetaModel, *names: str) -> tuple[AxisPart, ...]:
    sizes = dict(model.mesh)
    return tuple(AxisPart(name, 1, sizes[name]) for name in names)


def test_the_model_is_a_cost_model() -> None:
    model: CostModel = AlphaBetaModel(get_hardware("h100"), {"x": 8})
    assert model.device_memory_bytes() == 80_000_000_000


def test_what_the_runtime_keeps_is_no_device_memory() -> None:
    model = AlphaBetaModel(get_hardware("tpu-v5e"), {"x": 8})
    assert model.device_memory_bytes() == 15.75 * 2**30


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(case=cases(), amount=st.floats(0, 1e13), more=st.floats(0, 1e13))
def test_more_bytes_never_take_less_time(
    collective: str,
    case: tuple[Hardware, tuple[tuple[str, int], ...], tuple[AxisPart, ...]],
    amount: float,
    more: float,
) -> None:
    hardware, mesh, axes = case
    model = AlphaBetaModel(hardware, mesh)
    less_time = seconds(model, collective, amount, axes)
    more_time = seconds(model, collective, amount + more, axes)
    assert 0 <= less_time <= more_time < math.inf
    if math.prod(part.size for part in axes) == 1:
        assert more_time == 0
    else:
        assert less_time > 0


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(case=cases(), amount=st.floats(0, 1e13))
def test_names_and_order_of_axes_change_nothing(
    collective: str,
    case: tuple[Hardware, tuple[tuple[str, int], ...], tuple[AxisPart, ...]],
    amount: float,
) -> None:
    hardware, mesh, axes = case
    found = seconds(AlphaBetaModel(hardware, mesh), collective, amount, axes)
    renamed = AlphaBetaModel(hardware, [(f"z{name}", size) for name, size in reversed(mesh)][::-1])
    moved = tuple(AxisPart(f"z{part.name}", part.pre_size, part.size) for part in reversed(axes))
    assert seconds(renamed, collective, amount, moved) == pytest.approx(found, rel=1e-12)


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(case=cases(), amount=st.floats(0, 1e13))
def test_an_axis_in_two_parts_costs_what_it_costs_whole(
    collective: str,
    case: tuple[Hardware, tuple[tuple[str, int], ...], tuple[AxisPart, ...]],
    amount: float,
) -> None:
    hardware, mesh, axes = case
    model = AlphaBetaModel(hardware, mesh)
    halves = tuple(
        half
        for part in axes
        for half in (
            AxisPart(part.name, part.pre_size, min(2, part.size)),
            AxisPart(part.name, part.pre_size * min(2, part.size), part.size // min(2, part.size)),
        )
    )
    assert seconds(model, collective, amount, halves) == pytest.approx(
        seconds(model, collective, amount, axes), rel=1e-12
    )


@given(case=cases(), amount=st.floats(0, 1e13))
def test_an_all_reduce_costs_about_a_reduce_scatter_and_an_all_gather(
    case: tuple[Hardware, tuple[tuple[str, int], ...], tuple[AxisPart, ...]], amount: float
) -> None:
    hardware, mesh, axes = case
    model = AlphaBetaModel(dataclasses.replace(hardware, has_reduce_scatter=True), mesh)
    both = model.reduce_scatter_seconds(amount, axes) + model.all_gather_seconds(amount, axes)
    together = model.all_reduce_seconds(amount, axes)
    assert together <= both * (1 + 1e-12)
    if set(hardware.algorithms) <= {"levels", "ring"}:
        assert together >= both - hardware.collective_launch_seconds - 1e-12 * both


@pytest.mark.parametrize("kind", typing.get_args(CollectiveKind))
@given(case=cases(), amount=st.floats(0, 1e13))
def test_the_price_is_that_of_the_fastest_algorithm(
    kind: CollectiveKind,
    case: tuple[Hardware, tuple[tuple[str, int], ...], tuple[AxisPart, ...]],
    amount: float,
) -> None:
    hardware, mesh, axes = case
    model = AlphaBetaModel(hardware, mesh)
    method = (
        "permute_seconds" if kind == "collective-permute" else f"{kind.replace('-', '_')}_seconds"
    )
    price = seconds(model, method, amount, axes)
    ways = model.algorithms(kind, axes)
    assert all(price <= way.cost.at(amount) * (1 + 1e-12) for way in ways)
    assert model.fastest_algorithm(kind, amount, axes).cost.at(amount) == pytest.approx(price)


def test_small_sums_take_the_tree_and_large_ones_the_ring() -> None:
    model = AlphaBetaModel(get_hardware("a100-80gb"), {"node": 4, "gpu": 8})
    group = whole(model, "node", "gpu")
    assert model.fastest_algorithm("all-reduce", 1e4, group).name == "tree"
    assert model.fastest_algorithm("all-reduce", 1e9, group).name == "ring"


def test_a_switch_that_adds_halves_the_bytes_of_a_sum() -> None:
    model = AlphaBetaModel(get_hardware("h100"), {"gpu": 8})
    group = whole(model, "gpu")
    way = model.fastest_algorithm("all-reduce", 1e9, group)
    assert way.name == "in-switch"
    # 275 GB/s on 8 GPUs: github.com/NVIDIA/nccl-tests/issues/212
    assert model.all_reduce_seconds(1e9, group) == pytest.approx(1e9 / 275e9, rel=0.02)
    # Rings alone: 370 GB/s each way, of which a sum on 8 GPUs needs 14/8.
    rings = dataclasses.replace(get_hardware("h100"), algorithms=("ring",))
    ring_seconds = AlphaBetaModel(rings, {"gpu": 8}).all_reduce_seconds(1e9, group)
    assert ring_seconds == pytest.approx(1e9 / (370e9 * 8 / 14), rel=0.02)


def test_without_reduce_scatter_it_costs_an_all_reduce() -> None:
    model = AlphaBetaModel(get_hardware("cpu-host"), {"x": 8})
    axes = whole(model, "x")
    assert model.reduce_scatter_seconds(1e6, axes) == model.all_reduce_seconds(1e6, axes)
    assert model.reduce_scatter_seconds(1e6, axes) > model.all_gather_seconds(1e6, axes)


def test_both_axes_of_a_torus_gather_faster_than_one() -> None:
    model = AlphaBetaModel(get_hardware("tpu-v5e"), {"x": 16, "y": 16})
    one = model.all_gather_seconds(1e9, whole(model, "x"))
    both = model.all_gather_seconds(1e9, whole(model, "x", "y"))
    assert both == pytest.approx(one / 2, rel=0.1)


def test_the_network_is_slower_than_the_switch() -> None:
    model = AlphaBetaModel(get_hardware("h100"), {"node": 8, "gpu": 8})
    for collective in COLLECTIVES:
        across = seconds(model, collective, 1e9, whole(model, "node"))
        inside = seconds(model, collective, 1e9, whole(model, "gpu"))
        assert across > 5 * inside


def test_slices_are_joined_by_the_network() -> None:
    v5e = get_hardware("tpu-v5e")
    one = AlphaBetaModel(v5e, {"x": 2, "y": 16}, slice_shape=(4, 8))
    two = AlphaBetaModel(v5e, {"x": 2, "y": 16}, num_slices=2)
    assert two.all_reduce_seconds(1e9, whole(two, "x")) > 3 * one.all_reduce_seconds(
        1e9, whole(one, "x")
    )


@pytest.mark.parametrize(
    ("name", "mesh", "slices"),
    [
        ("2x tpu-v5e:4x4", {"s": 2, "x": 16}, {"s": 2, "x": 1}),
        ("2x tpu-v5e:4x4", {"x": 32}, {"x": 2}),
        ("4x h100", {"x": 4, "y": 8}, {"x": 4, "y": 1}),
        ("tpu-v5e", {"x": 4, "y": 4}, {"x": 1, "y": 1}),
    ],
)
def test_a_group_spans_the_slices_that_its_axes_cross(
    name: str, mesh: dict[str, int], slices: dict[str, int]
) -> None:
    model = AlphaBetaModel(get_hardware(name), mesh)
    found = {axis: model.slices_spanned((AxisPart(axis, 1, mesh[axis]),)) for axis in mesh}
    assert found == slices
    every = tuple(AxisPart(axis, 1, size) for axis, size in mesh.items())
    assert model.slices_spanned(every) == math.prod(slices.values())


def test_collectives_of_arrays_are_those_of_their_numbers() -> None:
    model = AlphaBetaModel(get_hardware("tpu-v5p"), {"x": 4, "y": 16})
    amounts = np.array([0.0, 1.0, 1e6, 1e9])
    for collective in COLLECTIVES:
        found = getattr(model, collective)(amounts, whole(model, "y"))
        expected = [seconds(model, collective, float(n), whole(model, "y")) for n in amounts]
        np.testing.assert_allclose(found, expected)


def test_compute_of_arrays_is_that_of_its_numbers() -> None:
    model = AlphaBetaModel(get_hardware("tpu-v5p"), {"x": 8})
    flops, accessed = np.array([0.0, 1e12, 1.0]), np.array([0.0, 1.0, 1e9])
    expected = [
        model.compute_seconds(float(f), float(b), "bf16", "matmul", (256, 256, 100))
        for f, b in zip(flops, accessed, strict=True)
    ]
    np.testing.assert_allclose(
        model.compute_seconds(flops, accessed, "bf16", "matmul", (256, 256, 100)), expected
    )


@pytest.mark.parametrize(
    ("axes", "what"),
    [
        ((AxisPart("z", 1, 2),), 'the mesh has no axis "z"'),
        ((AxisPart("x", 1, 3),), 'the part (1)3 does not divide the 8 devices of axis "x"'),
        ((AxisPart("x", 4, 4),), 'the part (4)4 does not divide the 8 devices of axis "x"'),
        ((AxisPart("x", 0, 2),), 'the part (0)2 does not divide the 8 devices of axis "x"'),
        ((AxisPart("x", 1, 0),), 'the part (1)0 does not divide the 8 devices of axis "x"'),
        (
            (AxisPart("x", 1, 4), AxisPart("y", 1, 2), AxisPart("x", 2, 2)),
            'the parts (1)4 and (2)2 of axis "x" overlap',
        ),
    ],
)
@pytest.mark.parametrize("collective", COLLECTIVES)
def test_parts_that_the_mesh_has_not_are_refused(
    collective: str, axes: tuple[AxisPart, ...], what: str
) -> None:
    model = AlphaBetaModel(get_hardware("h100"), [("x", 8), ("y", 2)])
    with pytest.raises(CostModelError) as caught:
        seconds(model, collective, 1.0, axes)
    assert caught.value.what == what
    assert caught.value.where == "mesh {'x': 8, 'y': 2}"
    assert caught.value.fix


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_an_impossible_amount_is_refused_even_by_one_device(amount: float) -> None:
    model = AlphaBetaModel(get_hardware("h100"), {"x": 8})
    for axes in ((), whole(model, "x")):
        with pytest.raises(CostModelError, match="full_bytes is"):
            model.all_gather_seconds(amount, axes)
    with pytest.raises(CostModelError, match="flops is"):
        model.compute_seconds(amount, 1.0, "f32", "matmul")


def test_two_axes_of_one_name_are_refused() -> None:
    with pytest.raises(CostModelError, match="axis names given twice: x"):
        AlphaBetaModel(get_hardware("h100"), [("x", 2), ("x", 4)])


def test_an_axis_of_size_zero_is_refused() -> None:
    with pytest.raises(CostModelError, match="mesh axis 0 has size 0"):
        AlphaBetaModel(get_hardware("h100"), {"x": 0})


@pytest.mark.parametrize("kind", typing.get_args(CollectiveKind))
@pytest.mark.parametrize(
    ("name", "mesh"),
    [("tpu-v5e", (16, 16)), ("tpu-v5e", (4, 4)), ("tpu-v5p", (4, 4, 4)), ("tpu-v4", (8, 8, 8))],
)
def test_axes_on_dimensions_of_one_form_cost_the_same(
    kind: CollectiveKind, name: str, mesh: tuple[int, ...]
) -> None:
    model = AlphaBetaModel(get_hardware(name), [(f"a{i}", size) for i, size in enumerate(mesh)])
    costs = {model.fastest_algorithm(kind, 1e6, whole(model, axis)).cost for axis, _ in model.mesh}
    assert len(costs) == 1


@pytest.mark.parametrize("collective", COLLECTIVES)
@given(
    hardware=st.sampled_from(CATALOG),
    mesh=st.sampled_from([(8, 4), (4, 8), (2, 2), (2, 8), (4, 16)]),
    amount=st.floats(0, 1e12),
)
def test_a_group_that_takes_in_another_axis_hears_its_farthest_device_no_sooner(
    collective: str, hardware: Hardware, mesh: tuple[int, int], amount: float
) -> None:
    model = AlphaBetaModel(hardware, {"data": mesh[0], "model": mesh[1]})
    one, both = whole(model, "data"), whole(model, "data", "model")
    few = 0.0  # with more bytes the links of the second axis may make up for it
    assert seconds(model, collective, few, one) <= seconds(model, collective, few, both)
    if collective == "all_to_all_seconds" and model.layout.places is None:
        of_one, of_both = (seconds(model, collective, amount, axes) for axes in (one, both))
        assert of_one <= of_both * (1 + 1e-12)
