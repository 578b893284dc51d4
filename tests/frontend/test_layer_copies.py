"""The graph of a deep program, read from a module with few of its layers."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import Literal

from autoshard.frontend.asked_inside import AskedInside
from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.layer_copies import UnlikeLayersError
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.frontend.modules import Modules
from autoshard.frontend.trace import Traced, trace
from autoshard.graph.program import Graph, OpKind
from autoshard.planning import traced_program
from autoshard.planning.traced_program import read_traced
from autoshard.sharding import parse_mesh
from experiments.workloads import get_workload
from tests.layer_kinds import norm, relu, residual

MESH = parse_mesh('<["x"=2, "y"=4]>')
X = jax.ShapeDtypeStruct((16, 32), jnp.float32)


def _weights(depth: int) -> list[dict[str, jax.ShapeDtypeStruct]]:
    return [
        {"w": jax.ShapeDtypeStruct((32, 32), jnp.float32), "b": jax.ShapeDtypeStruct((32,), "f4")}
        for _ in range(depth)
    ]


def _names(traced: Traced) -> ModuleNames:
    return ModuleNames(
        arguments=traced.in_names,
        captured=traced.captured_names,
        results=traced.out_names,
        donated=traced.donated,
        source_by_equation=traced.source_by_equation,
    )


def _of_whole(traced: Traced) -> Graph:
    return module_to_graph(traced.module, _names(traced))


def _of_few(traced: Traced) -> Graph:
    few = traced.modules.few
    assert few is not None
    return module_to_graph(few.module, _names(traced), few=few.equations)


def _read(traced: Traced) -> Graph:
    return read_traced(traced, MESH, (), None, 10.0).graph


@pytest.mark.parametrize(
    ("name", "sizes"),
    [
        ("gpt", {"layers": 8}),
        ("llama", {"layers": 8}),
        ("moe", {"layers": 16}),
        ("mixer", {"layers": 8}),
        ("decode", {"layers": 8}),
    ],
)
def test_a_deep_program_has_the_same_graph_whether_all_layers_are_lowered_or_few(
    name: str, sizes: dict[str, int]
) -> None:
    program = get_workload(name, **sizes)
    traced = trace(program.step, (program.state, program.batch), mesh=MESH)
    assert _of_few(traced) == _of_whole(traced)
    assert traced.modules.few is not None
    assert len(traced.modules.few.module) < len(traced.module) / 2


def test_layers_that_hand_on_a_number_without_a_name_are_all_lowered() -> None:
    program = get_workload("deepseek", layers=12, remat=True)
    traced = trace(program.step, (program.state, program.batch), mesh=MESH)
    with pytest.raises(UnlikeLayersError):
        _of_few(traced)
    assert len(_read(traced).results) == len(_of_whole(traced).results)


def _masked(layer: Any, x: Any) -> Any:
    places = jax.lax.broadcasted_iota(jnp.int32, x.shape, 0)
    return jnp.where(places > 3, x @ layer["w"], jnp.sum(layer["b"]))


def _variance(layer: Any, x: Any) -> Any:
    return (x - jnp.mean(x)) / jnp.std(x, -1, keepdims=True) @ layer["w"]


@settings(max_examples=12, deadline=None)
@given(
    kinds=st.lists(
        st.sampled_from([relu, norm, residual, _masked, _variance]), min_size=1, max_size=3
    ),
    depth=st.integers(4, 7),
    trains=st.booleans(),
    sums=st.booleans(),
)
def test_random_stacks_of_layers_have_the_same_graph_either_way(
    kinds: list[Callable[[Any, Any], Any]], depth: int, trains: bool, sums: bool
) -> None:
    def forward(weights: Any, x: Any) -> Any:
        every = []
        for layer in weights:
            for kind in kinds:
                x = kind(layer, x)
            every.append(jnp.sum(x))
        return sum(every) if sums else jnp.sum(x)

    def step(weights: Any, x: Any) -> Any:
        if not trains:
            return forward(weights, x)
        loss, gradients = jax.value_and_grad(forward)(weights, x)
        return loss, jax.tree.map(lambda w, g: w - 0.1 * g, weights, gradients)

    traced = trace(step, (_weights(depth), X), mesh=MESH)
    if traced.modules.few is None:
        return
    try:
        copied = _of_few(traced)
    except UnlikeLayersError:
        return
    assert copied == _of_whole(traced)


def _stack(weights: Any, x: Any) -> Any:
    for layer in weights:
        x = relu(layer, x)
    return x


def test_layers_that_differ_in_a_number_are_all_lowered() -> None:
    def step(weights: Any, x: Any) -> Any:
        for place, layer in enumerate(weights):
            x = relu(layer, x) * (place + 2.0)
        return x

    assert trace(step, (_weights(8), X), mesh=MESH).modules.few is None


def test_layers_with_loops_are_all_lowered() -> None:
    def step(weights: Any, x: Any) -> Any:
        for layer in weights:
            x, _ = jax.lax.scan(lambda x, _, layer=layer: (relu(layer, x), None), x, None, 3)
        return x

    assert trace(step, (_weights(8), X), mesh=MESH).modules.few is None


def test_a_reader_of_several_layers_at_once_is_not_told_from_few() -> None:
    def step(weights: Any, x: Any) -> Any:
        every = []
        for layer in weights:
            x = relu(layer, x)
            every.append(x)
        return jnp.concatenate(every)

    traced = trace(step, (_weights(8), X), mesh=MESH)
    with pytest.raises(UnlikeLayersError):
        _of_few(traced)
    assert _read(traced) == _of_whole(traced)


def test_the_whole_module_is_lowered_only_where_it_is_asked_for() -> None:
    traced = trace(_stack, (_weights(8), X), mesh=MESH)

    def never() -> bytes:
        raise AssertionError("the whole module is lowered")

    modules = Modules(never, traced.modules.few)
    assert _read(replace(traced, modules=modules)) == _of_whole(traced)


def test_a_layer_in_which_something_is_asked_has_its_constraint(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    traced = trace(_stack, (_weights(8), X), mesh=MESH)
    path = "12.0"
    assert traced.modules.few is not None
    assert 12 in traced.modules.few.equations.kept_copy
    asked = AskedInside(values={path: '<[("x"=2, "y"=4)], [{"x"}, {}]>'})
    monkeypatch.setattr(traced_program, "asked_inside", lambda *_: asked)
    graph = _read(traced)
    assert graph.maker(graph.value_by_path[path]).kind is OpKind.CONSTRAINT


def test_equations_that_are_left_read_copies_of_what_is_not() -> None:
    jaxpr = jax.make_jaxpr(_stack)(_weights(8), X).jaxpr
    few = FewEquations.of(jaxpr)
    assert few is not None
    known = {*few.jaxpr.invars, *few.jaxpr.constvars}
    for eqn in few.jaxpr.eqns:
        assert all(isinstance(one, Literal) or one in known for one in eqn.invars)
        known.update(eqn.outvars)
    assert set(few.jaxpr.outvars) <= known
    assert len(few.jaxpr.eqns) == 3 * len(jaxpr.eqns) // 8
