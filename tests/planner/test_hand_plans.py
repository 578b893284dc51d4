"""Plans written by hand, priced in our own planning problem."""

from __future__ import annotations

import copy
import gc
import itertools
import pickle
import time
import weakref
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace

import pytest

from autoshard.graph.program import Graph
from autoshard.planning import hand_prices
from autoshard.planning.hand_baselines import HandBaselines, hand_plan_notes
from autoshard.planning.hand_plans import hand_plans
from autoshard.planning.hand_prices import (
    HandPrices,
    best_by_hand,
    price_hand_plans,
    with_floor,
)
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.planning.stages import TRACE, Stages
from autoshard.plans.plan import Baseline
from autoshard.sharding import Sharding, parse_sharding
from autoshard.wishes.wishes import AlikeWish, Wishes
from solvers import evaluate
from tests.planner.graphs import Program, free_wishes, parts_of, plan

CARRIED = [(0, 0)]


def step() -> Graph:
    """`w + (x @ w)` summed over nothing: a state, a batch and a new state."""
    program = Program()
    w, x = program.argument(256, 256, name="w"), program.argument(256, 256, name="x")
    return program.graph(program.elementwise(w, program.matmul(x, w)), donated=(0,))


def test_state_counts_as_parameters_and_the_rest_as_a_batch() -> None:
    plans = hand_plans(step(), parts_of("x=2,y=4"), CARRIED)
    whole, rows = ((), ()), ((0, 1), ())
    assert plans == {
        "replicated": (whole, whole),
        "data parallel": (whole, rows),
        "fsdp": (rows, rows),
    }


def test_fsdp_cuts_the_largest_dimension_that_the_mesh_divides() -> None:
    program = Program()
    shapes = [(12, 64), (64, 12), (12, 6), (3, 5), (), (16,)]
    arguments = [program.argument(*shape) for shape in shapes]
    graph = program.graph(*arguments)
    carried = [(i, i) for i in range(len(arguments))]
    sharded = hand_plans(graph, parts_of("x=2,y=4"), carried)["fsdp"]
    assert sharded == (
        ((), (0, 1)),
        ((0, 1), ()),
        ((0,), ()),  # 12 divides by 2 and then not by 4
        ((), ()),
        (),
        ((0, 1),),
    )


def test_a_donated_cache_with_a_row_per_example_is_part_of_the_batch() -> None:
    program = Program()
    w, x = program.argument(64, 64, name="w"), program.argument(32, 64, name="x")
    cache = program.argument(32, 64, name="cache")
    graph = program.graph(program.elementwise(cache, program.matmul(x, w)), donated=(2,))
    plans = hand_plans(graph, parts_of("x=2,y=4"), [(2, 0)])
    whole, rows = ((), ()), ((0, 1), ())
    assert plans["data parallel"] == (whole, rows, rows)
    assert plans["fsdp"] == (rows, rows, rows)


def test_a_batch_that_only_some_axes_divide_is_cut_by_those() -> None:
    program = Program()
    graph = program.graph(program.argument(4, 64))
    assert hand_plans(graph, parts_of("x=8,y=2"), [])["data parallel"] == (((1,), ()),)


def silent(
    arguments: Sequence[Sharding | None], results: Sequence[Sharding | None]
) -> Mapping[str, Sharding]:
    """A propagation that tells nothing beyond the arguments."""
    del arguments, results
    return {}


OPTIONS = SolveOptions(time_limit_seconds=10.0)


def solved(graph: Graph, wishes: Wishes | None = None) -> Solution:
    return plan(graph, "x=2,y=4", wishes or free_wishes(graph, CARRIED))


def priced(solution: Solution) -> HandPrices:
    return price_hand_plans(solution, silent, OPTIONS)


def rows(prices: HandPrices, budget: int | None = None) -> HandBaselines:
    return HandBaselines(prices, budget, Stages())


