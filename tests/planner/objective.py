"""The law that what the solver minimises is what the estimate of a plan says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from autoshard.encoding.encode import Encoder
from autoshard.encoding.picoseconds import PICOSECONDS
from solvers import FORBIDDEN, evaluate
from tests.planner.graphs import estimated


def check_objective_is_account(encoder: Encoder, data: st.DataObject) -> None:
    """Draws allowed choices; what they cost is what they compute and communicate."""
    encoded = encoder.encode()
    problem = encoded.problem
    allowed = [np.flatnonzero(costs < FORBIDDEN).tolist() for costs in problem.node_costs]
    choices = tuple(data.draw(st.sampled_from(options)) for options in allowed)
    cost = evaluate(problem, choices).cost
    if cost >= FORBIDDEN:
        return
    seconds = estimated(encoder, encoded, choices).blocking_seconds
    assert cost / PICOSECONDS == pytest.approx(seconds, rel=1e-6, abs=1e-9)
