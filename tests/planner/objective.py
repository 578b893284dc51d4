"""The law that what the solver minimises is what the account of a plan says."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import strategies as st

from autoshard.encoding.accounting import account_for
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import decode
from autoshard.encoding.picoseconds import PICOSECONDS
from solvers import FORBIDDEN, evaluate


def check_objective_is_account(encoder: Encoder, data: st.DataObject) -> None:
    """Draws allowed choices; what they cost is what they compute and communicate."""
    encoded = encoder.encode()
    problem = encoded.problem
    allowed = [np.flatnonzero(costs < FORBIDDEN).tolist() for costs in problem.node_costs]
    choices = tuple(data.draw(st.sampled_from(options)) for options in allowed)
    cost = evaluate(problem, choices).cost
    if cost >= FORBIDDEN:
        return
    account = account_for(encoder, encoded, decode(encoded, choices), choices)
    seconds = account.compute_seconds + account.communication_seconds
    assert cost / PICOSECONDS == pytest.approx(seconds, rel=1e-6, abs=1e-9)
