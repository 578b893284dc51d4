"""Plans on meshes that were searched: found, told, saved, and run on eight devices."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import mesh_utils
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import AutoshardError, InputError
from autoshard.mesh_search.shapes import axes_text
from autoshard.plan import Plan
from autoshard.plans.plan_json import load_plan_data
from autoshard.sharding import format_sharding, parse_sharding

KEYS = jax.random.split(jax.random.key(0), 3)
PARAMS = {
    "up": jax.random.normal(KEYS[0], (96, 256)) / 10,
    "down": jax.random.normal(KEYS[1], (256, 96)) / 16,
}
BATCH = jax.random.normal(KEYS[2], (64, 96))


def loss(params: Any, batch: Any) -> Any:
    return ((jax.nn.relu(batch @ params["up"]) @ params["down"] - batch) ** 2).mean()


def train_step(params: Any, batch: Any) -> Any:
    value, grads = jax.value_and_grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, grads), value


def planned(fn: Any = train_step, *args: Any, **options: Any) -> Plan:
    options = {"baselines": False, "hardware": "cpu-host", **options}
    return autoshard.optimize(fn, *(args or (PARAMS, BATCH)), **options)


def outcomes(plan: Plan) -> dict[str, str]:
    assert plan.data.mesh_search is not None
    return {axes_text(one.mesh): one.outcome for one in plan.data.mesh_search.tried}


@pytest.mark.parametrize("options", [{"mesh": "auto"}, {"devices": 8}, {"devices": 4}], ids=str)
def test_a_searched_plan_computes_what_one_device_computes(options: dict[str, Any]) -> None:
    plan = planned(**options, donate_argnums=0, hardware="tpu-v5e")
    count = options.get("devices", jax.device_count())
    assert plan.data.mesh.num_devices == count
    assert plan.mesh is not None
    assert [device.id for device in plan.mesh.devices.flat] == list(range(count))
    (params, value), (expected, wanted) = (
        plan.jit(donate_argnums=())(PARAMS, BATCH),
        jax.jit(train_step)(PARAMS, BATCH),
    )
    np.testing.assert_allclose(value, wanted, rtol=1e-5)
    for mine, theirs in zip(jax.tree.leaves(params), jax.tree.leaves(expected), strict=True):
        assert len(mine.sharding.device_set) == count
        np.testing.assert_allclose(mine, theirs, rtol=1e-4, atol=1e-5)


def test_a_searched_plan_runs_in_the_order_that_suits_the_devices(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def torus_order(sizes: Any, devices: Any, **_: Any) -> Any:
        return np.array([*devices[:4], *devices[:3:-1]]).reshape(sizes)

    monkeypatch.setattr(mesh_utils, "create_device_mesh", torus_order)
    plan = planned(devices=8, donate_argnums=0)
    assert plan.data.mesh.device_ids == (0, 1, 2, 3, 7, 6, 5, 4)
    expected = loss(PARAMS, BATCH)
    np.testing.assert_allclose(plan.jit(donate_argnums=())(PARAMS, BATCH)[1], expected, rtol=1e-5)
    plan.save(tmp_path / "plan.json")
    loaded = autoshard.load_plan(tmp_path / "plan.json", train_step)
    found = loaded.jit(donate_argnums=())(PARAMS, BATCH)
    np.testing.assert_allclose(found[1], expected, rtol=1e-5)
    order = found[0]["up"].sharding.mesh.devices.flat
    assert [device.id for device in order] == [0, 1, 2, 3, 7, 6, 5, 4]


def test_no_mesh_is_better_than_the_one_found() -> None:
    options: dict[str, Any] = {"hardware": "tpu-v5e", "relative_gap": 0.0, "donate_argnums": 0}
    plan = planned(devices=8, **options)
    seconds = {
        mesh: planned(mesh=mesh, **options).data.solver.seconds
        for mesh in ("data=8", "data=2,model=4", "data=4,model=2", "data=2,model=2,inner=2")
    }
    assert plan.data.solver.seconds == pytest.approx(min(seconds.values()), rel=1e-12)
    assert set(outcomes(plan)) == {mesh.replace(",", ", ") for mesh in seconds}


def test_a_plan_for_more_devices_than_there_are_says_so_when_it_is_to_run() -> None:
    plan = planned(devices=64, hardware="tpu-v5e")
    assert plan.mesh is None
    assert plan.data.mesh.num_devices == 64
    with pytest.raises(InputError) as caught:
        plan.jit()
    mesh = plan.data.mesh
    assert caught.value.what == f"{mesh} needs 64 devices and this machine has 8: 56 are missing"


def test_the_search_is_saved_with_the_plan_and_told_in_the_report(tmp_path: Path) -> None:
    plan = planned(devices=8)
    path = tmp_path / "plan.json"
    plan.save(path)
    read = load_plan_data(path)
    assert read == plan.data
    assert read.mesh_search is not None
    lines = plan.report(width=140).splitlines()
    start = next(index for index, line in enumerate(lines) if line.startswith("Meshes  "))
    rows = lines[start + 3 : start + 3 + len(read.mesh_search.tried)]
    for row, one in zip(rows, read.mesh_search.tried, strict=True):
        assert row.strip().startswith(axes_text(one.mesh))
        assert row.endswith(one.reason or "this plan")


def test_a_given_mesh_has_no_record_of_a_search() -> None:
    plan = planned(mesh="data=2,model=4", devices=8)
    assert plan.data.mesh_search is None
    assert "Meshes  " not in plan.report()


def test_axes_that_shardings_name_are_on_the_mesh_found() -> None:
    plan = planned(devices=8, in_shardings=({"up": P(None, "model"), "down": P()}, P("data")))
    assert {"data", "model"} <= set(plan.data.mesh.sizes)
    assert outcomes(plan)["data=8"] == "impossible"
    by_name = {tensor.name: format_sharding(tensor.sharding) for tensor in plan.data.arguments}
    assert by_name["params['up']"] == '<@mesh, [{}, {"model"}]>'
    np.testing.assert_allclose(plan.jit()(PARAMS, BATCH)[1], loss(PARAMS, BATCH), rtol=1e-5)


def test_priorities_are_decided_in_rounds_on_every_mesh() -> None:
    up, batch = (
        parse_sharding(text)
        for text in ('<@mesh, [{?}, {"model", ?}p1]>', '<@mesh, [{"data", ?}p0, {?}]>')
    )
    plan = planned(devices=8, in_shardings=({"up": up, "down": None}, batch))
    assert [decided.priority for decided in plan.data.rounds] == [0, 1]
    assert {"data", "model"} <= set(plan.data.mesh.sizes)
    np.testing.assert_allclose(plan.jit()(PARAMS, BATCH)[1], loss(PARAMS, BATCH), rtol=1e-5)


def test_axes_that_constraints_name_are_on_the_mesh_found() -> None:
    plan = planned(
        devices=8, axis_names=("rows", "columns"), constraints={"params['up']": P(None, "columns")}
    )
    assert "columns" in plan.data.mesh.sizes
    assert outcomes(plan)["rows=8"] == "impossible"


def test_a_mesh_whose_axis_does_not_divide_what_is_pinned_on_it_is_refused() -> None:
    plan = planned(
        lambda x: x * 2.0, jnp.ones((4, 64)), devices=8, in_shardings=P("data"), hardware="tpu-v5e"
    )
    assert plan.data.mesh_search is not None
    (one,) = [one for one in plan.data.mesh_search.tried if axes_text(one.mesh) == "data=8"]
    assert one.outcome == "impossible"
    assert one.reason == "dimension 0 has size 4, which 8 shards do not divide"


def constrained(params: Any, batch: Any) -> Any:
    hidden = lax.with_sharding_constraint(batch @ params["up"], P(None, "model"))
    return hidden @ params["down"]


def test_a_program_that_names_an_axis_is_planned_and_run_on_a_mesh_that_has_it() -> None:
    plan = planned(constrained, PARAMS, BATCH, devices=8)
    assert "model" in plan.data.mesh.sizes
    assert outcomes(plan)["data=8"] == "impossible"
    expected = BATCH @ PARAMS["up"] @ PARAMS["down"]
    np.testing.assert_allclose(plan.jit()(PARAMS, BATCH), expected, atol=1e-4)


def rows_by_mesh(batch: Any) -> Any:
    """Another program on every mesh."""
    names = jax.sharding.get_abstract_mesh().axis_names
    for _ in names:
        batch = jnp.tanh(batch)
    return batch


def test_a_program_that_asks_for_the_mesh_is_planned_as_it_is_on_the_mesh_found() -> None:
    plan = planned(rows_by_mesh, BATCH, devices=8)
    assert plan.traced is not None
    made = [eqn.primitive.name for eqn in plan.traced.jaxpr.jaxpr.eqns]
    assert made.count("tanh") == len(plan.data.mesh.axes)
    assert len([op for op in plan.data.ops if op.name == "tanh"]) == len(plan.data.mesh.axes)
    assert "alike" not in outcomes(plan).values()


def test_a_module_is_searched_a_mesh_for_too() -> None:
    text = jax.jit(loss).lower(PARAMS, BATCH).as_text()
    plan = autoshard.optimize_module(text, devices=8, hardware="cpu-host", baselines=False)
    assert plan.data.mesh_search is not None
    assert plan.data.mesh.num_devices == 8
    assert "sdy.sharding" in plan.stablehlo()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (
            {},
            "neither a mesh nor a number of devices is given, and jax.set_mesh has set none\n"
            "  where: mesh and devices\n"
            '  fix: give a mesh, as in mesh="data=2,model=4", or let one be searched: devices=8, or'
            ' mesh="auto" for the devices of this machine',
        ),
        (
            {"mesh": "data=2,model=2", "devices": 8},
            "the mesh has 4 devices, and devices is 8\n"
            "  where: mesh (data=2, model=2), devices=8\n"
            "  fix: leave one of them out: a mesh says how many devices it has, and without it one"
            " is searched",
        ),
        (
            {"devices": 0},
            "the number of devices is 0, which is below 1\n  where: devices=0\n"
            "  fix: give the number of devices to plan for, from 1 to 1,000,000",
        ),
        (
            {"mesh": "auto", "devices": 8.0},
            "expected a number of devices, found float\n  where: devices=8.0\n"
            "  fix: give a whole number, as in devices=64; it need not be that of this machine",
        ),
        (
            {"devices": 8, "in_shardings": P("tensor")},
            '"tensor" is none of the axes of the meshes to search, which are called data, model,'
            " inner\n  where: in_shardings\n"
            "  fix: name all axes that a mesh may have, from the outermost on, as in"
            " axis_names=('data', 'model', 'tensor')",
        ),
        (
            {"devices": 7, "in_shardings": P("data", "model")},
            "no mesh of 7 devices has all the axes that are named: data, model\n"
            "  where: in_shardings\n"
            "  fix: name fewer axes, plan for more devices, or put the named ones first in"
            " axis_names",
        ),
    ],
    ids=["nothing", "contradiction", "none", "no number", "other name", "too few"],
)
def test_what_cannot_be_searched_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(InputError) as caught:
        planned(**options)
    assert str(caught.value) == message


def test_a_program_that_does_not_trace_is_refused_as_on_a_given_mesh() -> None:
    def wrong(batch: Any) -> Any:
        return batch @ batch

    with pytest.raises(AutoshardError) as given_mesh:
        planned(wrong, BATCH, mesh="data=8")
    with pytest.raises(AutoshardError) as searched:
        planned(wrong, BATCH, devices=8)
    assert str(searched.value) == str(given_mesh.value)
