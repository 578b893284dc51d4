"""Rounds of refining, with a compiler that says what each test wants."""

from __future__ import annotations

import re
import time
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from jax.sharding import PartitionSpec

from autoshard.aot.compile_process import Underway
from autoshard.encoding.corrections import NO_CORRECTIONS, ChoiceCorrection, op_keys
from autoshard.planning.planner import plan_corrected
from autoshard.planning.pricing import cautious
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution, solution_of
from autoshard.plans.plan import PlanData
from autoshard.plans.refinement import Refinement
from autoshard.refine import replanning, rounds
from autoshard.refine.attribution import Observation
from autoshard.refine.compiled_plan import CompiledPlan
from autoshard.refine.contenders import Contender, Contenders
from autoshard.refine.rounds import RefineOptions, refine_plan
from solvers import FORBIDDEN, evaluate
from tests.refine.programs import planned, refined


def record(data: PlanData) -> Refinement:
    assert data.refinement is not None
    return data.refinement


def is_whole(data: PlanData) -> bool:
    """Whether nothing is cut: the plan by hand called replicated."""
    return not any(list(tensor.sharding.axis_refs()) for tensor in data.arguments)


def of_first_matmul(solution: Solution, seconds: float) -> ChoiceCorrection:
    """Of the first matmul, in the way that a plan cuts it."""
    encoded = solution.encoded
    op = next(op for op in solution.graph.ops if op.name == "dot_general")
    node = encoded.node_by_op[op.index]
    chosen = encoded.candidates[node][solution.choices[node]]
    return ChoiceCorrection(
        op=op_keys(solution.graph)[op.index],
        operands=tuple(map(encoded.parts.to_sharding, chosen.operands)),
        results=tuple(map(encoded.parts.to_sharding, chosen.results)),
        seconds=seconds,
    )


def test_a_plan_by_hand_that_compiles_faster_is_the_plan_returned() -> None:
    found = refined(lambda data: (1.0, 100) if is_whole(data) else (2.0, 100))
    told = record(found.data)
    assert told.chosen is not None
    assert told.tried[told.chosen].name == "replicated as written"
    assert is_whole(found.data)
    assert found.data.constraints == {}


def test_the_plan_at_hand_stays_where_nothing_compiles_faster() -> None:
    plan = planned()
    found = refined(
        lambda data: (1e-6, 100) if data.arguments == plan.data.arguments else (2e-6, 100)
    )
    told = record(found.data)
    assert told.chosen == 0
    assert found.data.arguments == plan.data.arguments
    assert found.data.constraints == plan.constraints


def test_of_plans_that_compile_to_one_time_the_one_with_fewer_constraints_is_returned() -> None:
    told = record(refined(lambda _: (1.0, 100)).data)
    assert told.chosen is not None
    fewest = min(one.num_constraints for one in told.tried)
    assert told.tried[told.chosen].num_constraints == fewest


def test_a_crash_a_hang_and_a_lack_of_memory_cost_that_plan_alone() -> None:
    ways = iter(["crashed", "timed out", "out of memory"])
    found = refined(lambda data: (1.0, 100) if is_whole(data) else next(ways, "crashed"))
    told = record(found.data)
    failed = [one.status for one in told.tried if one.compiled_seconds is None]
    assert failed[:3] == ["crashed", "timed out", "out of memory"]
    assert told.chosen is not None
    assert told.tried[told.chosen].name == "replicated as written"
    assert told.tried[0].why == "the plan at hand; as told"


def test_a_compile_that_hangs_leaves_time_for_the_others_and_no_less_than_it_had() -> None:
    # No time passes here: half of the 100 minutes, all of them, and a minute once one is known.
    limits: list[float] = []

    def compiles(data: PlanData, seconds: float) -> Underway[CompiledPlan]:
        limits.append(seconds)
        yield
        constraints = data.constraints or {}
        if len(limits) == 1:
            return CompiledPlan(status="timed out", constraints=constraints)
        return CompiledPlan(status="compiled", constraints=constraints, seconds=1.0, peak_bytes=1)

    solved = planned().solved
    assert solved is not None
    contenders = Contenders("step", solved, planned().data)
    options = RefineOptions(target="v5e:2x4", rounds=1, minutes=100)
    refine_plan(contenders, {}, compiles, options)
    assert limits[:3] == pytest.approx([3000, 6000, 60], rel=0.01)


