"""The standard cost model: laws that hold on every machine and mesh."""

from __future__ import annotations

import dataclasses
import math

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
    assert model.device_memory_bytes() == 16 * 2**30 - 2**29


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
    assert together >= both - hardware.collective_launch_seconds - 1e-12 * both


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
