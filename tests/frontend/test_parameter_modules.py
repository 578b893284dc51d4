"""Modules of Flax NNX objects, by the parameters that equations read."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.frontend.parameter_modules import module_of_parameter
from autoshard.frontend.trace import trace
from autoshard.sharding import parse_mesh_sizes
from autoshard.source_place import parse_source

nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")
optax = pytest.importorskip("optax", reason="Optax is not installed")


class Layer(nnx.Module):  # type: ignore[misc, name-defined]
    def __init__(self, rngs: Any) -> None:
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.down(nnx.relu(self.up(x)))


class Net(nnx.Module):  # type: ignore[misc, name-defined]
    def __init__(self, rngs: Any) -> None:
        self.layers = nnx.List([Layer(rngs), Layer(rngs)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


def train_step(net: Any, optimizer: Any, x: Any) -> Any:
    value, grads = nnx.value_and_grad(lambda net: (net(x) ** 2).mean())(net)
    optimizer.update(net, grads)
    return value


@pytest.mark.parametrize(
    ("name", "module"),
    [
        ("net.layers[0].up.kernel", "layers/0/up"),
        ("net.kernel", ""),
        ("optimizer.opt_state[0].mu.layers[0].up.kernel", ""),
    ],
)
def test_a_parameter_belongs_to_what_holds_it(name: str, module: str) -> None:
    assert module_of_parameter(name) == module


def test_matmuls_are_in_the_module_of_the_parameter_they_read() -> None:
    net = Net(nnx.Rngs(0))
    optimizer = nnx.Optimizer(net, optax.adam(1e-3), wrt=nnx.Param)
    x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    traced = trace(train_step, (net, optimizer, x), mesh=parse_mesh_sizes("x=2"))
    places = {path: parse_source(text) for path, text in traced.source_by_equation.items()}
    matmuls = [
        places[str(index)]
        for index, eqn in enumerate(traced.jaxpr.jaxpr.eqns)
        if eqn.primitive.name == "dot_general"
    ]
    forward = [place.module for place in matmuls if place.module and not place.is_backward]
    backward = [place.module for place in matmuls if place.is_backward]
    assert forward == ["layers/0/up", "layers/0/down", "layers/1/up", "layers/1/down"]
    # Gradients of weights read none, and nobody asks for the gradient of x.
    assert backward == ["layers/1/down", "layers/1/up", "layers/0/down"]
