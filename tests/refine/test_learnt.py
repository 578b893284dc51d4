"""Corrections learnt from several compiled plans together."""

from __future__ import annotations

import pytest

from autoshard.encoding.corrections import (
    ChoiceCorrection,
    Corrections,
    MemoryCorrection,
    ReshardCorrection,
)
from autoshard.refine.attribution import Observation
from autoshard.refine.learnt import Learnt
from autoshard.sharding import Sharding, parse_sharding

ROWS, COLUMNS = parse_sharding('[{"data"}, {}]'), parse_sharding('[{}, {"data"}]')
CHAIN = {"a": ("b",), "b": ("a", "c"), "c": ("b", "d"), "d": ("c",)}


def cut(op: str, sharding: Sharding, seconds: float) -> ChoiceCorrection:
    return ChoiceCorrection(op=op, operands=(), results=(sharding,), seconds=seconds)


def seconds(learnt: Learnt) -> dict[tuple[str, Sharding], float]:
    found = learnt.corrections()
    return {(one.op, one.results[0]): one.seconds for one in found.choices}


def test_what_an_op_takes_more_in_a_slower_plan_is_laid_to_the_nearest_op_that_differs() -> None:
    learnt = Learnt(near=CHAIN)
    slow = [cut("a", ROWS, 4.0), cut("b", ROWS, 1.0), cut("c", COLUMNS, 1.0), cut("d", ROWS, 1.0)]
    learnt.add(Observation(choices=tuple(slow)), 7.0)
    learnt.add(Observation(choices=tuple(cut(op, ROWS, 1.0) for op in "abcd")), 4.0)
    found = seconds(learnt)
    assert [found[op, ROWS] for op in "abcd"] == [1.0, 1.0, 1.0, 1.0]
    assert found["c", COLUMNS] == 4.0
    assert [one.elsewhere for one in learnt.corrections().choices if one.seconds == 4.0] == [3.0]
    assert sum(found[one.op, one.results[0]] for one in slow) == 7.0


def test_what_ops_take_less_in_a_slower_plan_makes_no_choice_of_it_free() -> None:
    learnt = Learnt(near=CHAIN)
    slow = [
        cut("a", ROWS, 1.0),
        cut("b", ROWS, 1.0),
        cut("c", COLUMNS, 2.0),
        cut("d", COLUMNS, 8.0),
    ]
    learnt.add(Observation(choices=tuple(slow)), 12.0)
    learnt.add(Observation(choices=tuple(cut(op, ROWS, 2.0) for op in "abcd")), 8.0)
    found = seconds(learnt)
    assert [found[op, COLUMNS] for op in "cd"] == pytest.approx([1.6, 6.4])
    assert sum(found[one.op, one.results[0]] for one in slow) == pytest.approx(12.0)


def test_a_reshard_that_takes_more_in_a_slower_plan_is_laid_likewise() -> None:
    learnt = Learnt(near=CHAIN)

    def moved(more: float) -> ReshardCorrection:
        return ReshardCorrection(reader="a", operand=0, before=ROWS, after=COLUMNS, seconds=more)

    learnt.add(Observation(choices=(cut("d", COLUMNS, 1.0),), reshards=(moved(3.0),)), 4.0)
    learnt.add(Observation(choices=(cut("d", ROWS, 1.0),), reshards=(moved(1.0),)), 2.0)
    assert [one.seconds for one in learnt.corrections().reshards] == [1.0]
    assert seconds(learnt) == {("d", ROWS): 1.0, ("d", COLUMNS): 3.0}


def test_what_a_file_says_of_another_batch_holds_by_ratios_alone_once_something_is_seen() -> None:
    reshard = ReshardCorrection(reader="a", operand=0, before=ROWS, after=COLUMNS, seconds=1.0)
    held = MemoryCorrection(op="a", result=0, sharding=ROWS, num_bytes=8)
    start = Corrections(
        choices=(cut("a", COLUMNS, 1.0),),
        reshards=(reshard,),
        memory=(held,),
        ratio_by_class={"matmul": 2.0},
        is_of_other_sizes=True,
    )
    learnt = Learnt(start, near=CHAIN)
    assert learnt.corrections() == start
    learnt.add(Observation(choices=(cut("a", ROWS, 0.5),)), 1.0)
    found = learnt.corrections()
    assert (found.reshards, found.memory, found.is_of_other_sizes) == ((), (), False)
    assert [one.results[0] for one in found.choices] == [ROWS]
    assert found.ratio_by_class == {"matmul": 2.0}


def test_differences_too_small_to_matter_are_left_out() -> None:
    learnt = Learnt(near=CHAIN)
    learnt.add(Observation(choices=(cut("a", ROWS, 1e-6), cut("b", ROWS, 0.5))), 1.0)
    assert list(seconds(learnt)) == [("b", ROWS)]
