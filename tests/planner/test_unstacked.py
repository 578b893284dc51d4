"""What one equation slices and reshapes: it is moved after that, where a constraint can stand."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

from tests.planner.graphs import plan
from tests.planner.traced import exported

STACK = jax.ShapeDtypeStruct((64, 4, 256), jnp.float32)


@pytest.mark.parametrize("hardware", ["cpu-host", "h100", "tpu-v5e"])
def test_a_piece_of_a_stack_is_moved_after_its_reshape(hardware: str) -> None:
    def first(stack: jax.Array) -> Any:
        return jnp.unstack(stack, axis=1)[0]

    asked = {"in_shardings": P(None, None, "x"), "out_shardings": P("x")}
    graph, wishes = exported(first, STACK, mesh="x=4", **asked)
    solution = plan(graph, "x=4", wishes, None, hardware)
    decoded = solution.decoded
    for op in graph.ops:
        if op.name == "reshape":
            (value,) = op.operands
            assert decoded.candidates[op.index].operands == (decoded.layouts[value],)
    (moved,) = solution.account.collectives
    assert moved.bytes_per_device == 64 * 256 * 4 // 4
