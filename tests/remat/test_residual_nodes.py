"""Residuals as nodes of the choice problem: against every set of what is read in small programs."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.errors import PlanError
from autoshard.planning.solution import NoPlanInTimeError
from autoshard.planning.traced_program import TracedProgram
from autoshard.remat.forward_ops import forward_ops
from autoshard.remat.joint_program import JointProgram
from autoshard.remat_search import PlannedResiduals, RematSearch

LAYERS, ROWS, WIDTH = 4, 1024, 32


def layer(x: jax.Array, w: jax.Array) -> Any:
    return x + jnp.tanh(x @ w)


def scanned(weights: jax.Array, x: jax.Array) -> Any:
    def loss(weights: jax.Array) -> Any:
        out, _ = jax.lax.scan(lambda c, w: (layer(c, w), None), x, weights)
        return jnp.mean(out**2)

    return weights - jax.grad(loss)(weights)


def unrolled(weights: jax.Array, x: jax.Array) -> Any:
    def loss(weights: jax.Array) -> Any:
        out = x
        for index in range(2):
            out = layer(out, weights[index])
        return jnp.mean(out**2)

    return weights - jax.grad(loss)(weights)


class Search:
    """The search for residuals of a step within a share of what it takes as written."""

    def __init__(self, step: Any, share: float, monkeypatch: pytest.MonkeyPatch) -> None:
        arguments = (
            jax.ShapeDtypeStruct((LAYERS, WIDTH, WIDTH), jnp.float32),
            jax.ShapeDtypeStruct((ROWS, WIDTH), jnp.float32),
        )

        def planned(budget: int | None, remat: str = "auto") -> autoshard.Plan:
            return autoshard.optimize(
                step,
                *arguments,
                mesh="data=4,model=2",
                hardware="cpu-host",
                memory_budget=budget,
                baselines=False,
                schedules="none",
                remat=remat,
            )

        run = RematSearch.run

        def kept(
            search: RematSearch, written: TracedProgram, as_written_bytes: int | None
        ) -> PlannedResiduals | None:
            self.search, self.written = search, written
            return run(search, written, as_written_bytes)

        monkeypatch.setattr(RematSearch, "run", kept)
        needed = planned(1000, "keep").data.memory
        spare = needed.peak_bytes - needed.argument_bytes
        self.plan = planned(needed.argument_bytes + int(share * spare))

    def cheapest_by_force(self) -> int | None:
        """Picoseconds of the cheapest plan of any set of what is read; None where none fits."""
        joint = JointProgram.of(self.written.traced.jaxpr)
        ops = forward_ops(joint.written(joint.everything))
        fixed = [one.name for op in ops if not op.may_repeat for one in op.results]
        free = [op for op in ops if op.may_repeat and op.is_required]
        names = [one.name for op in free for one in op.results]
        found = []
        sets = chain.from_iterable(combinations(names, size) for size in range(len(names) + 1))
        for kept in sets:
            try:
                solution = self.search.plan(self.search.read((*fixed, *kept)))
            except (PlanError, NoPlanInTimeError):  # what is kept does not suffice
                continue
            if solution.is_feasible:
                found.append(solution.cost)
        return min(found, default=None)


@pytest.mark.parametrize("share", [0.9, 0.7])
@pytest.mark.parametrize("step", [scanned, unrolled])
def test_the_set_that_is_found_is_as_fast_as_the_best_of_all(
    step: Any, share: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    search = Search(step, share, monkeypatch)
    best = search.cheapest_by_force()
    assert search.plan.data.is_feasible == (best is not None)
    if best is None:
        return
    chosen = search.plan.data.residuals
    assert search.plan.solution is not None
    assert search.plan.solution.cost <= 1.02 * best
    assert chosen is not None
    assert chosen.bound_seconds is not None
    assert chosen.bound_seconds <= best / 1e12
