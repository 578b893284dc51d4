"""Scatters and gathers whose indices move windows: a TPU loops over these."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import pytest

from autoshard.backends import backend_for
from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.look_ups import LookUps
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Op
from cost_models import get_hardware
from tests.planner.graphs import parts_of
from tests.planner.traced import exported

BATCH = 16
CACHE = jax.ShapeDtypeStruct((BATCH, 256, 8, 128), jnp.bfloat16)
ROWS = jax.ShapeDtypeStruct((BATCH, 8, 128), jnp.bfloat16)
PLACES = jax.ShapeDtypeStruct((BATCH,), jnp.int32)


def windows(cache: Any, rows: Any, places: Any) -> Any:
    def write(one: Any, row: Any, place: Any) -> Any:
        return jax.lax.dynamic_update_slice(one, row[None], (place, 0, 0))

    return jax.vmap(write)(cache, rows, places)


def elements(cache: Any, rows: Any, places: Any) -> Any:
    return cache.at[jnp.arange(BATCH), places].set(rows)


def vmapped_elements(cache: Any, rows: Any, places: Any) -> Any:
    return jax.vmap(lambda one, row, place: one.at[place].set(row))(cache, rows, places)


def looked_up(cache: Any, rows: Any, places: Any) -> Any:
    def read(one: Any, place: Any) -> Any:
        return jax.lax.dynamic_slice(one, (place, 0, 0), (4, 8, 128))

    return jax.vmap(read)(cache, places).sum(1) + rows


def facts_of(
    program: Callable[..., Any], hardware: str, mesh: str, donated: int | None = 0
) -> ProgramFacts:
    donate = () if donated is None else (donated,)
    graph, wishes = exported(program, CACHE, ROWS, PLACES, mesh=mesh, donate_argnums=donate)
    machine, parts = get_hardware(hardware), parts_of(mesh)
    costing = Costing(cost_model_for(machine, parts), parts)
    return ProgramFacts(graph, find_buffers(graph, backend_for(machine)), costing, wishes.alike)


def look_up(facts: ProgramFacts) -> Op:
    (op,) = (op for op in facts.graph.ops if op.name in ("gather", "scatter"))
    return op


def seconds(facts: ProgramFacts, mesh: str = "x=1") -> list[float]:
    op = look_up(facts)
    assert op.rule is not None
    offered = tuple(CandidateMaker(parts_of(mesh)).of_rule(op.rule))
    return [float(found) for found in LookUps(facts).seconds(op, offered)]


@pytest.mark.parametrize(
    ("program", "moved"),
    [(windows, BATCH), (elements, 0), (vmapped_elements, 0), (looked_up, BATCH)],
)
def test_windows_are_counted_where_indices_move_them(
    program: Callable[..., Any], moved: int
) -> None:
    assert look_up(facts_of(program, "tpu-v5e", "x=1")).moved_windows == moved


def test_a_tpu_runs_kernels_for_each_window_on_a_device() -> None:
    launch = get_hardware("tpu-v5e").compute.kernel_launch_seconds
    whole = min(seconds(facts_of(windows, "tpu-v5e", "x=1")))
    assert whole - min(seconds(facts_of(elements, "tpu-v5e", "x=1"))) > 3.9 * BATCH * launch
    cut = min(seconds(facts_of(windows, "tpu-v5e", "x=4"), "x=4"))
    assert cut == pytest.approx(whole / 4, rel=0.2)


def test_a_gpu_runs_one_kernel() -> None:
    found = min(seconds(facts_of(windows, "h100", "x=1")))
    assert found < 2 * min(seconds(facts_of(elements, "h100", "x=1")))


def test_a_donated_cache_is_not_copied_and_another_is() -> None:
    cache = CACHE.size * 2 / get_hardware("tpu-v5e").memory.bytes_per_second
    assert min(seconds(facts_of(elements, "tpu-v5e", "x=1"))) < cache / 2
    kept = facts_of(elements, "tpu-v5e", "x=1", donated=None)
    assert min(seconds(kept)) > 2 * cache


def test_what_updates_an_argument_is_in_hbm() -> None:
    def attend(cache: Any, rows: Any, places: Any) -> Any:
        cache = elements(cache, rows, places)
        return cache, jnp.einsum("bqhd,bthd->bhqt", rows[:, None] + jnp.zeros((1, 2, 1, 1)), cache)

    facts = facts_of(attend, "tpu-v5e", "x=1")
    (read,) = (op for op in facts.graph.ops if op.name == "dot_general")
    updated = look_up(facts).results[0]
    assert (
        facts.buffers.owner[updated]
        in facts.vmem.behind[read.operands[1]] | facts.vmem.behind[read.operands[0]]
    )
    assert all(
        not sources
        for sources in facts.vmem.held_sources(facts.graph, facts.buffers, read)
        if CACHE.size * 2 in sources
    )
