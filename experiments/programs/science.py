"""Programs that train no model: solvers, samplers, simulations, planning and rollouts."""

from __future__ import annotations

import functools
from typing import Any

import jax
import jax.numpy as jnp

from experiments.programs.models import KEY, normal
from experiments.programs.program import Program


def exponax_burgers() -> Program:
    import exponax as ex

    stepper = ex.stepper.Burgers(2, 1.0, 64, 1e-3)

    def rollout(u: Any) -> Any:
        return ex.rollout(jax.vmap(stepper), 4)(u)

    return Program(fn=rollout, args=(normal(16, 2, 64, 64),))


def exponax_kuramoto_sivashinsky() -> Program:
    import exponax as ex

    stepper = ex.stepper.KuramotoSivashinsky(1, 60.0, 512, 0.1)

    def gradient(u: Any) -> Any:
        def energy(u: Any) -> Any:
            return jnp.sum(ex.repeat(jax.vmap(stepper), 4)(u) ** 2)

        return jax.grad(energy)(u)

    return Program(fn=gradient, args=(normal(32, 1, 512),))


def diffrax_neural_ode() -> Program:
    import diffrax
    import equinox as eqx
    import optax

    field = eqx.nn.MLP(16, 16, 256, 2, jnp.tanh, key=KEY)
    params, static = eqx.partition(field, eqx.is_inexact_array)
    optimizer = optax.adam(1e-3)

    def step(params: Any, state: Any, y: Any) -> Any:
        def loss(params: Any) -> Any:
            term: Any = diffrax.ODETerm(lambda _, y, __: jax.vmap(eqx.combine(params, static))(y))
            found = diffrax.diffeqsolve(
                term, diffrax.Tsit5(), 0.0, 1.0, 0.25, y, max_steps=8, throw=False
            )
            return jnp.mean(found.ys**2)

        grads = jax.grad(loss)(params)
        updates, state = optimizer.update(grads, state)
        return eqx.apply_updates(params, updates), state

    args = (params, optimizer.init(params), normal(64, 16))
    return Program(fn=step, args=args, donate_argnums=(0, 1))


def mctx_muzero() -> Program:
    import mctx

    def act(params: Any, observations: Any) -> Any:
        def recurrent(params: Any, _: Any, action: Any, embedding: Any) -> Any:
            hidden = jnp.tanh(embedding @ params["w"] + params["a"][action])
            found = mctx.RecurrentFnOutput(
                reward=hidden[:, 0],
                discount=jnp.full(hidden.shape[:1], 0.99),
                prior_logits=hidden @ params["p"],
                value=hidden @ params["v"],
            )
            return found, hidden

        root = mctx.RootFnOutput(
            prior_logits=observations @ params["p"],
            value=observations @ params["v"],
            embedding=observations,
        )
        found = mctx.muzero_policy(params, jax.random.key(1), root, recurrent, 8)
        return found.action_weights

    params = {
        "w": normal(128, 128) / 11,
        "a": normal(8, 128),
        "p": normal(128, 8),
        "v": normal(128),
    }
    return Program(fn=act, args=(params, normal(64, 128)), tolerance=5e-2)


def jax_md_lennard_jones() -> Program:
    from jax_md import energy, simulate, space

    displacement, shift = space.periodic(10.0)
    init, apply = simulate.nve(energy.lennard_jones_pair(displacement), shift, 1e-3)
    grid = jnp.stack(jnp.meshgrid(*[jnp.arange(8.0)] * 3), -1).reshape(512, 3)
    positions = 1.25 * grid + 0.05 * jax.random.normal(KEY, (512, 3))  # none near another
    state = init(KEY, positions, kT=0.1)

    def steps(state: Any) -> Any:
        return jax.lax.fori_loop(0, 4, lambda _, state: apply(state), state)

    return Program(fn=steps, args=(state,), donate_argnums=(0,), tolerance=2e-2)


