"""A slice of the net over single ops, and that it holds what it should."""

from __future__ import annotations

import time

import pytest

from tests.soak.op_cases import CASES, OpCase
from tests.soak.op_net import Layouts, layouts_of, run_trial, trials

BY_NAME = {case.name: case for case in CASES}
SLICE = (
    "conv depthwise x2",
    "conv grouped",
    "dot batch",
    "reshape mixed wide",
    "concatenate uneven",
    "slice stride odd",
    "pad interior",
    "cumsum",
    "argmax",
    "max pool grad",
    "sort pairs",
    "take two indices",
    "dynamic update slice",
    "set row traced",
    "scatter add columns",
    "random normal",
    "scan",
)


def test_names_are_unique() -> None:
    assert len(BY_NAME) == len(CASES)


def test_a_miscompile_is_found_and_told_with_the_fewest_shardings() -> None:
    rows = ((), ())
    layouts = Layouts(
        mesh=(2, 4),
        arguments=(rows, ((),)),
        operands=((("b",), ()), ((),)),
        constraints=((("b",), ()),),
        results=(rows,),
        is_between=False,
    )
    found = run_trial(0, 0, BY_NAME["set row fixed 5"], layouts, "random")
    assert found.verdict == "wrong"
    assert found.layouts is not None
    assert found.layouts["operands"] == ((("b",), ()), None)
    assert found.layouts["constraints"] == found.layouts["results"] == (None,)
    assert "sdy.sharding_constraint" in found.program


@pytest.mark.parametrize("name", SLICE)
def test_what_a_plan_may_ask_of_an_op_is_compiled_right(name: str) -> None:
    found = _trial(BY_NAME[name], 0, "candidates")
    assert found == "equal"


@pytest.mark.parametrize(
    "name",
    ["bitwise or", "conv depthwise x2", "set row traced", "set row turned", "slice row", "sort"],
)
def test_a_plan_under_random_pins_computes_the_same(name: str) -> None:
    assert _trial(BY_NAME[name], 1, "planned") == "equal"


def test_a_run_goes_on_where_the_last_one_ended() -> None:
    """Trials are numbered, and what one finds follows from its number and the seed."""
    names = [case.name for case in CASES[:3]]
    deadline = time.monotonic() + 60
    outcomes = trials(2, 0, names, deadline, "random")
    first = next(outcomes)
    outcomes.close()
    assert (first.trial, first.case) == (2, names[2])
    case = BY_NAME[names[2]]
    again = run_trial(2, 0, case, layouts_of(2, 0, case, "random"), "random")
    assert first == again


def _trial(case: OpCase, trial: int, kind: str) -> str:
    found = run_trial(trial, 0, case, layouts_of(trial, 0, case, kind), kind)
    return found.verdict if not found.detail else f"{found.verdict}: {found.detail}"
