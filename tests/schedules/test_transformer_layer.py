"""A layer with two-dimensional weight gathering, as the notes on `shard_map` have it."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from autoshard import schedules
from autoshard.hlo.compiled import read_collectives
from autoshard.loops import Placed, placed, schedule
from tests.schedules.algorithms import mesh_of

BATCH, TIME, EMBED, HEADS, WIDTH, FF = 4, 8, 32, 8, 4, 6
P = PartitionSpec
Einsum = Callable[[str, jax.Array, jax.Array], jax.Array]


def into_heads(num: int) -> Placed:
    """`bte,hed->bthd`: summed over embed.X, ends with heads over YZ and then X."""
    nest = schedule("A(b,t,h,d) += X(b,t,e) * W(h,e,d)", b=BATCH, t=TIME, h=HEADS, d=num, e=EMBED)
    nest = nest.distribute(("e", "h"), ("eo", "ho"), ("ei", "hi"), (2, 4))
    nest = nest.communicate(("A", "X", "W"), "ho")
    return placed(nest, A="A bthd -> *h, h* M", X="X bte -> e* M", W="W hed -> eh M")


def out_of_heads(num: int) -> Placed:
    """`bthd,hde->bte`: heads gathered over X, summed over YZ, ends with embed over X and YZ."""
    nest = schedule("A(b,t,e) += Y(b,t,h,d) * W(h,d,e)", b=BATCH, t=TIME, e=EMBED, h=HEADS, d=num)
    nest = nest.distribute(("e", "h"), ("eo", "ho"), ("ei", "hi"), (2, 4))
    nest = nest.communicate(("A", "Y", "W"), "ho")
    return placed(nest, A="A bte -> e*, *e M", Y="Y bthd -> *h, h* M", W="W hde -> eh M")


def layer(params: Mapping[str, jax.Array], x: jax.Array, einsum: Einsum) -> jax.Array:
    """Attention with one key and value for all heads beside a gated feed-forward part."""
    normed = (x - x.mean(-1, keepdims=True)) / jnp.sqrt(x.var(-1, keepdims=True) + 1e-6)
    joined = einsum("bte,hed->bthd", normed, params["q_wi"])
    query = joined[..., :WIDTH]
    gate, up = joined[..., WIDTH : WIDTH + FF], joined[..., WIDTH + FF :]
    key_value = jnp.einsum("bte,ezd->btzd", normed, params["kv"])
    key, value = key_value[:, :, 0, :WIDTH], key_value[:, :, 0, WIDTH:]
    scores = jnp.einsum("bthd,bsd->bhts", query, key) / jnp.sqrt(WIDTH)
    mask = jnp.tril(jnp.ones((TIME, TIME), bool))
    weights = jax.nn.softmax(jnp.where(mask, scores, -1e9), -1)
    attended = jnp.einsum("bhts,bsd->bthd", weights, value)
    fused = jnp.concatenate([attended, jax.nn.silu(gate) * up], -1)
    out: jax.Array = einsum("bthd,hde->bte", fused, params["o_wo"]) + x
    return out


def test_the_layer_with_gathered_weights_equals_the_unsharded_one() -> None:
    mesh = mesh_of((2, 4))
    draw = np.random.default_rng(0)

    def array(*shape: int) -> jax.Array:
        values: jax.Array = jnp.asarray(draw.normal(size=shape) / np.sqrt(EMBED), "float32")
        return values

    params = {
        "q_wi": array(HEADS, EMBED, WIDTH + 2 * FF),
        "kv": array(EMBED, 1, 2 * WIDTH),
        "o_wo": array(HEADS, WIDTH + FF, EMBED),
    }
    x = array(BATCH, TIME, EMBED)
    runs = {
        "bte,hed->bthd": schedules.lower(into_heads(WIDTH + 2 * FF), mesh),
        "bthd,hde->bte": schedules.lower(out_of_heads(WIDTH + FF), mesh),
    }

    def scheduled(text: str, one: jax.Array, other: jax.Array) -> jax.Array:
        return runs[text](one, other)

    def shard(spec: PartitionSpec) -> NamedSharding:
        return NamedSharding(mesh, spec)

    places = {"q_wi": shard(P("y", "x")), "kv": shard(P()), "o_wo": shard(P("y", None, "x"))}
    residual = shard(P(None, None, ("x", "y")))
    run = jax.jit(
        lambda params, x: layer(params, x, scheduled),
        in_shardings=(places, residual),
        out_shardings=residual,
    )
    expected = jax.jit(lambda params, x: layer(params, x, jnp.einsum))(params, x)
    np.testing.assert_allclose(run(params, x), expected, rtol=1e-4, atol=1e-5)

    def loss(params: Mapping[str, jax.Array], x: jax.Array, einsum: Einsum) -> jax.Array:
        squares: jax.Array = jnp.sum(layer(params, x, einsum) ** 2)
        return squares

    slopes = jax.jit(jax.grad(lambda p, x: loss(p, x, scheduled)))(params, x)
    plain = jax.jit(jax.grad(lambda p, x: loss(p, x, jnp.einsum)))(params, x)
    for name, slope in plain.items():
        np.testing.assert_allclose(slopes[name], slope, rtol=1e-4, atol=1e-4)


def test_the_product_into_heads_scatters_its_sums_over_the_heads() -> None:
    mesh = mesh_of((2, 4))
    made = into_heads(6)
    specs = (P(None, None, "x"), P("y", "x"))
    run = jax.jit(
        schedules.lower(made, mesh), in_shardings=tuple(NamedSharding(mesh, s) for s in specs)
    )
    shapes = [jax.ShapeDtypeStruct(made.shape(t), "float32") for t in "XW"]
    program = run.lower(*shapes).compile()
    assert [c.kind for c in read_collectives(program.as_text() or "")] == ["reduce-scatter"]
    assert program.output_shardings.is_equivalent_to(
        NamedSharding(mesh, P(None, None, ("y", "x"))), 4
    )
