"""Constraints of programs with equal layers: found on a few of them, right for all."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.apply.boundary_shardings import planned_in_module
from autoshard.apply.found_constraints import with_constraints
from autoshard.apply.propagation.by_layer import PropagationByLayer
from autoshard.apply.propagation.few_layers import EqualLayers, FewLayers
from autoshard.apply.propagation.propagator import propagator_for
from autoshard.frontend.modules import Modules
from autoshard.frontend.trace import trace
from autoshard.plans.plan import PlanData
from autoshard.sharding import parse_mesh_sizes, parse_sharding

WIDTH, HIDDEN, ROWS = 64, 256, 128
MESH = "data=2,model=4"


def layer(x: Any, params: Any) -> Any:
    return x + jax.nn.gelu(x @ params["up"]) @ params["down"]


def train_step(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        hidden = x
        for params in layers:
            hidden = jax.checkpoint(layer)(hidden, params)
        return jnp.mean(hidden**2)

    grads = jax.grad(loss)(layers)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, grads)


def arguments(num_layers: int) -> tuple[Any, Any]:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)}
    return [params] * num_layers, array(ROWS, WIDTH)


def planned(num_layers: int, step: Any = train_step) -> autoshard.Plan:
    """A plan that cuts weights one way and the rows of the batch the other."""
    return autoshard.optimize(
        step,
        *arguments(num_layers),
        mesh=MESH,
        hardware="cpu-host",
        donate_argnums=0,
        memory_budget="1GiB",
        baselines=False,
        constraints={"layers[*]['up']": jax.P("data", "model"), "x": jax.P("data")},
    )


def with_whole_hidden_layers(plan: autoshard.Plan) -> PlanData:
    """A plan in which all hidden layers are replicated, which propagation does not come to."""
    assert plan.traced is not None
    propagator = propagator_for(plan.traced, plan.data.mesh)
    whole = parse_sharding("[{}, {}]")
    hidden = {path for path in propagator.paths if propagator.shape(path) == (ROWS, HIDDEN)}
    values = {p: whole if p in hidden else sharding for p, sharding in plan.data.values.items()}
    return replace(plan.data, values=values)


@pytest.mark.parametrize("step", [train_step, jax.jit(train_step)], ids=["plain", "jitted"])
def test_the_search_takes_no_more_propagations_for_more_layers(step: Any) -> None:
    numbers = []
    for num_layers in (8, 12):
        told: list[str] = []
        plan = planned(num_layers, step)
        assert plan.traced is not None
        data = with_whole_hidden_layers(plan)
        found = with_constraints(data, plan.traced, None, tell=told.append)
        assert found.misses == ()
        assert found.constraints is not None
        assert len(found.constraints) >= num_layers
        numbers.append(len(told))
    assert numbers[0] == numbers[1]


def test_a_search_that_planning_had_no_time_for_says_so() -> None:
    plan = planned(9)
    assert plan.traced is not None
    told: list[str] = []
    data = with_constraints(
        with_whole_hidden_layers(plan), plan.traced, None, is_over=lambda: True, tell=told.append
    )
    assert len(told) == 3  # of few layers without constraints and with all; of the program
    assert data.misses == ()
    assert data.notes[-1].endswith(
        "the search for the smallest set ended as planning did, after 3 propagations; raise"
        " time_limit_seconds"
    )


def test_the_constraints_of_all_layers_reproduce_the_plan() -> None:
    plan = planned(9)
    assert plan.traced is not None
    data = with_constraints(with_whole_hidden_layers(plan), plan.traced, None)
    propagator = propagator_for(plan.traced, data.mesh)
    found = propagator.propagate(*planned_in_module(plan.traced, data), data.constraints)
    for path, wanted in data.values.items():
        if path in found:
            assert [dim.axes for dim in found[path].dims] == [dim.axes for dim in wanted.dims], path


@pytest.mark.parametrize("is_lowered_whole", [False, True], ids=["few", "whole"])
def test_a_smaller_program_has_the_paths_of_the_whole_one(is_lowered_whole: bool) -> None:
    traced = trace(train_step, arguments(12), mesh=parse_mesh_sizes(MESH))
    if is_lowered_whole:
        traced = replace(traced, modules=Modules.given(traced.module))
    layers = EqualLayers(traced).few({}, [])
    assert layers is not None
    assert len(layers.module) < len(traced.module) / 2
    few = propagator_for(layers, parse_mesh_sizes(MESH))
    whole = propagator_for(traced, parse_mesh_sizes(MESH))
    inside = [path for path in whole.paths if layers.has(path)]
    assert list(few.paths) == inside
    assert len(inside) < len(whole.paths) / 2
    assert [few.shape(path) for path in inside] == [whole.shape(path) for path in inside]


def test_a_layer_planned_otherwise_is_no_copy() -> None:
    traced = trace(train_step, arguments(8), mesh=parse_mesh_sizes(MESH))
    alike = EqualLayers(traced).few({}, [])
    mesh = parse_mesh_sizes(MESH)
    found = propagator_for(traced, mesh).propagate()
    assert alike is not None
    path = f"{alike.runs[0].left_out[0]}.0"
    unlike = EqualLayers(traced).few({path: found["in.0"]}, [])
    assert unlike is None or unlike.has(path)


def test_shardings_alike_in_all_layers_leave_out_the_layers_that_none_do() -> None:
    plan = planned(8)
    assert plan.traced is not None
    layers = EqualLayers(plan.traced)
    inputs, _ = planned_in_module(plan.traced, plan.data)
    alike = layers.few({}, [])
    assert alike is not None
    assert layers.few({**plan.data.values, **plan.data.required}, inputs) is alike


def test_layers_planned_alike_are_those_that_were_lowered() -> None:
    traced = trace(train_step, arguments(8), mesh=parse_mesh_sizes(MESH))
    lowered = traced.modules.few
    assert lowered is not None
    layers = EqualLayers(traced)
    rows, columns = parse_sharding('[{"data"}, {}]'), parse_sharding('[{}, {"model"}]')
    copies = lowered.equations.kept_copy
    one, kept = next(iter(copies.items()))
    every = {f"{number}.0": rows for number in (*copies, *copies.values())}
    for wanted, is_alike in (
        ({}, True),
        (every, True),
        (every | {f"{one}<0&{one}<1": columns}, False),
        (every | {f"{kept}<0": columns}, False),
        ({path: rows for path in every if path != f"{one}.0"}, False),
    ):
        found = layers.few(wanted, [None] * 17)
        assert (found is not None and found.module is lowered.module) == is_alike
    for place, is_alike in ((8, False), (16, True)):
        given = [rows if number == place else None for number in range(17)]
        found = layers.few({}, given)
        assert (found is not None and found.module is lowered.module) == is_alike


def test_a_layer_at_an_end_may_be_planned_otherwise_than_those_left_out() -> None:
    traced = trace(train_step, arguments(8), mesh=parse_mesh_sizes(MESH))
    lowered = traced.modules.few
    assert lowered is not None
    rows = parse_sharding('[{"data"}, {}]')
    for run in lowered.equations.runs:
        inner = set(map(run.inner_copy, run.left_out))
        kept = set(range(run.start, run.stop)) - {*run.left_out, *inner}
        assert kept
        for equations, is_alike in ((kept, True), (inner, False)):
            found = EqualLayers(traced).few({f"{e}.0": rows for e in equations}, [None] * 17)
            assert (found is not None and found.module is lowered.module) == is_alike


def test_layers_that_go_on_in_a_call_stay() -> None:
    def step(layers: Any, x: Any, go_on: Any) -> Any:
        made = [x]
        for params in layers:
            made.append(layer(made[-1], params))
        return go_on(made)

    def found(go_on: Any) -> Any:
        traced = trace(partial(step, go_on=go_on), arguments(12), mesh=parse_mesh_sizes(MESH))
        return EqualLayers(traced).few({}, [])

    assert found(lambda made: made[-1]) is not None
    assert found(jax.jit(lambda made: sum(map(jnp.sin, made)))) is None


def test_layers_that_are_computed_again_two_at_once_have_copies_two_at_once() -> None:
    def pair(x: Any, params: Any) -> Any:
        return layer(layer(x, params[0]), params[1])

    def loss(layers: Any, x: Any) -> Any:
        for first in range(0, len(layers), 2):
            x = jax.checkpoint(pair)(x, layers[first : first + 2])
        return jnp.mean(x**2)

    mesh = parse_mesh_sizes(MESH)
    traced = trace(jax.grad(loss), arguments(16), mesh=mesh)
    layers, whole = EqualLayers(traced).few({}, []), propagator_for(traced, mesh)
    assert layers is not None
    assert len(layers.module) < len(traced.module) / 2
    given = [parse_sharding('[{}, {"model"}]'), parse_sharding('[{"model"}, {}]')] * 16
    given.append(parse_sharding('[{"data"}, {}]'))
    few, wanted = propagator_for(layers, mesh).propagate(given), whole.propagate(given)
    copies = ((path, layers.with_copy(path)) for path in whole.paths)
    inside = {path: few[copy] for path, copy in copies if copy in few}
    assert inside.items() <= wanted.items()
    assert any(not layers.has(path) for path in inside)


def test_layers_that_are_few_stay() -> None:
    traced = trace(train_step, arguments(2), mesh=parse_mesh_sizes(MESH))
    assert EqualLayers(traced).few({}, []) is None


def test_shardings_of_arguments_spread_through_few_layers_as_through_all() -> None:
    mesh = parse_mesh_sizes(MESH)
    traced = trace(train_step, arguments(8), mesh=mesh)
    rows, columns = parse_sharding('[{"data"}, {}]'), parse_sharding('[{}, {"model"}]')
    whole = propagator_for(traced, mesh)
    paths = [path for path in whole.paths if path not in whole.free_paths]
    by_layer = PropagationByLayer(traced, mesh, paths)
    alike = [columns, rows] * 8
    for layers in (alike, [rows, *alike[1:]], [*alike[:9], rows, *alike[10:]], [None] * 16):
        given = [*layers, rows]
        found = by_layer.propagate(given, layers)
        wanted = whole.propagate(given, layers)
        assert found.items() >= {path: wanted[path] for path in paths}.items()


def test_the_copies_of_paths_are_looked_up_once(monkeypatch: pytest.MonkeyPatch) -> None:
    mesh = parse_mesh_sizes(MESH)
    traced = trace(train_step, arguments(8), mesh=mesh)
    looked_up, with_copy = [], FewLayers.with_copy

    def counted(few: FewLayers, path: str | None) -> str | None:
        looked_up.append(path)
        return with_copy(few, path)

    monkeypatch.setattr(FewLayers, "with_copy", counted)
    by_layer = PropagationByLayer(traced, mesh, list(traced.operand_paths))
    by_layer.propagate([None] * 17)
    looked_up.clear()
    by_layer.propagate([None] * 17)
    assert not looked_up
