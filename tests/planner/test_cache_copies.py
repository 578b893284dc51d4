"""Caches that a program updates: slices copied for it, and results copied back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.backends import backend_for
from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.kernel_time import KernelTime
from autoshard.costing.loop_borders import LoopBorders
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Op
from cost_models import get_hardware
from tests.planner.graphs import parts_of
from tests.planner.traced import exported

LAYERS, BATCH, LENGTH, FEATURES = 4, 8, 1024, 512
CACHE = jax.ShapeDtypeStruct((LAYERS, BATCH, LENGTH, FEATURES), jnp.float32)
ROW = jax.ShapeDtypeStruct((BATCH, 1, FEATURES), jnp.float32)
V5P = get_hardware("tpu-v5p")


def sliced(cache: Any, row: Any) -> Any:
    """Every layer updates its slice, which the loop stacks again."""

    def layer(row: Any, old: Any) -> tuple[Any, Any]:
        new = jax.lax.dynamic_update_slice(old, row, (0, 3, 0))
        return row + new.sum(1, keepdims=True), new

    return jax.lax.scan(layer, row, cache)[1]


def carried(cache: Any, row: Any) -> Any:
    """The loop carries the cache and writes rows of it."""

    def layer(index: Any, cache: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, row[None], (index, 0, 3, 0))

    return jax.lax.fori_loop(0, LAYERS, layer, cache)


def facts_of(program: Callable[..., Any]) -> ProgramFacts:
    graph, wishes = exported(program, CACHE, ROW, mesh="x=1", donate_argnums=0)
    parts = parts_of("x=1")
    costing = Costing(cost_model_for(V5P, parts), parts)
    return ProgramFacts(graph, find_buffers(graph, backend_for(V5P)), costing, wishes.alike)


def updates(facts: ProgramFacts) -> list[tuple[Op, float]]:
    """Every row that is written, with its bytes."""
    values = facts.graph.values
    found = (op for op in facts.graph.ops if op.name == "dynamic_update_slice")
    return [(op, float(values[op.operands[1]].num_bytes)) for op in found]


def seconds(facts: ProgramFacts, op: Op) -> float:
    assert op.rule is not None
    whole = tuple(CandidateMaker(parts_of("x=1")).of_rule(op.rule)[:1])
    return float(KernelTime(facts).seconds(op, whole)[0])


def test_a_slice_whose_row_is_updated_is_copied() -> None:
    facts = facts_of(sliced)
    speed = V5P.memory.bytes_per_second
    piece = CACHE.size * 4 / LAYERS
    rows = [(op, size) for op, size in updates(facts) if size < piece]
    assert len(rows) == 1
    assert seconds(facts, rows[0][0]) > 2 * piece / speed


def test_a_row_of_a_carried_cache_is_written_alone() -> None:
    facts = facts_of(carried)
    ((op, size),) = updates(facts)
    speed, launch = V5P.memory.bytes_per_second, V5P.compute.kernel_launch_seconds
    assert seconds(facts, op) < launch + 10 * size / speed


def test_a_cache_that_is_stacked_anew_is_copied_to_the_donated_one() -> None:
    facts = facts_of(sliced)
    borders = LoopBorders(facts)
    (copied,) = borders.copied
    assert borders.key(facts.graph.ops[copied]) is not None
    (result,) = facts.graph.results
    assert facts.graph.values[facts.buffers.owner[result.operands[0]]].op == copied


def test_one_that_is_carried_is_not() -> None:
    assert not LoopBorders(facts_of(carried)).copied


@pytest.mark.parametrize("bits", [8, 16, 32])
def test_narrow_elements_take_passes_of_the_vector_unit(bits: int) -> None:
    parts = parts_of("x=1")
    costing = Costing(cost_model_for(V5P, parts), parts)
    passes = V5P.compute.passes
    assert passes is not None
    num_bytes = np.array(2.0**24)
    found = float(costing.kernel_seconds(costing.moved_bytes(num_bytes, bits), "float32"))
    narrowed = num_bytes * 8 / bits / passes.narrowed if bits < 32 else 0.0
    moved = 2 * num_bytes / costing.elementwise_speed
    assert found == pytest.approx(moved + narrowed + costing.launch_seconds)
