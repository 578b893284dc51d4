"""Residuals as nodes of the choice problem: against every set of what is read in small programs."""

from __future__ import annotations

from itertools import chain, combinations
from typing import Any, TypeAlias

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard import remat_search
from autoshard.errors import PlanError
from autoshard.planning.host_link import HostLink
from autoshard.planning.residual_offload import Offloading
from autoshard.planning.residual_problem import ResidualProblem
from autoshard.planning.solution import NoPlanInTimeError, Solution
from autoshard.planning.traced_program import TracedProgram
from autoshard.remat.forward_ops import forward_ops
from autoshard.remat.joint_program import JointProgram
from autoshard.remat_search import PlannedResiduals, RematSearch
from solvers import evaluate

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


def attention(weights: jax.Array, x: jax.Array) -> Any:
    """One step of layers whose probabilities are written over their scores."""

    def loss(weights: jax.Array) -> Any:
        out = x
        for index in range(3):
            rows = out @ weights[index]
            out = out + jax.nn.softmax(rows @ rows.T) @ rows
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
                mesh="data=8",
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
@pytest.mark.parametrize("step", [scanned, pytest.param(unrolled, marks=pytest.mark.slow)])
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


def test_of_a_joint_problem_that_is_too_large_the_lean_plan_has_the_shardings(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(remat_search, "_MOST_JOINT_COLUMNS", 0)
    plan = Search(scanned, 0.9, monkeypatch).plan
    chosen = plan.data.residuals
    assert plan.data.is_feasible
    assert chosen is not None
    assert chosen.kept
    assert chosen.bound_seconds is None


Leanest: TypeAlias = tuple[ResidualProblem, tuple[int, ...], Solution]
"""A joint problem, its choices that compute all again, and the plan that does."""


def told_leanest(monkeypatch: pytest.MonkeyPatch) -> list[Leanest]:
    """Of every search for residuals from now on, once it is over."""
    found: list[Leanest] = []
    walk = RematSearch._walk

    def kept(search: RematSearch, problem: ResidualProblem, *sets: Any) -> Any:
        walked = walk(search, problem, *sets)
        lean = search._tried[0]
        assert lean.solution is not None
        found.append((problem, problem.keeping(walked[0], lean.kept), lean.solution))
        return walked

    monkeypatch.setattr(RematSearch, "_walk", kept)
    return found


def test_computing_all_again_takes_the_memory_in_the_joint_problem_that_its_plan_does(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    leanest = told_leanest(monkeypatch)
    Search(attention, 0.7, monkeypatch)
    problem, choices, plan = leanest[0]
    assert problem.device_bytes(choices) <= 1.1 * plan.peak_bytes


def gelu_layers(weights: Any, *batch: jax.Array) -> Any:
    """One step; vector units bound gelu: what kernel pays for it depends on what is kept."""

    def loss(weights: Any, x: jax.Array, labels: jax.Array) -> Any:
        def body(x: jax.Array, w: Any) -> tuple[jax.Array, None]:
            return x + jax.nn.gelu(x @ w["up"]) @ w["down"], None

        out, _ = jax.lax.scan(body, x, weights["layers"])
        logits = (out @ weights["head"]).astype(jnp.float32)
        picked = jnp.take_along_axis(logits, labels[..., None], axis=-1)[..., 0]
        return jnp.mean(jax.nn.logsumexp(logits, axis=-1) - picked)

    grads = jax.grad(loss)(weights, *batch)
    return jax.tree.map(lambda w, g: w - 0.1 * g, weights, grads)


@pytest.fixture(scope="module")
def of_gelu_layers() -> tuple[Leanest, tuple[HostLink, Solution]]:
    """Of their search; the first link to the host, and the plan that computes all again."""
    links: list[tuple[HostLink, Solution]] = []
    link = Offloading._link

    def kept(offloading: Offloading, number: int) -> HostLink:
        links.append((link(offloading, number), offloading.program.lean.solution))
        return links[-1][0]

    with pytest.MonkeyPatch.context() as monkeypatch:
        monkeypatch.setattr(Offloading, "_link", kept)
        leanest = told_leanest(monkeypatch)
        plan_gelu_layers()
    return leanest[0], links[0]


def plan_gelu_layers() -> None:
    """Where keeping every residual does not fit."""

    def of(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, jnp.bfloat16)

    weights = {
        "layers": {"up": of(4, 512, 2048), "down": of(4, 2048, 512)},
        "head": of(512, 8192),
    }
    autoshard.optimize(
        gelu_layers,
        weights,
        of(8, 512, 512),
        jax.ShapeDtypeStruct((8, 512), jnp.int32),
        mesh="data=4",
        hardware="tpu-v5e",
        memory_budget=39_600_000,
        baselines=False,
        schedules="none",
    )


def test_computing_all_again_costs_in_the_joint_problem_what_its_plan_does(
    of_gelu_layers: tuple[Leanest, tuple[HostLink, Solution]],
) -> None:
    problem, choices, plan = of_gelu_layers[0]
    joint_cost = evaluate(problem.within(None), choices).cost
    assert joint_cost == pytest.approx(plan.cost, rel=0.01)


def test_transfers_hide_behind_what_the_forward_loop_computes_where_it_keeps_nothing(
    of_gelu_layers: tuple[Leanest, tuple[HostLink, Solution]],
) -> None:
    of_scan, lean = of_gelu_layers[1]
    program = lean.local_program
    forward_loop = 1
    computed = sum(
        one.seconds * program.runs()[forward_loop]
        for one in program.kernels
        if one.body == forward_loop and lean.graph.ops[one.op].name != "dynamic_update_slice"
    )
    assert of_scan.seconds[0] == pytest.approx(computed, rel=0.01)
