"""Corrections as costs and memory terms of the choices they are of, and of no others."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from autoshard.encoding.corrections import (
    ChoiceCorrection,
    Corrections,
    MemoryCorrection,
    ReshardCorrection,
    corrected,
    op_keys,
)
from autoshard.encoding.encoded import Encoded
from autoshard.planning.solution import Solution
from solvers import FORBIDDEN, evaluate
from tests.refine.programs import planned

MICROSECOND = 1_000_000  # picoseconds


@pytest.fixture(scope="module")
def solution() -> Solution:
    found = planned().solution
    assert found is not None
    return found


def with_(solution: Solution, corrections: Corrections) -> Encoded:
    return corrected(solution.encoded, corrections, solution.encoder.node_costs)


def first_matmul(solution: Solution) -> tuple[int, str]:
    """Its node and key."""
    op = next(op for op in solution.graph.ops if op.name == "dot_general")
    return solution.encoded.node_by_op[op.index], op_keys(solution.graph)[op.index]


def of_choice(solution: Solution, seconds: float) -> ChoiceCorrection:
    node, key = first_matmul(solution)
    encoded = solution.encoded
    candidate = encoded.candidates[node][solution.choices[node]]
    return ChoiceCorrection(
        op=key,
        operands=tuple(map(encoded.parts.to_sharding, candidate.operands)),
        results=tuple(map(encoded.parts.to_sharding, candidate.results)),
        in_chunks=candidate.streamed is not None,
        seconds=seconds,
    )


def test_keys_of_ops_are_all_different(solution: Solution) -> None:
    keys = op_keys(solution.graph)
    assert len(set(keys)) == len(keys)


def test_no_corrections_leave_the_problem_as_it_was(solution: Solution) -> None:
    assert with_(solution, Corrections()).problem is solution.encoded.problem


def test_the_compiled_choice_costs_what_was_compiled(solution: Solution) -> None:
    found = with_(solution, Corrections(choices=(of_choice(solution, 5e-6),)))
    before = evaluate(solution.encoded.problem, solution.choices).cost
    after = evaluate(found.problem, solution.choices).cost
    assert after - before == 5 * MICROSECOND


def test_other_candidates_of_the_op_are_scaled_and_other_ops_are_not(solution: Solution) -> None:
    node, _ = first_matmul(solution)
    found = with_(solution, Corrections(choices=(of_choice(solution, 5e-6),)))
    before, after = solution.encoded.problem.node_costs, found.problem.node_costs
    assert all(
        np.array_equal(a, b)
        for i, (a, b) in enumerate(zip(before, after, strict=True))
        if i != node
    )
    allowed = before[node] < FORBIDDEN
    assert (after[node][allowed] >= before[node][allowed]).all()
    assert (after[node][~allowed] == before[node][~allowed]).all()


def test_candidates_with_as_many_shards_take_what_the_compiled_one_does() -> None:
    solution = planned(mesh="x=2,y=2").solution
    assert solution is not None
    node, _ = first_matmul(solution)
    encoded, parts = solution.encoded, solution.encoded.parts
    found = with_(solution, Corrections(choices=(of_choice(solution, 5.0),)))

    def shards(place: int) -> list[list[int]]:
        one = encoded.candidates[node][place]
        return [list(map(parts.num_shards, dims)) for dims in (*one.operands, *one.results)]

    more = found.problem.node_costs[node] - encoded.problem.node_costs[node]
    own = solution.choices[node]
    alike = [place for place in range(len(more)) if shards(place) == shards(own)]
    allowed = encoded.problem.node_costs[node] < FORBIDDEN
    assert len(alike) > 1
    assert {int(more[place]) for place in alike if allowed[place]} == {5_000_000 * MICROSECOND}


def test_what_a_choice_took_elsewhere_counts_for_other_candidates_of_its_op(
    solution: Solution,
) -> None:
    node, _ = first_matmul(solution)
    one = of_choice(solution, 0.0)
    plain = with_(solution, Corrections(choices=(one,))).problem.node_costs[node]
    found = with_(solution, Corrections(choices=(replace(one, elsewhere=5e-6),)))
    more = found.problem.node_costs[node] - plain
    assert int(more[solution.choices[node]]) == 0  # those are in its seconds
    assert set(more[plain < FORBIDDEN].tolist()) == {0, 5 * MICROSECOND}


def test_a_correction_below_the_price_leaves_no_negative_cost(solution: Solution) -> None:
    found = with_(solution, Corrections(choices=(of_choice(solution, -1.0),)))
    assert min(int(costs.min()) for costs in found.problem.node_costs) >= 0


def test_a_class_that_was_seen_scales_the_computing_of_its_ops(solution: Solution) -> None:
    node, _ = first_matmul(solution)
    found = with_(solution, Corrections(ratio_by_class={"matmul": 2.0}))
    before, after = (p.node_costs[node] for p in (solution.encoded.problem, found.problem))
    op = solution.graph.ops[solution.encoded.ops[node]]
    local = [
        i for i, c in enumerate(solution.encoded.candidates[node]) if not (c.reduced or c.scattered)
    ]
    assert (after[local] == 2 * before[local]).all()
    assert op.op_class.value == "matmul"


def test_a_reshard_costs_more_between_its_two_shardings_alone(solution: Solution) -> None:
    encoded = solution.encoded
    node, key = first_matmul(solution)
    op = solution.graph.ops[encoded.ops[node]]
    value = op.operands[0]
    made = encoded.node_by_op[solution.graph.values[value].op]
    candidate = encoded.candidates[node][solution.choices[node]]
    before = solution.decoded.layouts[value]
    move = ReshardCorrection(
        reader=key,
        operand=0,
        before=encoded.parts.to_sharding(before),
        after=encoded.parts.to_sharding(candidate.operands[0]),
        seconds=3e-6,
    )
    found = with_(solution, Corrections(reshards=(move,)))
    changed = [
        (one, other)
        for one, other in zip(encoded.problem.edges, found.problem.edges, strict=True)
        if one is not other
    ]
    ((plain, edge),) = changed
    assert edge.u == made
    cost = evaluate(found.problem, solution.choices).cost
    assert cost - evaluate(encoded.problem, solution.choices).cost == 3 * MICROSECOND
    moved = edge.costs != plain.costs
    rows = {c.results[0] for c, m in zip(encoded.candidates[made], moved, strict=True) if m.any()}
    assert rows == {before}
    # A price that is too high goes down, to nothing at the least.
    less = with_(solution, Corrections(reshards=(replace(move, seconds=-1.0),)))
    costs = [one.costs for one in less.problem.edges]
    assert min(int(one.min()) for one in costs) == 0
    assert evaluate(less.problem, solution.choices).cost < cost


def test_a_value_holds_more_in_its_sharding_while_it_is_live(solution: Solution) -> None:
    encoded = solution.encoded
    node, key = first_matmul(solution)
    value = solution.graph.ops[encoded.ops[node]].results[0]
    layout = encoded.candidates[node][solution.choices[node]].results[0]
    held = MemoryCorrection(
        op=key, result=0, sharding=encoded.parts.to_sharding(layout), num_bytes=777
    )
    found = with_(solution, Corrections(memory=(held,)))
    term = found.problem.node_memory[-1]
    start, _ = solution.encoder.buffers.intervals[value]
    assert (term.node, term.start) == (node, start)
    assert term.usage[solution.choices[node]] == 777
    others = [c.results[0] != layout for c in encoded.candidates[node]]
    assert not term.usage[others].any()


def test_corrections_of_ops_that_are_not_there_are_left_out(solution: Solution) -> None:
    whole = solution.encoded.parts.to_sharding(((), ()))
    found = with_(
        solution,
        Corrections(
            choices=(ChoiceCorrection(op="99:sort", operands=(), results=(), seconds=1.0),),
            reshards=(
                ReshardCorrection(
                    reader="99:sort", operand=0, before=whole, after=whole, seconds=1.0
                ),
            ),
            memory=(MemoryCorrection(op="99:sort", result=0, sharding=whole, num_bytes=9),),
        ),
    )
    assert evaluate(found.problem, solution.choices) == evaluate(
        solution.encoded.problem, solution.choices
    )


def test_new_corrections_replace_those_before(solution: Solution) -> None:
    once = with_(solution, Corrections(choices=(of_choice(solution, 5e-6),)))
    twice = corrected(
        once, Corrections(choices=(of_choice(solution, 2e-6),)), solution.encoder.node_costs
    )
    before = evaluate(solution.encoded.problem, solution.choices).cost
    assert evaluate(twice.problem, solution.choices).cost - before == 2 * MICROSECOND


def test_at_another_batch_an_op_takes_as_many_times_its_price_as_it_did(solution: Solution) -> None:
    node, _ = first_matmul(solution)
    seen = replace(of_choice(solution, 3e-6), priced=1e-6)  # four times its price
    whole = solution.encoded.parts.to_sharding(((), ()))
    learnt = Corrections(
        choices=(seen,),
        memory=(MemoryCorrection(op=seen.op, result=0, sharding=whole, num_bytes=9),),
        num_ops=len(solution.graph.ops),
        is_of_other_sizes=True,
    )
    found = with_(solution, learnt)
    plain = solution.encoded.problem.node_costs[node]
    local = [
        i for i, c in enumerate(solution.encoded.candidates[node]) if not (c.reduced or c.scattered)
    ]
    assert (found.problem.node_costs[node][local] == 4 * plain[local]).all()
    assert found.problem.node_memory == solution.encoded.problem.node_memory
    deeper = with_(solution, replace(learnt, num_ops=learnt.num_ops + 1))
    assert (deeper.problem.node_costs[node] == plain).all()
