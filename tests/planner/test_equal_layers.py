"""Programs of many equal layers: what is computed once for all of them."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp

import autoshard

WIDTH, HIDDEN, ROWS = 1024, 4096, 4096


def train_step(layers: Any, x: Any) -> Any:
    def loss(layers: Any) -> Any:
        hidden = x
        for params in layers:
            hidden = hidden + jax.nn.gelu(hidden @ params["up"]) @ params["down"]
        return jnp.mean(hidden**2)

    grads = jax.grad(loss)(layers)
    return jax.tree.map(lambda w, g: w - 0.1 * g, layers, grads)


def planned(num_layers: int, mebibytes: int) -> autoshard.Plan:
    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.float32)

    params = {"up": array(WIDTH, HIDDEN), "down": array(HIDDEN, WIDTH)}
    return autoshard.optimize(
        train_step,
        [params] * num_layers,
        array(ROWS, WIDTH),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        donate_argnums=0,
        memory_budget=mebibytes * 2**20,
        baselines=False,
        remat="keep",
    )


def test_copies_and_costs_of_moves_are_computed_once_a_kind_where_memory_is_scarce() -> None:
    copies, costs = [], []
    for num_layers in (6, 10):
        solution = planned(num_layers, 12 * num_layers).solution
        assert solution is not None
        assert solution.encoder.is_scarce
        problem = solution.encoded.problem
        copies.append(len({id(term.usage) for term in problem.edge_memory}))
        costs.append(len({id(edge.costs) for edge in problem.edges}))
    assert copies[0] == copies[1]
    assert costs[0] == costs[1]
    distinct = {(edge.costs.shape, edge.costs.tobytes()) for edge in problem.edges}
    assert costs[1] < 2 * len(distinct)


def test_the_simpler_plan_of_equal_layers_gives_all_inner_ones_one_sharding() -> None:
    plan = planned(10, 16 * 1024)
    assert plan.data.is_feasible
    for name in ("up", "down"):
        shardings = [t.sharding for t in plan.data.arguments if name in t.name]
        assert len(shardings) == 10
        assert len(set(shardings[1:-1])) == 1
