"""Matmuls of gradients traced under a mesh, whose types name a sharding that says nothing."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import AxisType

from autoshard.frontend.batched_vectors import without_batched_vectors
from autoshard.frontend.jaxpr_paths import equations_of
from autoshard.frontend.outer_products import without_outer_products
from autoshard.frontend.sliced_matmuls import with_sliced_matmuls


def scaled_pairs(pairs: Any, weights: Any) -> Any:
    """The gradient of a product of `weights` and `pairs`, by a matmul that sums no term."""
    return jnp.einsum("bqkh,bqkh->bqk", weights, pairs).sum()


def heads(query: Any, keys: Any) -> Any:
    """One query for each head, of keys just reshaped: its gradient multiplies vectors, too."""
    return jnp.sin(jnp.einsum("bhe,bkhe->bhk", query, keys.reshape(2, 6, 4, 8))).sum()


def cut_logits(x: Any, weight: Any) -> Any:
    hidden = jnp.sin(x) * x.sum(-1, keepdims=True)
    return jnp.sum(jnp.sin(jnp.einsum("btd,vd->btv", hidden, weight)[:, :-1]))


PROGRAMS = [
    (without_outer_products, scaled_pairs, [(2, 3, 5, 4), (2, 3, 5, 4)]),
    (without_batched_vectors, heads, [(2, 4, 8), (2, 6, 32)]),
    (with_sliced_matmuls, cut_logits, [(2, 8, 4), (16, 4)]),
]


def matmuls(jaxpr: Any, *, typed: bool = False) -> list[tuple[int, ...]]:
    """Shapes of the results of matmuls; of those alone that name a sharding."""
    return [
        eqn.outvars[0].aval.shape
        for _, eqn in equations_of(jaxpr)
        if eqn.primitive.name == "dot_general"
        and not (typed and eqn.params["out_sharding"] is None)
    ]


@pytest.mark.parametrize(("rewrite", "loss", "dims"), PROGRAMS)
def test_they_are_written_as_without_a_mesh(
    rewrite: Callable[[Any], Any], loss: Callable[..., Any], dims: list[tuple[int, ...]]
) -> None:
    args = [np.random.default_rng(0).normal(size=one).astype("float32") for one in dims]
    gradient = jax.grad(loss, (0, 1))
    alone = rewrite(jax.make_jaxpr(gradient)(*args).jaxpr)
    mesh = jax.make_mesh((2, 4), ("x", "y"), axis_types=(AxisType.Auto,) * 2)
    with jax.sharding.use_abstract_mesh(mesh.abstract_mesh):
        traced = jax.make_jaxpr(gradient)(*args)
    assert matmuls(traced.jaxpr, typed=True)
    found = rewrite(traced.jaxpr)
    assert sorted(matmuls(found)) == sorted(matmuls(alone))
    assert sorted(matmuls(found)) != sorted(matmuls(traced.jaxpr))
    made = jax.core.eval_jaxpr(found, traced.consts, *args)
    for one, other in zip(made, gradient(*args), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-4, atol=1e-5)
