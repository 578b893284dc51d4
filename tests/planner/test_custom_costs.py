"""Custom calls whose cost somebody declares."""

from __future__ import annotations

import pytest

from autoshard.candidates.candidate import CandidateMaker
from autoshard.costing.custom_costs import with_custom_costs
from autoshard.errors import InputError
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.program import Graph, Op, OpClass
from autoshard.graph.rule import identity_rule
from tests.planner.graphs import Program, encoder_for, parts_of


def calls() -> Graph:
    """Two calls of one kernel: on lines 1 and 2 of `step.py`."""
    program = Program()
    value = program.argument(1024, 1024)
    for _ in range(2):
        rule = identity_rule((1024, 1024))
        name = "custom_call @kernel"
        (value,) = program.compute(name, (value,), [(1024, 1024)], rule, OpClass.CUSTOM)
    return program.graph(value)


def of_kernel(graph: Graph) -> list[Op]:
    return [op for op in graph.ops if op.op_class is OpClass.CUSTOM]


def seconds(graph: Graph, op: Op) -> list[float]:
    """Uncut, and cut into four."""
    assert op.rule is not None
    candidates = CandidateMaker(parts_of("x=4")).of_rule(op.rule)[:2]
    prices = encoder_for(graph, "x=4", hardware="tpu-v5e").node_costs
    found = prices.seconds(op, candidates) - prices.costing.launch_seconds
    return [float(s) for s in found]


def test_a_declared_cost_takes_the_place_of_one_pass_over_operands_and_results() -> None:
    graph = calls()
    assert seconds(graph, of_kernel(graph)[0]) == pytest.approx([8 * 2**20 / 819e9, 2**21 / 819e9])
    for cost, expected in (
        (CustomCost(flops=197e12), 1.0),
        (CustomCost(vector_flops=6.1e12), 1.0),
        (CustomCost(num_bytes=819e9), 1.0),
        (CustomCost(flops=197e12, vector_flops=3 * 6.1e12, num_bytes=2 * 819e9), 3.0),
    ):
        declared = with_custom_costs(graph, {"kernel": cost})
        assert seconds(declared, of_kernel(declared)[0]) == pytest.approx([expected, expected / 4])


def test_a_line_goes_before_a_target() -> None:
    by_target, by_line = CustomCost(flops=1.0), CustomCost(flops=2.0)
    declared = with_custom_costs(calls(), {"kernel": by_target, "step.py:2": by_line})
    assert [op.declared for op in of_kernel(declared)] == [by_target, by_line]


def test_without_declared_costs_the_program_stays_as_it_is() -> None:
    graph = calls()
    assert with_custom_costs(graph, None) is graph
    assert with_custom_costs(graph, {}) is graph


def test_a_cost_for_a_call_that_is_not_there_is_refused_with_those_that_are() -> None:
    with pytest.raises(InputError) as caught:
        with_custom_costs(calls(), {"kernal": CustomCost()})
    assert str(caught.value) == (
        "no custom call of the program goes by 'kernal'\n"
        "  where: custom_costs\n"
        "  fix: use one of step.py:1, kernel, step.py:2"
    )
    with pytest.raises(InputError) as caught:
        with_custom_costs(Program().graph(), {"kernel": CustomCost()})
    assert caught.value.fix == "leave it out: there are none"


def test_what_is_no_cost_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        with_custom_costs(calls(), {"kernel": 1e9})  # type: ignore[dict-item]
    assert str(caught.value) == (
        "expected a CustomCost, found float\n"
        "  where: custom_costs['kernel']\n"
        "  fix: write autoshard.CustomCost(flops=..., num_bytes=...)"
    )
    with pytest.raises(InputError) as caught:
        CustomCost(flops=-1.0)
    assert str(caught.value) == (
        "flops is -1.0, which is no amount\n"
        "  where: CustomCost(flops=-1.0, vector_flops=0.0, num_bytes=None)\n"
        "  fix: give 0 or more"
    )
