"""Modules and lines of equations, from the name stacks that JAX keeps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.frontend.equation_places import equation_places

X = jax.ShapeDtypeStruct((4, 8), jnp.float32)
W = jax.ShapeDtypeStruct((8, 8), jnp.float32)
STACK = jax.ShapeDtypeStruct((3, 8, 8), jnp.float32)


def matmuls(fn: Callable[..., Any], *args: Any) -> list[tuple[str, bool]]:
    """Module of every matmul, and whether it is of the backward pass, in program order."""
    closed = jax.make_jaxpr(fn)(*args)
    places = equation_places(closed)

    def primitives(jaxpr: Any, prefix: str) -> dict[str, str]:
        found = {}
        for index, eqn in enumerate(jaxpr.eqns):
            found[f"{prefix}{index}"] = eqn.primitive.name
            for key, body in eqn.params.items():
                inner = getattr(body, "jaxpr", body)
                if hasattr(inner, "eqns"):
                    found |= primitives(inner, f"{prefix}{index}.{key}/")
        return found

    names = primitives(closed.jaxpr, "")
    return [(p.module, p.is_backward) for path, p in places.items() if names[path] == "dot_general"]


def layer(x: Any, w: Any) -> Any:
    with jax.named_scope("mlp"), jax.named_scope("up"):
        return jnp.tanh(x @ w)


def test_scopes_are_the_path_of_a_module_and_transposes_are_marked_as_backward() -> None:
    def loss(w: Any, x: Any) -> Any:
        return layer(x, w).sum()

    assert matmuls(jax.grad(loss), W, X) == [("mlp/up", False), ("mlp/up", True)]


def test_what_a_loop_runs_is_inside_the_module_of_the_loop() -> None:
    def loss(stack: Any, x: Any) -> Any:
        with jax.named_scope("h"):
            return jax.lax.scan(lambda x, w: (layer(x, w), None), x, stack)[0].sum()

    found = matmuls(jax.grad(loss), STACK, X)
    assert found == [("h/mlp/up", False), ("h/mlp/up", True), ("h/mlp/up", True)]


def test_what_remat_recomputes_is_forward_and_keeps_its_module() -> None:
    def loss(w: Any, x: Any) -> Any:
        with jax.named_scope("h"):
            x = jax.checkpoint(layer)(x, w)
            return jax.checkpoint(layer)(x, w).sum()

    found = matmuls(jax.grad(loss), W, X)
    assert {module for module, _ in found} == {"h/mlp/up"}
    assert sum(not is_backward for _, is_backward in found) == 4  # two, and both again


def test_vmapped_modules_keep_their_path_and_einsum_opens_none() -> None:
    def fn(x: Any, w: Any) -> Any:
        with jax.named_scope("outer"):
            return jax.vmap(lambda row: jnp.einsum("i,ij->j", row, w))(x)

    assert matmuls(fn, X, W) == [("outer", False)]


def test_signs_that_separate_places_are_not_in_modules() -> None:
    def fn(x: Any, w: Any) -> Any:
        with jax.named_scope("a, b: c"):
            return x @ w

    assert matmuls(fn, X, W) == [("a_b_c", False)]


def test_linen_modules_are_known_by_their_names() -> None:
    nn = pytest.importorskip("flax.linen", reason="Flax is not installed")

    class Block(nn.Module):  # type: ignore[name-defined, misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return x + nn.Dense(8, name="c_proj")(nn.relu(nn.Dense(16, name="c_fc")(x)))

    class Net(nn.Module):  # type: ignore[name-defined, misc]
        @nn.compact  # type: ignore[untyped-decorator]
        def __call__(self, x: Any) -> Any:
            return nn.remat(Block)(name="h_0")(x)

    net = Net()
    params = jax.eval_shape(net.init, jax.random.key(0), X)
    found = matmuls(jax.grad(lambda p, x: net.apply(p, x).sum()), params, X)
    assert {module for module, _ in found} == {"Net/h_0/c_fc", "Net/h_0/c_proj"}


def test_equinox_modules_are_known_by_their_classes() -> None:
    eqx = pytest.importorskip("equinox", reason="Equinox is not installed")
    net = eqx.nn.MLP(8, 8, 16, 1, key=jax.random.key(0))
    found = matmuls(jax.vmap(net), X)
    assert found == [("eqx.nn.MLP/eqx.nn.Linear", False)] * 2


def test_haiku_modules_are_known_by_their_names() -> None:
    hk = pytest.importorskip("haiku", reason="Haiku is not installed")

    def mlp(x: Any) -> Any:  # Haiku makes modules inside of a transformed function only
        return hk.nets.MLP([16, 8])(x)

    net = hk.transform(mlp)
    params = jax.eval_shape(net.init, jax.random.key(0), X)
    found = matmuls(lambda p, x: net.apply(p, None, x), params, X)
    assert [module.rpartition("/")[2] for module, _ in found] == ["linear_0", "linear_1"]
