"""Scatters of one row whose operand the user's shardings slice on the way."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import numpy as np
import pytest

from autoshard.errors import ConstraintError
from autoshard.sharding import Sharding, parse_sharding
from tests.planner.graphs import plan
from tests.planner.traced import exported

MESH = "data=2,model=4"
CUT, WHOLE = parse_sharding('<@mesh, [{"model"}, {}]>'), parse_sharding("<@mesh, [{}, {}]>")


def changed(x: jax.Array, row: jax.Array) -> Any:
    return jax.numpy.sin(x.at[0].set(row))


def planned_with(argument: Sharding, scattered: Sharding) -> Any:
    f32 = np.dtype(np.float32)
    args = jax.ShapeDtypeStruct((16, 8), f32), jax.ShapeDtypeStruct((8,), f32)
    graph, wishes = exported(changed, *args, mesh=MESH)
    (scatter,) = (op for op in graph.ops if op.name == "scatter")
    asked = replace(wishes, arguments=(argument, None), values={scatter.results[0]: scattered})
    return plan(graph, MESH, asked)


def test_shardings_that_leave_only_misread_slices_are_refused_with_the_reason() -> None:
    """They made the problem infeasible, and nothing told why."""
    with pytest.raises(ConstraintError, match=r"x: f32.* before one of its rows is written"):
        planned_with(WHOLE, CUT)


def test_the_same_sharding_on_both_sides_is_planned() -> None:
    assert planned_with(CUT, CUT).is_feasible
