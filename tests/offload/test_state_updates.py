"""Updates of states are found where nothing else reads the states, and only there."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.extend.core import ClosedJaxpr, check_jaxpr, jaxpr_as_fun

from autoshard.errors import PlanError
from autoshard.frontend.jaxpr_paths import rewrite_bodies
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload.streamed import updates_of, with_streamed_states

SHAPE = (6, 8)


def array(number: int, *shape: int) -> jax.Array:
    made: jax.Array = jax.random.normal(jax.random.key(number), shape)
    return made


def adam(param: Any, mean: Any, square: Any, gradient: Any) -> tuple[Any, Any, Any]:
    mean = 0.9 * mean + 0.1 * gradient
    square = 0.99 * square + 0.01 * gradient**2
    return param - 0.1 * mean / (jnp.sqrt(square) + 1e-3), mean, square


def updates_in(
    step: Callable[..., Any], *arguments: Any, carried: dict[int, int]
) -> tuple[ClosedJaxpr, list[Any]]:
    """The traced step and its updates; `carried` tells the result that replaces an argument."""
    closed = jax.make_jaxpr(step)(*arguments)
    return closed, list(updates_of(closed, carried))


def arrays(count: int) -> list[jax.Array]:
    return [jnp.abs(array(number, *SHAPE)) for number in range(count)]


def require_equal(streamed: ClosedJaxpr, closed: ClosedJaxpr, given: Sequence[Any]) -> None:
    """Both programs give the same numbers."""
    results = (jax.jit(jaxpr_as_fun(program))(*given) for program in (streamed, closed))
    for one, other in zip(*results, strict=True):
        np.testing.assert_allclose(one, other, rtol=2e-5, atol=1e-6)


def test_states_of_one_parameter_are_updated_together() -> None:
    def step(param: Any, mean: Any, square: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.sum((x @ p) ** 2))(param)
        return adam(param, mean, square, gradient)

    _, found = updates_in(step, *arrays(3), array(9, 4, 6), carried={0: 0, 1: 1, 2: 2})
    assert found == [((1, 2), (1, 2), SHAPE)]  # the forward pass reads the parameter


def test_a_master_that_the_forward_pass_does_not_read_is_a_state() -> None:
    def step(half: Any, master: Any, x: Any) -> Any:
        gradient = jax.grad(lambda p: jnp.sum((x @ p).astype(jnp.float32) ** 2))(half)
        master = master - 0.1 * gradient.astype(jnp.float32)
        return master.astype(jnp.bfloat16), master

    half = array(0, *SHAPE).astype(jnp.bfloat16)
    _, found = updates_in(step, half, array(1, *SHAPE), half.T, carried={0: 0, 1: 1})
    assert found == [((1,), (1,), SHAPE)]


def test_a_state_whose_update_is_scaled_by_its_norm_is_none() -> None:
    def step(param: Any, mean: Any, gradient: Any) -> Any:
        mean = 0.9 * mean + gradient
        mean = mean / jnp.linalg.norm(mean)
        return param - mean, mean

    _, found = updates_in(step, *arrays(3), carried={0: 0, 1: 1})
    assert found == [((0,), (0,), SHAPE)]  # the parameter, here, is read by its update alone


def test_a_new_state_that_is_reduced_is_none() -> None:
    def step(param: Any, mean: Any, gradient: Any, x: Any) -> Any:
        mean = 0.9 * mean + gradient
        ratio = jnp.linalg.norm(param) / jnp.linalg.norm(mean)
        return param - ratio * mean, mean, x @ param

    _, found = updates_in(step, *arrays(3), array(3, 4, 6), carried={0: 0, 1: 1})
    assert found == []


@pytest.mark.parametrize(
    "step",
    [
        lambda state, gradient: (state + gradient, jnp.sum(state)),
        lambda state, gradient: (state[::-1] + gradient,),
        lambda state, gradient: (state + gradient, state),
        lambda state, gradient: (gradient, jnp.sum(state + gradient)),
        lambda state, gradient: (state + gradient,) * 2,
    ],
    ids=["summed", "turned", "returned", "replaced by another", "returned twice"],
)
def test_what_else_is_read_is_no_state(step: Any) -> None:
    _, found = updates_in(step, *arrays(2), carried={0: 0})
    assert found == []


def test_a_state_that_is_not_given_up_is_none() -> None:
    _, found = updates_in(lambda state, gradient: state + gradient, *arrays(2), carried={})
    assert found == []


def test_states_that_change_places_are_states() -> None:
    def step(one: Any, other: Any, gradient: Any) -> Any:
        return one + other * gradient, one - gradient

    closed, found = updates_in(step, *arrays(3), carried={0: 1, 1: 0})
    assert found == [((0, 1), (1, 0), SHAPE)]
    streamed = with_streamed_states(closed, [StreamedUpdate((0, 1), (1, 0), 0, 2)])
    pairs = zip(jaxpr_as_fun(streamed)(*arrays(3)), step(*arrays(3)), strict=True)
    for new, plain in pairs:
        np.testing.assert_allclose(new, plain, rtol=1e-6)


def test_libraries_clip_and_decay() -> None:
    optimizer = optax.chain(optax.clip_by_global_norm(1.0), optax.adamw(1e-3))
    params = {"w": array(0, *SHAPE), "v": array(1, 8, 3)}
    state = optimizer.init(params)

    def step(params: Any, state: Any, x: Any) -> Any:
        gradients = jax.grad(lambda p: jnp.sum((x @ p["w"] @ p["v"]) ** 2))(params)
        updates, state = optimizer.update(gradients, state, params)
        return optax.apply_updates(params, updates), state

    closed = jax.make_jaxpr(step)(params, state, array(2, 4, 6))
    found = list(updates_of(closed, {place: place for place in range(7)}))
    assert [one[2] for one in found] == [(8, 3), SHAPE]
    assert [len(one[0]) for one in found] == [2, 2]


@given(
    rows=st.integers(1, 5),
    parts=st.integers(2, 4),
    pieces=st.integers(1, 3),
    dim=st.integers(0, 1),
    clips=st.booleans(),
)
@settings(max_examples=8, deadline=None)
def test_numbers_are_those_of_the_program(
    rows: int, parts: int, pieces: int, dim: int, clips: bool
) -> None:
    def step(params: Any, means: Any, squares: Any, x: Any) -> Any:
        def loss(pair: Any) -> Any:
            return jnp.sum(jnp.tanh(x @ pair[0] + x @ pair[1]) ** 2)

        gradients = jax.grad(loss)(params)
        if clips:
            norm = jnp.sqrt(sum(jnp.sum(one**2) for one in gradients))
            gradients = [one / jnp.maximum(norm, 1.0) for one in gradients]
        return [adam(*one) for one in zip(params, means, squares, gradients, strict=True)]

    size = rows * parts * pieces
    shape = (size, 3) if dim == 0 else (3, size)
    bundle = [[jnp.abs(array(10 * k + n, *shape)) for n in range(2)] for k in range(3)]
    x = array(40, shape[0], shape[0])
    closed = jax.make_jaxpr(step)(*bundle, x)
    found = updates_of(closed, {2 * kind + n: 3 * n + kind for kind in range(3) for n in range(2)})
    wanted = [StreamedUpdate(states, results, dim, parts, pieces) for states, results, _ in found]
    assert [one.arguments for one in wanted] in ([(2, 4), (3, 5)], [(3, 5), (2, 4)])
    streamed = with_streamed_states(closed, wanted)
    check_jaxpr(streamed.jaxpr)
    flat = jax.tree.leaves((*bundle, x))
    require_equal(streamed, closed, flat)


def test_loops_stand_where_their_gradients_are_there() -> None:
    def step(states: Any, x: Any) -> Any:
        first = jnp.sin(x)
        second = jnp.cos(first) @ x.T @ first
        return states[0] + first, states[1] + second

    closed = jax.make_jaxpr(step)(arrays(2), array(3, *SHAPE))
    found = updates_of(closed, {0: 0, 1: 1})
    wanted = [StreamedUpdate(states, results, 0, 2) for states, results, _ in found]
    names = [eqn.primitive.name for eqn in with_streamed_states(closed, wanted).jaxpr.eqns]
    assert names.index("sin") < names.index("scan") < names.index("cos")


def test_lines_are_those_of_the_update() -> None:
    def step(state: Any, gradient: Any) -> Any:
        return 0.5 * state + gradient

    closed = jax.make_jaxpr(step)(*arrays(2))
    wanted = [StreamedUpdate((0,), (0,), 0, 2)]
    own = {id(eqn.source_info.traceback) for eqn in closed.jaxpr.eqns}
    seen: list[int] = []

    def look(_: str, body: Any) -> Any:
        seen.extend(id(eqn.source_info.traceback) for eqn in body.eqns)
        return body

    for eqn in with_streamed_states(closed, wanted).jaxpr.eqns:
        seen.append(id(eqn.source_info.traceback))
        rewrite_bodies(eqn, look)
    assert seen
    assert {*seen} <= own


def layers(weights: Any, x: Any, *, casts: bool) -> Any:
    def layer(x: Any, w: Any) -> Any:
        return x + jnp.tanh(x @ w).astype(x.dtype), None

    weights = weights.astype(jnp.bfloat16) if casts else weights
    x = x.astype(weights.dtype)
    return jnp.mean(jax.lax.scan(jax.checkpoint(layer), x, weights)[0].astype(jnp.float32) ** 2)


@pytest.mark.parametrize("pieces", [1, 2])
@pytest.mark.parametrize("casts", [False, True], ids=["scanned", "cast"])
def test_parameters_that_layers_read_part_by_part_are_states(casts: bool, pieces: int) -> None:
    def step(weights: Any, mean: Any, square: Any, x: Any) -> Any:
        loss, gradient = jax.value_and_grad(layers)(weights, x, casts=casts)
        return *adam(weights, mean, square, gradient), loss

    given = *(jnp.abs(array(number, 4, 8, 8)) for number in range(3)), array(5, 6, 8)
    closed = jax.make_jaxpr(step)(*given)
    carried = {0: 0, 1: 1, 2: 2}
    assert [one[0] for one in updates_of(closed, carried)] == [(1, 2)]
    (found,) = updates_of(closed, carried, with_parameters=True)
    assert found[0] == (0, 1, 2)
    streamed = with_streamed_states(closed, [StreamedUpdate((0, 1, 2), (0, 1, 2), 1, 2, pieces)])
    check_jaxpr(streamed.jaxpr)
    assert not any(  # the layers read what lies in host memory, not a whole copy of it
        eqn.primitive.name == "convert_element_type" and eqn.invars[0] is closed.jaxpr.invars[0]
        for eqn in streamed.jaxpr.eqns
    )
    require_equal(streamed, closed, given)


def test_parameters_that_are_read_whole_or_after_their_update_are_none() -> None:
    def whole(weights: Any, x: Any) -> Any:
        gradient = jax.grad(layers)(weights, x, casts=False)
        return weights - gradient + 0 * jnp.sum(weights)

    def after(weights: Any, x: Any) -> Any:
        new = weights - x[0, 0]
        return new, layers(weights, x + new[0, :6], casts=False)

    for step in (whole, after):
        closed = jax.make_jaxpr(step)(array(0, 4, 8, 8), array(5, 6, 8))
        assert list(updates_of(closed, {0: 0}, with_parameters=True)) == []


def test_another_program_is_refused() -> None:
    closed = jax.make_jaxpr(lambda state, x: (state, x))(*arrays(2))
    with pytest.raises(PlanError, match="does not update its arguments 0"):
        with_streamed_states(closed, [StreamedUpdate((0,), (0,), 0, 2)])
