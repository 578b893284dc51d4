"""Modules of Flax NNX objects, by the attributes that they are read through."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.frontend.trace import Traced, trace
from autoshard.sharding import parse_mesh_sizes
from autoshard.source_place import SourcePlace, parse_source

nnx = pytest.importorskip("flax.nnx", reason="Flax is not installed")
optax = pytest.importorskip("optax", reason="Optax is not installed")


class Layer(nnx.Module):  # type: ignore[misc, name-defined]
    def __init__(self, rngs: Any) -> None:
        self.up = nnx.Linear(8, 16, rngs=rngs)
        self.down = nnx.Linear(16, 8, rngs=rngs)

    def __call__(self, x: Any) -> Any:
        return x + self.down(jnp.sin(self.up(x)))


class Net(nnx.Module):  # type: ignore[misc, name-defined]
    def __init__(self, rngs: Any) -> None:
        self.layers = nnx.List([Layer(rngs), Layer(rngs)])

    def __call__(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x

    def recomputed(self, x: Any) -> Any:
        for layer in self.layers:
            x = nnx.remat(Layer.__call__)(layer, x)
        return x


def traced_step(loss: Callable[[Any, Any], Any], modules: tuple[Any, ...]) -> Traced:
    optimizer = nnx.Optimizer(modules, optax.adam(1e-3), wrt=nnx.Param)

    def train_step(modules: Any, optimizer: Any, x: Any) -> Any:
        value, grads = nnx.value_and_grad(loss)(modules, x)
        optimizer.update(modules, grads)
        return value

    x = jax.ShapeDtypeStruct((4, 8), jnp.float32)
    return trace(train_step, (modules, optimizer, x), mesh=parse_mesh_sizes("x=2"))


def places_of(
    primitive: str, loss: Callable[[Any, Any], Any], modules: tuple[Any, ...]
) -> list[SourcePlace]:
    """Where the equations of a training step are, those in bodies left out."""
    traced = traced_step(loss, modules)
    return [
        parse_source(traced.source_by_equation[str(index)])
        for index, eqn in enumerate(traced.jaxpr.jaxpr.eqns)
        if eqn.primitive.name == primitive
    ]


def test_matmuls_of_both_passes_are_in_the_module_that_multiplies() -> None:
    found = places_of("dot_general", lambda m, x: (m[0](x) ** 2).mean(), (Net(nnx.Rngs(0)),))
    forward = [place.module for place in found if not place.is_backward]
    backward = [place.module for place in found if place.is_backward]
    names = [f"Net/layers/{layer}/{part}" for layer in range(2) for part in ("up", "down")]
    assert forward == names
    assert sorted(backward) == sorted([*names, *names[1:]])  # nobody asks for the gradient of x


def test_element_wise_ops_are_in_the_module_that_computes_them() -> None:
    found = places_of("sin", lambda m, x: (m[0](x) ** 2).mean(), (Net(nnx.Rngs(0)),))
    assert [place.module for place in found] == ["Net/layers/0", "Net/layers/1"]


def test_modules_called_by_no_module_have_the_name_of_their_class() -> None:
    actor, critic = Net(nnx.Rngs(0)), Layer(nnx.Rngs(1))
    found = places_of("sin", lambda m, x: (m[0](x) * m[1](x)).mean(), (actor, critic))
    assert [place.module for place in found] == ["Net/layers/0", "Net/layers/1", "Layer"]


def test_a_copy_that_a_transform_made_has_the_name_of_its_class() -> None:
    traced = traced_step(lambda m, x: m[0].recomputed(x).mean(), (Net(nnx.Rngs(0)),))
    found = {parse_source(text).module for text in traced.source_by_equation.values()}
    assert {"Net/Layer/up", "Net/Layer/down"} <= found
    assert not any("Layer/Layer" in module for module in found)


def test_the_class_is_as_it_was_after_the_trace() -> None:
    before = Net.__call__, nnx.Linear.__call__, nnx.Module.__getattribute__
    places_of("sin", lambda m, x: (m[0](x) ** 2).mean(), (Net(nnx.Rngs(0)),))
    assert (Net.__call__, nnx.Linear.__call__, nnx.Module.__getattribute__) == before
    assert "__getattribute__" not in vars(nnx.Module)


def test_a_failing_trace_puts_the_classes_back() -> None:
    before = Net.__call__

    def loss(*_: Any) -> Any:
        raise ZeroDivisionError

    with pytest.raises(Exception, match="ZeroDivision"):
        places_of("sin", loss, (Net(nnx.Rngs(0)),))
    assert Net.__call__ is before