def gymnax_ppo() -> Program:
    import distrax
    import gymnax
    import optax

    env, env_params = gymnax.make("CartPole-v1")
    optimizer = optax.adam(1e-3)

    def forward(params: Any, obs: Any) -> Any:
        hidden = jnp.tanh(obs @ params["w"])
        return hidden @ params["p"], hidden @ params["v"]

    def rollout(params: Any, key: Any, obs: Any, states: Any) -> Any:
        def step(carry: Any, key: Any) -> Any:
            obs, states = carry
            logits, value = forward(params, obs)
            policy = distrax.Categorical(logits)
            action, log_prob = policy.sample_and_log_prob(seed=key)
            keys = jax.random.split(key, obs.shape[0])
            after, states, reward, *ends, _ = jax.vmap(env.step, (0, 0, 0, None))(
                keys, states, action, env_params
            )
            done = functools.reduce(jnp.logical_or, ends)  # gymnax 1.0 tells cut short from ended
            return (after, states), (obs, action, log_prob, value, reward, done)

        return jax.lax.scan(step, (obs, states), jax.random.split(key, 8))

    def train(params: Any, moments: Any, obs: Any, states: Any, key: Any) -> Any:
        (after, states), (seen, action, old, value, reward, done) = rollout(
            params, key, obs, states
        )
        target = reward + 0.99 * (1 - done) * value

        def loss(params: Any) -> Any:
            logits, value = forward(params, seen)
            ratio = jnp.exp(distrax.Categorical(logits).log_prob(action) - old)
            gain = target - value
            clipped = jnp.clip(ratio, 0.8, 1.2)
            return jnp.mean(gain**2) - jnp.mean(jnp.minimum(ratio * gain, clipped * gain))

        grads = jax.grad(loss)(params)
        updates, moments = optimizer.update(grads, moments)
        return optax.apply_updates(params, updates), moments, after, states

    obs, states = jax.vmap(env.reset, (0, None))(jax.random.split(KEY, 256), env_params)
    params = {"w": normal(4, 256) / 2, "p": normal(256, 2) / 16, "v": normal(256) / 16}
    args = (params, optimizer.init(params), obs, states, jax.random.key(2))
    return Program(fn=train, args=args, donate_argnums=(0, 1, 2, 3), tolerance=2e-2)


def blackjax_hmc() -> Program:
    import blackjax

    x, y = normal(512, 64), jnp.sign(normal(512))

    def log_density(w: Any) -> Any:
        return jnp.sum(jax.nn.log_sigmoid(y * (x @ w))) - 0.5 * jnp.sum(w**2)

    kernel = blackjax.hmc(log_density, 1e-2, jnp.ones(64), 4)
    states = jax.vmap(kernel.init)(normal(32, 64))

    def step(states: Any, key: Any) -> Any:
        return jax.vmap(kernel.step)(jax.random.split(key, 32), states)[0]

    return Program(fn=step, args=(states, jax.random.key(3)), donate_argnums=(0,), tolerance=2e-2)


def lineax_least_squares() -> Program:
    import lineax as lx

    def solve(a: Any, b: Any) -> Any:
        def one(a: Any, b: Any) -> Any:
            return lx.linear_solve(lx.MatrixLinearOperator(a), b, lx.QR()).value

        return jax.vmap(one)(a, b)

    return Program(fn=solve, args=(normal(64, 48, 32), normal(64, 48)), tolerance=1e-2)


def optimistix_levenberg_marquardt() -> Program:
    import optimistix as optx

    def fit(theta: Any, x: Any, y: Any) -> Any:
        def one(theta: Any, x: Any, y: Any) -> Any:
            def residual(theta: Any, _: Any) -> Any:
                return theta[0] * jnp.exp(-theta[1] * x) - y

            solver: Any = optx.LevenbergMarquardt(1e-3, 1e-3)
            return optx.least_squares(residual, solver, theta, max_steps=8, throw=False).value

        return jax.vmap(one)(theta, x, y)

    x = jnp.linspace(0, 1, 64) * jnp.ones((128, 1))
    args = (jnp.ones((128, 2)), x, 2 * jnp.exp(-3 * x) + 0.1 * normal(128, 64))
    return Program(fn=fit, args=args, tolerance=2e-2)