def test_where_nothing_compiles_the_plan_is_the_one_from_before() -> None:
    found = refined(lambda _: "crashed")
    assert record(found.data).chosen is None
    assert found.data.is_feasible
    assert found.data.arguments == planned().data.arguments


def test_the_fastest_plan_that_passes_the_budget_as_compiled_is_not_returned() -> None:
    plan = planned(memory_budget=10_000_000_000)
    found = refined(
        lambda data: (2.0, 9_000_000_000) if is_whole(data) else (1.0, 10_000_000_001), plan
    )
    told = record(found.data)
    assert told.chosen is not None
    assert told.tried[told.chosen].compiled_bytes == 9_000_000_000
    assert told.tried[0].fits is False


def test_a_peak_of_exactly_the_budget_fits() -> None:
    plan = planned(memory_budget=10_000_000_000)
    assert record(refined(lambda _: (1e-6, 10_000_000_000), plan).data).chosen is not None


def test_without_a_plan_within_the_budget_the_bytes_that_the_best_misses_are_said() -> None:
    plan = planned(memory_budget=10_000_000_000)
    found = refined(
        lambda data: (1.0, 10_000_000_007) if is_whole(data) else (1.0, 10_000_000_009), plan
    )
    told = record(found.data)
    assert (told.chosen, told.missing_bytes) == (None, 7)
    assert not found.data.is_feasible
    assert "the best misses it by 7 bytes as compiled" in found.data.solver.advice


def test_a_plan_that_is_far_too_large_says_nothing_of_those_near_the_budget() -> None:
    predicted = planned().data.memory.peak_bytes
    plan = planned(memory_budget=int(1.05 * predicted))
    limits: list[int | None] = []
    original = plan_corrected

    def noted(start: Solution, _: Any, limit: int | None, *args: Any, **kwargs: Any) -> Solution:
        limits.append(limit)
        return original(start, NO_CORRECTIONS, limit, *args, **kwargs)

    def judge(data: PlanData) -> tuple[float, int]:
        held = data.memory.peak_bytes
        return 1.0, held if held <= 1.2 * predicted else 3 * held

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoshard.refine.replanning.plan_corrected", noted)
        told = record(refined(judge, plan).data)
    assert any(one.compiled_bytes == 3 * one.predicted_bytes for one in told.tried)
    assert limits[0] == plan.data.memory_budget


def test_a_plan_that_passes_the_budget_as_compiled_leaves_less_for_the_next_one() -> None:
    plan = planned(memory_budget=10_000_000_000)
    assert plan.solution is not None
    limits: list[int | None] = []

    original = plan_corrected

    def noted(
        start: Solution, corrections: Any, limit: int | None, *args: Any, **kwargs: Any
    ) -> Solution:
        limits.append(limit)
        return original(start, corrections, limit, *args, **kwargs)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoshard.refine.replanning.plan_corrected", noted)
        refined(lambda _: (1e-6, 11_000_000_000), plan)
    # As much less as a plan held beyond what it was predicted to.
    assert limits[0] is not None
    assert limits[0] < 10_000_000_000


@pytest.mark.slow
def test_a_plan_that_the_model_thinks_a_little_too_large_is_compiled() -> None:
    # Ask for less than any plan takes by the model, by less than the model is known to err.
    least = planned(memory_budget=1).data.memory.peak_bytes
    budget = int(least / 1.1)
    plan = planned(memory_budget=budget)
    assert not plan.data.is_feasible
    found = refined(lambda _: (1e-6, budget - 1), plan)
    assert found.data.is_feasible
    assert record(found.data).tried[0].name == "optimized"


@pytest.mark.slow
def test_the_least_peak_that_is_told_is_one_that_no_smaller_budget_has() -> None:
    """Of choices that hold the least by the problem, those with large outputs spill them to HBM."""
    least = planned(memory_budget=1).data.memory.peak_bytes
    assert planned(memory_budget=least).data.is_feasible
    assert not planned(memory_budget=least - 1).data.is_feasible