def baselines(budget: int | None, wishes: Wishes | None = None) -> dict[str, Baseline]:
    found = rows(priced(solved(step(), wishes)), budget)
    return {b.name: b for b in found}


def test_our_plan_costs_no_more_than_any_written_by_hand() -> None:
    graph = step()
    ours = plan(graph, "x=2,y=4", free_wishes(graph, CARRIED)).account
    seconds = ours.compute_seconds + ours.communication_seconds
    found = baselines(None)
    assert set(found) == {"replicated", "data parallel", "fsdp"}
    assert all(seconds <= b.seconds * (1 + 1e-9) for b in found.values())


def test_what_others_compute_on_the_machine_is_no_time_of_hand_plans(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    wall = map(float, itertools.count(0, 1000))  # of a machine that is busy with something else
    clock = SimpleNamespace(process_time=time.process_time, monotonic=lambda: next(wall))
    monkeypatch.setattr(hand_prices, "time", clock)
    assert priced(solved(step())).late == ()


def test_an_interrupt_ends_the_lowering_of_rows_and_keeps_those_that_are_there(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    found = rows(priced(solved(step())))
    make, made = HandBaselines._row, []

    def interrupted(self: HandBaselines, name: str, solution: Solution) -> Baseline:
        made.append(name)
        if len(made) == 2:
            raise KeyboardInterrupt
        return make(self, name, solution)

    monkeypatch.setattr(HandBaselines, "_row", interrupted)
    assert [b.name for b in found] == ["replicated"]
    assert len(found) == 1
    assert made == ["replicated", "data parallel"]  # not all of them once more


def test_rows_that_were_read_let_the_planning_problem_go() -> None:
    prices = priced(solved(step()))
    problem = weakref.ref(prices.priced["fsdp"])
    found = rows(prices)
    del prices
    assert problem() is not None
    assert len(list(found)) == 3
    gc.collect()
    assert problem() is None


def test_fsdp_holds_less_and_moves_more_than_replicas() -> None:
    found = baselines(None)
    assert found["fsdp"].peak_bytes < found["replicated"].peak_bytes
    assert found["fsdp"].collective_bytes > 0


def test_a_plan_fits_a_budget_of_its_own_peak_and_no_less() -> None:
    peak = baselines(None)["fsdp"].peak_bytes
    assert baselines(peak)["fsdp"].fits
    assert not baselines(peak - 1)["fsdp"].fits


ROWS_BY_Y = parse_sharding('[{"y"}, {"x"}]')


def test_an_argument_that_must_end_like_a_pinned_result_keeps_our_sharding() -> None:
    graph = step()
    wishes = replace(free_wishes(graph, CARRIED), results=(ROWS_BY_Y,))
    assert list(baselines(None, wishes)) == ["replicated", "data parallel", "fsdp"]


def test_so_does_one_in_a_group_with_a_pinned_tensor() -> None:
    graph = step()
    w, x = ((op.index, op.results[0]) for op in graph.arguments)
    free = free_wishes(graph, [])
    wishes = replace(free, arguments=(ROWS_BY_Y, None), groups=(AlikeWish((w, x), "a group"),))
    assert list(baselines(None, wishes)) == ["replicated", "data parallel", "fsdp"]


def test_a_plan_that_what_was_asked_rules_out_is_named() -> None:
    graph = step()
    w, x = ((op.index, op.results[0]) for op in graph.arguments)
    wishes = replace(free_wishes(graph, CARRIED), groups=(AlikeWish((w, x), "a group"),))
    solution = solved(graph, wishes)
    prices = priced(solution)
    found = rows(prices)
    assert [b.name for b in found] == ["replicated", "fsdp"]
    assert hand_plan_notes(solution, prices) == (
        "not possible under what was asked, and so not compared with: data parallel",
        NO_MEGATRON,
    )


# -- Megatron ------------------------------------------------------------------------------------

NO_MEGATRON = (
    "not compared with megatron: the program has no pair of weights to shard by columns and"
    " then by rows, in a size that the model axis divides"
)


def mlp(*, norm: bool = False) -> tuple[Graph, list[tuple[int, int]]]:
    """Two layers, and both weights given back with their gradients' shapes: `w + w`."""
    program = Program()
    x = program.argument(32, 16, name="x")
    up, down = program.argument(16, 64, name="up"), program.argument(64, 16, name="down")
    hidden = program.elementwise(program.matmul(x, up), name="tanh")
    if norm:
        program.sum(hidden)
    y = program.matmul(hidden, down)
    graph = program.graph(program.elementwise(up, up), program.elementwise(down, down), y)
    return graph, [(1, 0), (2, 1)]


def test_megatron_cuts_columns_then_rows_and_the_batch_by_the_other_axes() -> None:
    graph, carried = mlp()
    batch, columns, rows = ((0,), ()), ((), (1,)), ((1,), ())
    expected = (batch, columns, rows)
    assert hand_plans(graph, parts_of("x=2,y=4"), carried)["megatron"] == expected


def test_the_model_axis_is_known_by_its_name_else_it_is_the_last() -> None:
    graph, carried = mlp()
    batch, columns, rows = ((1,), ()), ((), (0,)), ((0,), ())
    expected = (batch, columns, rows)
    assert hand_plans(graph, parts_of("model=4,data=2"), carried)["megatron"] == expected


def test_what_is_summed_up_between_the_products_is_not_cut() -> None:
    graph, carried = mlp(norm=True)
    assert "megatron" not in hand_plans(graph, parts_of("x=2,y=4"), carried)


def test_parameters_that_no_step_gives_back_are_those_that_the_examples_share() -> None:
    graph, carried = mlp()
    given_back, taken_alone = (
        hand_plans(graph, parts_of("x=2,y=4"), pairs) for pairs in (carried, [])
    )
    assert taken_alone == given_back


def test_a_size_that_the_model_axis_does_not_divide_is_not_cut() -> None:
    graph, carried = mlp()
    assert "megatron" not in hand_plans(graph, parts_of("x=2,y=3"), carried)


def test_a_program_without_such_products_says_so() -> None:
    solution = solved(step())
    prices = priced(solution)
    found = rows(prices)
    assert [b.name for b in found] == ["replicated", "data parallel", "fsdp"]
    assert hand_plan_notes(solution, prices) == (NO_MEGATRON,)


def test_a_program_with_them_is_compared_and_says_nothing() -> None:
    graph, carried = mlp()
    solution = solved(graph, free_wishes(graph, carried))
    prices = priced(solution)
    found = rows(prices)
    assert [b.name for b in found] == ["replicated", "data parallel", "fsdp", "megatron"]
    assert hand_plan_notes(solution, prices) == ()


# -- the floor -----------------------------------------------------------------------------------


def test_the_cheapest_hand_plan_that_fits_is_the_floor() -> None:
    solution = solved(step())
    prices = priced(solution)
    cheapest = min(prices.solutions, key=lambda name: prices.solutions[name].step_seconds)
    found = best_by_hand(solution.encoder, solution.encoded, silent, OPTIONS)
    assert found is not None
    assert found[0] == cheapest

    leanest = min(prices.solutions.values(), key=lambda priced: priced.peak_bytes)
    tight = plan(step(), "x=2,y=4", free_wishes(step(), CARRIED), leanest.alive_bytes)
    found = best_by_hand(tight.encoder, tight.encoded, silent, OPTIONS)
    assert found is not None
    assert prices.solutions[found[0]].alive_bytes <= leanest.alive_bytes


def test_without_time_to_propagate_data_parallel_follows_dimensions() -> None:
    program = Program()
    w, x = program.argument(256, 256, name="w"), program.argument(4096, 256, name="x")
    made = program.elementwise(w, w), program.matmul(program.matmul(x, w), w)
    solution = solved(program.graph(*made, donated=(0,)))

    def never(*_: object) -> dict[str, Sharding]:
        raise AssertionError("propagated")

    stages = Stages(limit_seconds=1.0, seconds={TRACE: 0.6})
    found = best_by_hand(solution.encoder, solution.encoded, never, OPTIONS, stages)
    assert found is not None
    assert found[0] == "data parallel"
    cost = evaluate(solution.encoded.problem, found[1]).cost
    assert cost == priced(solution).priced["data parallel"].result.cost


def test_a_plan_slower_than_a_hand_plan_that_fits_gives_way_to_it() -> None:
    solution = solved(step())
    prices = priced(solution)
    slowest = max(prices.solutions.values(), key=lambda priced: priced.step_seconds)
    slow = replace(slowest, encoded=solution.encoded)
    fastest = min(prices.solutions.values(), key=lambda priced: priced.step_seconds)
    assert fastest.step_seconds < slowest.step_seconds
    found = with_floor(slow, prices, None, relative_gap=0.01)
    assert prices.solutions[found.hand_plan] is fastest
    assert found.step_seconds == fastest.step_seconds
    assert found.result.choices == found.choices == fastest.choices
    nothing_fits = with_floor(slow, prices, 1, relative_gap=0.01)
    assert nothing_fits is slow


def test_a_faster_plan_stays() -> None:
    solution = solved(step())
    assert with_floor(solution, priced(solution), None, relative_gap=0.01) is solution


def lowered(prices: HandPrices) -> set[str]:
    return {name for name, one in prices.priced.items() if "solution" in vars(one)}


def test_a_hand_plan_that_costs_far_more_is_lowered_only_for_its_row() -> None:
    solution = solved(step())
    prices = priced(solution)
    with_floor(solution, prices, None, relative_gap=0.01)
    assert hand_plan_notes(solution, prices) == (NO_MEGATRON,)
    costs = {name: one.solution.step_seconds for name, one in priced(solution).priced.items()}
    far = {name for name, seconds in costs.items() if seconds > 1.5 * solution.step_seconds}
    assert far
    assert lowered(prices).isdisjoint(far)
    found = rows(prices)
    assert len(found) == len(costs)
    assert lowered(prices).isdisjoint(far)
    assert {row.name: row.seconds for row in found} == pytest.approx(costs)
    assert lowered(prices) == set(costs)


def test_a_hand_plan_whose_kernels_and_collectives_take_as_long_is_lowered_only_for_its_row(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(hand_prices, "_FLOOR_MARGIN", 1e9)
    solution = solved(step())
    prices = priced(solution)
    with_floor(solution, prices, None, relative_gap=0.01)
    slower = {n for n, p in prices.priced.items() if p.least_seconds >= solution.step_seconds}
    assert slower
    assert lowered(prices).isdisjoint(slower)


def test_rows_equal_what_they_are_once_priced() -> None:
    prices = priced(solved(step()))
    assert rows(prices) == tuple(rows(prices))
    assert rows(prices, budget=1) != rows(prices)


def test_rows_are_copied_and_pickled_without_their_problem() -> None:
    found = rows(priced(solved(step())))
    for other in (copy.deepcopy(found), pickle.loads(pickle.dumps(found))):
        assert other == tuple(found)
        assert isinstance(other, tuple)


def test_hand_plans_that_time_is_up_for_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hand_prices, "_LEAST_SECONDS", 0.0)
    solution = solved(step())
    prices = price_hand_plans(solution, silent, replace(OPTIONS, time_limit_seconds=0.0))
    assert prices.late == ("replicated", "data parallel", "fsdp")
    assert hand_plan_notes(solution, prices)[0] == (
        "not compared with replicated, data parallel, fsdp: the time for plans written by hand was"
        " up; raise time_limit_seconds"
    )
