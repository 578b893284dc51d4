"""Training steps of model libraries: Flax, Haiku, Equinox, jraph, e3nn, with Optax."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from experiments.programs.program import Program

KEY = jax.random.key(0)


def normal(*shape: int) -> jax.Array:
    return jax.random.normal(jax.random.key(sum(shape)), shape)


def trained(loss: Any, params: Any, optimizer: Any, *batch: Any) -> Program:
    """A step of an Optax optimizer on `loss(params, *batch)`."""
    import optax

    def step(params: Any, state: Any, *batch: Any) -> Any:
        value, grads = jax.value_and_grad(loss)(params, *batch)
        updates, state = optimizer.update(grads, state, params)
        return optax.apply_updates(params, updates), state, value

    args = (params, optimizer.init(params), *batch)
    return Program(fn=step, args=args, donate_argnums=(0, 1))


def flax_nnx_transformer() -> Program:
    import optax
    from flax import nnx

    class Block(nnx.Module):
        def __init__(self, width: int, rngs: nnx.Rngs) -> None:
            self.norm = nnx.LayerNorm(width, rngs=rngs)
            self.attention = nnx.MultiHeadAttention(4, width, decode=False, rngs=rngs)
            self.up = nnx.Linear(width, 4 * width, rngs=rngs)
            self.down = nnx.Linear(4 * width, width, rngs=rngs)

        def __call__(self, x: Any) -> Any:
            x = x + self.attention(self.norm(x))
            return x + self.down(jax.nn.gelu(self.up(x)))

    class Model(nnx.Module):
        def __init__(self, rngs: nnx.Rngs) -> None:
            self.embed = nnx.Embed(512, 128, rngs=rngs)
            self.blocks = nnx.List([Block(128, rngs) for _ in range(2)])
            self.head = nnx.Linear(128, 512, rngs=rngs)

        def __call__(self, tokens: Any) -> Any:
            x = self.embed(tokens)
            for block in self.blocks:
                x = block(x)
            return self.head(x)

    def step(model: Any, optimizer: Any, tokens: Any) -> Any:
        def loss(model: Any) -> Any:
            logits = model(tokens)
            return optax.softmax_cross_entropy_with_integer_labels(logits, tokens).mean()

        value, grads = nnx.value_and_grad(loss)(model)
        optimizer.update(model, grads)
        return value

    model = Model(nnx.Rngs(0))
    optimizer = nnx.Optimizer(model, optax.adamw(1e-3, eps=1e-3), wrt=nnx.Param)
    tokens = np.random.default_rng(0).integers(0, 512, (16, 64))
    return Program(fn=step, args=(model, optimizer, tokens), donate_argnums=(0, 1))


def flax_linen_cnn_adafactor() -> Program:
    import optax
    from flax import linen as nn

    class Cnn(nn.Module):
        @nn.compact
        def __call__(self, x: Any) -> Any:
            for features in (32, 64):
                x = nn.relu(nn.GroupNorm(8)(nn.Conv(features, (3, 3))(x)))
                x = nn.avg_pool(x, (2, 2), strides=(2, 2))
            return nn.Dense(16)(nn.relu(nn.Dense(256)(x.reshape(x.shape[0], -1))))

    model, images = Cnn(), normal(32, 16, 16, 3)
    labels = jnp.arange(32) % 16

    def loss(params: Any, images: Any, labels: Any) -> Any:
        logits = model.apply(params, images)
        return optax.softmax_cross_entropy_with_integer_labels(logits, labels).mean()

    params = model.init(KEY, images)
    return trained(loss, params, optax.adafactor(1e-3, min_dim_size_to_factor=16), images, labels)


def flax_linen_lstm() -> Program:
    import optax
    from flax import linen as nn

    model = nn.RNN(nn.OptimizedLSTMCell(256))
    x = normal(32, 24, 64)
    params = model.init(KEY, x)
    return trained(
        lambda params, x: jnp.mean(model.apply(params, x) ** 2), params, optax.lion(1e-3), x
    )


def haiku_resnet() -> Program:
    import haiku as hk
    import optax

    def forward(images: Any) -> Any:
        net = hk.nets.ResNet(
            (1, 1, 1, 1), 16, resnet_v2=True, channels_per_group=(64, 128, 256, 256)
        )
        return net(images, is_training=True)

    model = hk.transform_with_state(forward)
    images, labels = normal(16, 32, 32, 3), jnp.arange(16) % 16
    params, state = model.init(KEY, images)
    optimizer = optax.sgd(1e-2, momentum=0.9)

    def step(params: Any, state: Any, moments: Any, images: Any, labels: Any) -> Any:
        def loss(params: Any) -> Any:
            logits, after = model.apply(params, state, None, images)
            each = optax.softmax_cross_entropy_with_integer_labels(logits, labels)
            return each.mean(), after

        grads, after = jax.grad(loss, has_aux=True)(params)
        updates, moments = optimizer.update(grads, moments)
        return optax.apply_updates(params, updates), after, moments

    args = (params, state, optimizer.init(params), images, labels)
    return Program(fn=step, args=args, donate_argnums=(0, 1, 2), tolerance=2e-2)


def equinox_mlp_muon() -> Program:
    import equinox as eqx
    import optax

    model = eqx.nn.MLP(128, 64, 512, 3, key=KEY)
    params, static = eqx.partition(model, eqx.is_inexact_array)

    def loss(params: Any, x: Any, y: Any) -> Any:
        return jnp.mean((jax.vmap(eqx.combine(params, static))(x) - y) ** 2)

    return trained(loss, params, optax.contrib.muon(1e-3), normal(64, 128), normal(64, 64))


def equinox_gru() -> Program:
    import equinox as eqx
    import optax

    cell = eqx.nn.GRUCell(64, 256, key=KEY)
    params, static = eqx.partition(cell, eqx.is_inexact_array)

    def loss(params: Any, x: Any) -> Any:
        cell = eqx.combine(params, static)

        def run(sequence: Any) -> Any:
            return jax.lax.scan(lambda h, x: (cell(x, h), None), jnp.zeros(256), sequence)[0]

        return jnp.mean(jax.vmap(run)(x) ** 2)

    return trained(loss, params, optax.adam(1e-3), normal(32, 16, 64))


def jraph_graph_network() -> Program:
    import haiku as hk
    import jraph
    import optax

    def forward(graph: Any) -> Any:
        def update(*parts: Any) -> Any:
            return hk.nets.MLP([256, 128])(jnp.concatenate(parts[:-1], axis=-1))

        network = jraph.GraphNetwork(
            update_edge_fn=update,
            update_node_fn=update,
        )
        return network(graph).nodes

    model = hk.without_apply_rng(hk.transform(forward))
    rng = np.random.default_rng(0)
    graph = jraph.GraphsTuple(
        nodes=normal(256, 64),
        edges=normal(1024, 32),
        senders=jnp.asarray(rng.integers(0, 256, 1024)),
        receivers=jnp.asarray(rng.integers(0, 256, 1024)),
        globals=None,
        n_node=jnp.array([256]),
        n_edge=jnp.array([1024]),
    )
    params = model.init(KEY, graph)
    return trained(
        lambda params, graph: jnp.mean(model.apply(params, graph) ** 2),
        params,
        optax.adamw(1e-3),
        graph,
    )


def numpyro_svi() -> Program:
    import numpyro
    import numpyro.distributions as dist
    from numpyro.infer import SVI, Trace_ELBO
    from numpyro.infer.autoguide import AutoDiagonalNormal

    def model(x: Any, y: Any) -> None:
        w = numpyro.sample("w", dist.Normal(0, 1).expand([64, 256]).to_event(2))
        v = numpyro.sample("v", dist.Normal(0, 1).expand([256]).to_event(1))
        numpyro.sample("y", dist.Normal(jnp.tanh(x @ w) @ v, 1.0), obs=y)

    svi = SVI(model, AutoDiagonalNormal(model), numpyro.optim.Adam(1e-3), Trace_ELBO())
    x, y = normal(256, 64), normal(256)
    state = svi.init(KEY, x, y)
    return Program(fn=svi.update, args=(state, x, y), donate_argnums=(0,))