def test_a_plan_that_the_model_thinks_far_too_large_is_not_compiled() -> None:
    least = planned(memory_budget=1).data.memory.peak_bytes
    plan = planned(memory_budget=least // 2)
    told = record(refined(lambda _: (1e-6, least), plan).data)
    assert all(one.name != "optimized" for one in told.tried)


def test_what_a_compiled_choice_takes_more_makes_the_next_plan_avoid_it() -> None:
    """The plan at hand takes a millisecond more where its first matmul is cut as it is."""
    plan = planned()
    shown: list[Observation] = []

    def observe(solution: Solution, _: CompiledPlan) -> Observation:
        said = of_first_matmul(solution, 1e-3)
        if shown and shown[0].choices[0].results != said.results:
            return Observation()
        shown.append(Observation(choices=(said,), faults=("dot_general takes 1 ms",)))
        return shown[-1]

    compiled: list[PlanData] = []

    def judge(data: PlanData) -> tuple[float, int]:
        return (1e-3 if data.values == plan.data.values else 2e-3), 100

    found = refined(judge, plan, {}, compiled, observe=observe)
    told = record(found.data)
    again = [one for one in told.tried if one.round == 2]
    assert [one.name for one in again] == ["optimized"]
    assert compiled[-1].values != compiled[0].values
    assert found.corrections.choices


def test_a_record_of_another_plan_is_compiled_as_it_is() -> None:
    other = planned(in_shardings=(None, PartitionSpec(None, "model")), memory_budget=None)
    _ = other.constraints
    whole = other.data
    seen: list[PlanData] = []
    told = record(refined(lambda _: (1e-6, 1), None, {"mine": whole}, seen).data)
    assert told.tried[1].name == "mine"
    assert (seen[1].arguments, seen[1].constraints) == (whole.arguments, whole.constraints)


def test_an_interrupt_returns_the_best_so_far() -> None:
    seen: list[PlanData] = []

    def judge(_: PlanData) -> tuple[float, int] | str:
        if len(seen) == 2:
            raise KeyboardInterrupt
        return 1.0 / len(seen), 100

    found = refined(judge, compiled=seen)
    told = record(found.data)
    assert told.ended.startswith("interrupted: this is the best so far; not compiled: ")
    assert "replicated as written" in told.ended
    assert [one.name for one in told.tried] == ["optimized"]
    assert told.chosen == 0


def test_no_compile_begins_once_the_minutes_are_over() -> None:
    asked = {"theirs": (PartitionSpec(), PartitionSpec("data"))}
    told = record(refined(lambda _: (1e-6, 100), None, asked, minutes=1e-9).data)
    assert told.tried == ()
    assert told.ended.startswith("the 1e-09 minutes were over; not compiled: theirs as written, ")


def test_nothing_is_compiled_twice() -> None:
    seen: list[PlanData] = []
    told = record(refined(lambda _: (1e-6, 100), compiled=seen, rounds=6).data)
    programs = {
        (
            tuple(t.sharding for t in data.arguments),
            tuple(t.sharding for t in data.results),
            tuple(sorted((data.constraints or {}).items(), key=lambda item: item[0])),
        )
        for data in seen
    }
    assert len(programs) == len(seen) == len(told.tried)


def test_one_line_says_what_compiles_and_one_what_came_of_it() -> None:
    lines: list[str] = []
    refined(lambda _: (1e-6, 100), tell=lines.append, rounds=1)
    assert lines[0].startswith("round 1: optimized compiles for v5e:2x4 since ")
    assert lines[1] == "round 1: optimized: 1.00 us"


def test_plans_by_hand_that_the_model_thinks_far_slower_compile_after_the_rounds() -> None:
    plan = planned()
    fastest = plan.data.priced_seconds / 2.5
    told = record(refined(lambda _: (fastest, 100), plan).data)
    by_hand = [place for place, one in enumerate(told.tried) if "as written" in one.name]
    # The first is made while the plan at hand compiles; the others after the rounds.
    later = by_hand[1:]
    assert later
    assert later == list(range(len(told.tried)))[-len(later) :]
    assert told.tried[by_hand[0] - 1].name == "optimized"


def test_a_plan_by_hand_that_compiles_last_shows_what_the_rounds_that_are_left_plan_with() -> None:
    """Data parallel is predicted far slower; once it compiles, another plan is seen to be dear."""
    plan = planned()
    fastest = plan.data.priced_seconds / 2.5

    def observe(_: Solution, compiled: CompiledPlan) -> Observation:
        if compiled.seconds != 0.9 * fastest:
            return Observation()
        assert plan.solution is not None
        dear = of_first_matmul(plan.solution, 1e-3)
        return Observation(choices=(dear,), faults=("dot_general takes 1 ms",))

    def judge(data: PlanData) -> tuple[float, int]:
        *params, batch = (list(tensor.sharding.axis_refs()) for tensor in data.arguments)
        is_data_parallel = batch and not any(params) and not data.constraints
        return 0.9 * fastest if is_data_parallel else fastest, 100

    told = record(refined(judge, plan, observe=observe, rounds=3).data)
    names = [one.name for one in told.tried]
    later = told.tried[names.index("data parallel as written") + 1 :]
    assert any(one.why.startswith("dot_general takes 1 ms") for one in later)


def test_plans_by_hand_that_cannot_be_the_best_do_not_compile_and_are_told() -> None:
    plan = planned()
    fastest = plan.data.priced_seconds / 100
    told = record(refined(lambda _: (fastest, 100), plan).data)
    compiled = {one.name for one in told.tried}
    assert "replicated as written" not in compiled
    assert re.search(r"replicated as written \(predicted \d+\.\d times the best step\)", told.ended)


def test_a_plan_by_hand_that_is_the_plan_at_hand_is_not_told_as_left_out() -> None:
    cut = PartitionSpec(("data", "model"))
    plan = planned(in_shardings=(PartitionSpec(), cut), out_shardings=PartitionSpec())
    seen: list[PlanData] = []
    told = record(refined(lambda _: (1.0, 100), plan, compiled=seen, rounds=1).data)
    assert "data parallel as written" not in {one.name for one in told.tried}
    assert any("data parallel as written" in one.also for one in told.tried)
    assert told.ended == "all 1 rounds were used"


def test_a_solve_takes_no_longer_than_a_compile_or_20_seconds(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    limits: list[float] = []

    def noted(start: Solution, _: Any, __: Any, options: SolveOptions, **___: Any) -> Solution:
        limits.append(options.time_limit_seconds)
        return start

    monkeypatch.setattr(replanning, "plan_corrected", noted)
    refined(lambda _: (1e-6, 100), minutes=100)
    assert set(limits) == {20.0}


def test_a_further_plan_is_sought_in_the_time_that_is_left(monkeypatch: pytest.MonkeyPatch) -> None:
    limits: list[float] = []

    def noted(_: Solution, __: Any, options: SolveOptions) -> None:
        limits.append(options.time_limit_seconds)

    def slow(start: Solution, *_: Any, **__: Any) -> Solution:
        time.sleep(0.5)
        return start

    monkeypatch.setattr(replanning, "plan_corrected", slow)
    monkeypatch.setattr(replanning, "alternative", noted)
    monkeypatch.setattr(replanning, "LEAST_SOLVE", 100.0)
    monkeypatch.setattr(replanning, "WORTH_A_ROUND", -1.0)
    refined(lambda _: (1e-6, 100), minutes=50 / 60)
    assert limits
    assert limits[0] < 49.5


def test_the_next_plan_is_made_while_one_compiles() -> None:
    events: list[str] = []

    def compiles(data: PlanData, _: float) -> Underway[CompiledPlan]:
        events.append("begins")
        yield
        events.append("ends")
        return CompiledPlan(
            status="compiled", constraints=data.constraints or {}, seconds=1e-6, peak_bytes=1
        )

    plan = planned()
    assert plan.solved is not None

    class Told(Contenders):
        def as_written(self, *args: Any) -> Contender:
            events.append("made")
            return super().as_written(*args)

    options = RefineOptions(target="v5e:2x4", rounds=1)
    refine_plan(Told("step", plan.solved, plan.data), {}, compiles, options)
    assert events[:5] == ["begins", "made", "ends", "begins", "made"]


def test_waiting_for_a_compile_is_no_time_of_planning(monkeypatch: pytest.MonkeyPatch) -> None:
    now = 0.0
    clock = SimpleNamespace(monotonic=lambda: now, strftime=time.strftime)

    def compiles(data: PlanData, _: float) -> Underway[CompiledPlan]:
        nonlocal now
        yield
        if data.constraints:  # the last one before the rounds
            now += 100.0
        return CompiledPlan(
            status="compiled", constraints=data.constraints or {}, seconds=1e-6, peak_bytes=1
        )

    def other(solution: Solution, *_: Any) -> Solution:
        leaner = tuple(int(np.argmin(one)) for one in solution.encoded.problem.node_costs)
        result = replace(solution.result, choices=leaner)
        return solution_of(solution.encoder, solution.encoded, result)

    monkeypatch.setattr(replanning, "plan_corrected", lambda start, *_, **__: start)
    monkeypatch.setattr(replanning, "alternative", other)
    monkeypatch.setattr(rounds, "time", clock)
    monkeypatch.setattr(replanning, "WORTH_A_ROUND", -1.0)
    plan = planned()
    assert plan.solved is not None
    contenders = Contenders("step", plan.solved, plan.data)
    found = refine_plan(contenders, {}, compiles, RefineOptions(target="v5e:2x4", rounds=2))
    again = [one for one in record(found.data).tried if one.round == 2]
    assert [one.plan_seconds for one in again] == [0.0]


def test_an_interrupt_while_planning_ends_the_compile_that_is_underway() -> None:
    ended: list[str] = []

    def compiles(data: PlanData, _: float) -> Underway[CompiledPlan]:
        try:
            yield
        finally:
            ended.append(data.function)
        return CompiledPlan(status="compiled", constraints={}, seconds=1e-6, peak_bytes=1)

    class Interrupted(Contenders):
        def as_written(self, *_: Any) -> Contender:
            raise KeyboardInterrupt

    plan = planned()
    assert plan.solved is not None
    contenders = Interrupted("step", plan.solved, plan.data)
    found = refine_plan(contenders, {}, compiles, RefineOptions(target="v5e:2x4"))
    assert ended == ["step"]
    assert record(found.data).ended.startswith("interrupted")


def test_with_a_margin_a_plan_differs_from_what_compiled_only_where_that_wins_more() -> None:
    base = planned().solution
    assert base is not None
    problem = base.encoded.problem
    best = tuple(int(np.argmin(costs)) for costs in problem.node_costs)
    dearer = cautious(problem, best, [base.choices], 0.5)
    share = round(0.5 * evaluate(problem, best).cost / problem.num_nodes)
    for node, (costs, before) in enumerate(zip(dearer.node_costs, problem.node_costs, strict=True)):
        assert costs[best[node]] == before[best[node]]
        for choice in range(len(costs)):
            if choice == best[node] or before[choice] >= FORBIDDEN:
                continue
            once = 1.0 if choice == base.choices[node] else 1.5
            assert abs(costs[choice] - once * before[choice] - share) <= 1
    assert evaluate(dearer, best).cost == evaluate(problem, best).cost


def test_a_cautious_plan_costs_what_the_corrected_problem_says_and_proves_nothing() -> None:
    base = planned().solution
    assert base is not None
    found = plan_corrected(base, NO_CORRECTIONS, None, SolveOptions(), margin=10.0)
    assert found.choices == base.choices
    assert found.result.cost == evaluate(base.encoded.problem, base.choices).cost
    assert found.result.lower_bound == 0


def test_a_plan_that_held_less_than_predicted_leaves_more_for_the_next_one() -> None:
    plan = planned()
    budget = plan.data.memory.peak_bytes
    tight = replace(plan, data=replace(plan.data, memory_budget=budget))
    limits: list[int | None] = []
    original = plan_corrected

    def noted(start: Solution, corrections: Any, limit: int | None, *args: Any, **more: Any) -> Any:
        limits.append(limit)
        return original(start, corrections, limit, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("autoshard.refine.replanning.plan_corrected", noted)
        patch.setattr("autoshard.refine.replanning.WORTH_A_ROUND", -1.0)
        refined(lambda data: (1e-6, int(0.9 * data.memory.peak_bytes)), tight)
    assert limits[0] is not None
    assert budget < limits[0] <= int(1.2 * budget)


def test_the_most_cautious_plan_is_sought_first_and_the_boldest_last(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    asked: list[float] = []

    def noted(start: Solution, *_: Any, margin: float = 0.0, **__: Any) -> Solution:
        asked.append(margin)
        return start

    monkeypatch.setattr(replanning, "plan_corrected", noted)
    monkeypatch.setattr(replanning, "WORTH_A_ROUND", -1.0)
    told = record(refined(lambda _: (1e-6, 100)).data)
    once = [0.0, *replanning.MARGINS]
    assert asked == [*once, *once]  # the second time with what the last compile showed
    assert told.ended.startswith("the plan repeats")
