"""Minimum cuts choose what to keep: against every other choice, on graphs small enough for that."""

from __future__ import annotations

from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.remat.residual_sets import ForwardCosts, ForwardEquation, ForwardValue


@st.composite
def forward_passes(draw: st.DrawFn) -> ForwardCosts:
    """Equations with one or two results each, some of them fused."""
    values = [_value(draw, None, is_fused=False)]
    equations = []
    for position in range(draw(st.integers(1, 6))):
        operands = draw(st.sets(st.integers(0, len(values) - 1), max_size=3))
        seconds = draw(st.integers(0, 50)) / 10
        equations.append(ForwardEquation(seconds=seconds, operands=tuple(sorted(operands))))
        made = range(draw(st.integers(1, 2)))
        values += [_value(draw, position, is_fused=draw(st.booleans())) for _ in made]
    return ForwardCosts(values, equations)


def _value(draw: st.DrawFn, maker: int | None, *, is_fused: bool) -> ForwardValue:
    return ForwardValue(
        name="",
        num_bytes=0 if is_fused else draw(st.integers(1, 50)),
        keep_seconds=0.0 if is_fused else draw(st.integers(0, 10)) / 10,
        maker=maker,
        is_fused=is_fused,
        is_required=draw(st.booleans()),
    )


def cheapest_by_force(costs: ForwardCosts, seconds_per_byte: float) -> float:
    """The least that any choice of equations to compute again takes."""
    values, equations = costs.values, costs.equations
    found = []
    for choice in product((False, True), repeat=len(equations)):
        needed = {i for i, value in enumerate(values) if value.is_required}
        computed = [e for e, again in zip(equations, choice, strict=True) if again]
        needed |= {operand for equation in computed for operand in equation.operands}
        todo, allowed = list(needed), True
        read_fused: set[int] = set()
        while todo:  # what a fused value is computed from is needed, and kept as well
            position = todo.pop()
            maker = values[position].maker
            if maker is None or choice[maker] or position not in costs.fused_reads:
                continue
            read_fused.add(position)
            new = [o for o in equations[maker].operands if o not in needed]
            needed |= {*new}
            todo += new
        for position in read_fused:
            maker = values[position].maker
            assert maker is not None
            makers = [values[o].maker for o in equations[maker].operands]
            allowed &= not any(m is not None and choice[m] for m in makers)
        if not allowed:
            continue
        kept = [i for i in needed if (m := values[i].maker) is None or not choice[m]]
        computing = sum(equation.seconds for equation in computed)
        keeping = sum(values[i].keep_seconds + seconds_per_byte * values[i].num_bytes for i in kept)
        found.append(computing + keeping)
    return min(found)


@settings(max_examples=60, deadline=None)
@given(costs=forward_passes(), seconds_per_byte=st.sampled_from([0.0, 0.01, 0.1, 1.0]))
def test_no_other_set_takes_less(costs: ForwardCosts, seconds_per_byte: float) -> None:
    found = costs.cheapest(seconds_per_byte)
    took = found.total_seconds + seconds_per_byte * found.num_bytes
    assert took == pytest.approx(cheapest_by_force(costs, seconds_per_byte), abs=1e-5)


@settings(max_examples=60, deadline=None)
@given(costs=forward_passes())
def test_down_the_ladder_less_is_kept_and_more_time_is_taken(costs: ForwardCosts) -> None:
    for more, less in pairwise(costs.ladder):
        assert less.num_bytes < more.num_bytes
        assert less.total_seconds >= more.total_seconds - 1e-6


def test_a_cheap_value_is_computed_again_before_a_dear_one() -> None:
    """`in -> matmul (9 s) -> gelu (1 s)`, both read by the backward pass, both as large."""

    def value(name: str, maker: int | None) -> ForwardValue:
        return ForwardValue(
            name=name,
            num_bytes=10,
            keep_seconds=0.0,
            maker=maker,
            is_fused=False,
            is_required=True,
        )

    costs = ForwardCosts(
        [value("in", None), value("matmul", 0), value("gelu", 1)],
        [
            ForwardEquation(seconds=9.0, operands=(0,)),
            ForwardEquation(seconds=1.0, operands=(1,)),
        ],
    )
    kept = [[costs.values[i].name for i in one.kept] for one in costs.ladder]
    assert kept == [["in", "matmul", "gelu"], ["in", "matmul"], ["in"]]
