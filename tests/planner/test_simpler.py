"""Plans that are easier to review."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.errors import InputError
from autoshard.lowering.lower import lower
from autoshard.planning import simpler
from autoshard.planning.searches import Searches
from autoshard.planning.simpler import Penalties
from experiments.workloads import Workload, get_workload
from experiments.workloads.registry import SMALL_WORKLOADS
from solvers import FORBIDDEN, Edge, NodeMemory, Problem, Result, Status, solve

PRESET = SMALL_WORKLOADS["embedding"]
WORKLOAD = PRESET.build("embedding", PRESET.config)


def array(*shape: int, dtype: Any = jnp.float32) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct(shape, dtype)


def planned_step(workload: Workload, **asked: Any) -> autoshard.Plan:
    return autoshard.optimize(
        workload.step,
        workload.state,
        workload.batch,
        donate_argnums=0,
        baselines=False,
        **asked,
    )


def planned(simplicity: float | None, relative_gap: float = 0.01, **asked: Any) -> autoshard.Plan:
    return planned_step(
        WORKLOAD,
        mesh="data=2,model=4",
        hardware="cpu-host",
        simplicity=simplicity,
        relative_gap=relative_gap,
        **asked,
    )


@pytest.fixture(scope="module")
def fastest() -> autoshard.Plan:
    return planned(0)


def test_a_simpler_plan_has_fewer_constraints_and_gives_up_no_more_than_was_allowed(
    fastest: autoshard.Plan,
) -> None:
    simple = planned(0.02)
    assert len(simple.data.wanted_uses) < len(fastest.data.wanted_uses)
    assert fastest.data.priced_seconds < simple.data.priced_seconds
    assert simple.data.priced_seconds <= 1.02 * fastest.data.priced_seconds
    assert simple.data.solver.bound_seconds == fastest.data.solver.bound_seconds


def test_a_simpler_plan_gives_up_as_much_as_it_may() -> None:
    uses = [len(planned(share).data.wanted_uses) for share in (0, 0.02, 0.2)]
    assert uses == sorted(uses, reverse=True)
    assert uses[-1] <= uses[0] / 2


def test_the_plan_that_a_simpler_one_is_made_of_is_not_lowered_where_that_gives_up_little(
    monkeypatch: pytest.MonkeyPatch, fastest: autoshard.Plan
) -> None:
    lowered = []

    def counted(encoder: Any, encoded: Any, decoded: Any, choices: tuple[int, ...]) -> Any:
        lowered.append(choices)
        return lower(encoder, encoded, decoded, choices)

    monkeypatch.setattr("autoshard.planning.solution.lower", counted)
    plan = planned(0.2)
    assert len(plan.data.wanted_uses) < len(fastest.data.wanted_uses)
    assert fastest.solution is not None
    assert lowered
    assert fastest.solution.choices not in lowered


def test_parts_of_a_simpler_plan_are_taken_by_what_each_penalty_costs_and_copies_together() -> None:
    apart, joined = np.array([0, 10]), np.array([0, 6])
    moves = np.array([[5, FORBIDDEN], [FORBIDDEN, 0]])  # one cannot change without the other
    problem = Problem(node_costs=(apart, joined, joined, apart, apart), edges=(Edge(1, 2, moves),))
    penalty = np.array([1, 0])
    penalties = Penalties((penalty,) * 5, (np.array([[1, 0], [0, 0]]),))

    def part(room: int) -> tuple[int, ...]:
        return penalties.simplest_part(problem, (0,) * 5, (1,) * 5, room)

    assert [part(room) for room in (6, 7, 36, 37)] == [
        (0, 0, 0, 0, 0),
        (0, 1, 1, 0, 0),
        (0, 1, 1, 0, 0),
        (1, 1, 1, 1, 1),
    ]


def test_a_part_that_gives_up_too_much_as_lowered_is_not_tried_twice(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    costs = [np.array([0, cost]) for cost in (10, 5, 30)]
    problem = Problem(node_costs=tuple(costs), edges=())
    before: Any = SimpleNamespace(choices=(0, 0, 0), encoded=SimpleNamespace(problem=problem))
    tried: list[tuple[int, ...]] = []

    def decided(_: Any, choices: tuple[int, ...]) -> Any:
        tried.append(choices)
        return SimpleNamespace(choices=choices)

    def given_up(_: Any, found: Any) -> float:
        return 1.04 if found.choices[0] else 0.5

    monkeypatch.setattr(simpler._Trade, "room", 24.0)
    monkeypatch.setattr(simpler._Trade, "decided", decided)
    monkeypatch.setattr(simpler._Trade, "given_up", given_up)
    penalties = Penalties((np.array([1, 0]),) * 3, ())
    unused: Any = None
    found = simpler._Trade(before, unused, None, penalties).part_of(before, (1, 1, 1))
    assert tried == [(1, 1, 0), (0, 1, 0)]  # the first one three times before
    assert found is not None
    assert found.choices == (0, 1, 0)


def test_a_plan_that_is_no_dearer_and_gives_up_too_much_as_lowered_is_tried_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(node_costs=(np.array([5, 0]),), edges=())
    before: Any = SimpleNamespace(choices=(0,), encoded=SimpleNamespace(problem=problem))
    tried: list[tuple[int, ...]] = []
    monkeypatch.setattr(simpler._Trade, "room", 24.0)
    monkeypatch.setattr(simpler._Trade, "decided", lambda _, choices: tried.append(choices))
    monkeypatch.setattr(simpler._Trade, "given_up", lambda *_: 10.0)
    penalties = Penalties((np.array([1, 0]),), ())
    unused: Any = None
    assert simpler._Trade(before, unused, None, penalties).part_of(before, (1,)) is None
    assert tried == [(1,)]


@pytest.mark.parametrize(("room", "price"), [(40.0, 320.0), (20.0, 160.0), (1.0, 80.0), (-5, 80)])
def test_the_first_price_follows_the_room_down_to_a_quarter_of_the_share(
    room: float, price: float, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = Problem(node_costs=(np.array([4000, 0]),), edges=())
    before: Any = SimpleNamespace(choices=(0,), encoded=SimpleNamespace(problem=problem))
    monkeypatch.setattr(simpler._Trade, "room", room)
    unused: Any = None
    trade = simpler._Trade(before, unused, None, Penalties((np.array([1, 0]),), ()))
    assert trade.first_price((0,)) == price
    assert trade.first_price((1,)) == 0.0


@pytest.mark.parametrize(("columns", "price"), [(0, 10.0), (5_000_000, 0.0)])
def test_nothing_is_sought_between_plans_so_near_that_a_search_may_miss_it(
    columns: int, price: float
) -> None:
    problem = Problem(node_costs=(np.array([4000, 4010]),), edges=())
    result = SimpleNamespace(reduced_columns=columns)  # of many, a search may miss 20 of 40
    encoded = SimpleNamespace(problem=problem)
    before: Any = SimpleNamespace(choices=(0,), encoded=encoded, result=result)
    unused: Any = None
    trade = simpler._Trade(before, unused, None, Penalties((np.array([1, 0]),), ()))
    assert trade.price_between((0,), (1,)) == price


def test_of_a_simpler_plan_that_does_not_fit_what_is_free_is_taken(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    problem = Problem(node_costs=(np.array([0, 10]), np.array([0, 0])), edges=())
    before: Any = SimpleNamespace(choices=(0, 0), encoded=SimpleNamespace(problem=problem))
    monkeypatch.setattr(simpler._Trade, "room", 24.0)
    monkeypatch.setattr(
        simpler._Trade, "decided", lambda _, choices: SimpleNamespace(choices=choices)
    )
    monkeypatch.setattr(
        simpler._Trade, "given_up", lambda _, one: math.inf if one.choices[0] else 0.0
    )
    unused: Any = None
    penalties = Penalties((np.array([1, 0]),) * 2, ())
    found = simpler._Trade(before, unused, None, penalties).part_of(before, (1, 1))
    assert found is not None
    assert found.choices == (0, 1)


def within_fifty(price: float) -> Any:
    """A plan of one node that holds 128 bytes for nothing or none for 10, at a limit of 50."""
    held = NodeMemory(node=0, usage=np.array([128, 0]), start=0, stop=1)
    problem = Problem((np.array([0, 10]),), node_memory=(held,), memory_limit=50)
    return SimpleNamespace(
        choices=(1,),
        encoded=SimpleNamespace(problem=problem),
        encoder=SimpleNamespace(memory_limit=50),
        result=SimpleNamespace(memory_prices={0: price} if price else {}, reduced_columns=0),
        alive_bytes=0,
        peak_bytes=0,
        is_lowered=True,
    )


@pytest.mark.parametrize(
    ("price", "statuses", "answer", "paid"),
    [
        pytest.param(0.0, {}, (0,), [0], id="memory is free"),
        pytest.param(0.25, {}, (1,), [31], id="fits"),
        pytest.param(0.0625, {}, (1,), [7, 15], id="does not fit before the price rises"),
        pytest.param(0.015625, {}, (0,), [1, 3, 7], id="fits at no price"),
        pytest.param(0.25, {1: Status.FEASIBLE}, None, [31], id="cut off"),
        pytest.param(0.0625, {2: Status.FEASIBLE}, None, [7, 15], id="cut off later"),
    ],
)
def test_simpler_choices_pay_for_memory_until_some_fit_or_a_clock_cuts(
    price: float, statuses: Mapping[int, Status], answer: tuple[int, ...] | None, paid: list[int]
) -> None:
    found: list[int] = []

    def another(priced: Problem, *_: Any, **__: Any) -> Result:
        assert priced.memory_limit is None
        found.append(int(priced.node_costs[0][0]))
        result = solve(priced)
        return replace(result, status=statuses.get(len(found), result.status))

    searches: Any = SimpleNamespace(another=another)
    none = Penalties((np.array([0, 0]),), ())
    trade = simpler._Trade(within_fifty(price), searches, None, none)
    assert trade.at(1, (1,)) == answer
    assert found == paid


def test_the_next_search_begins_at_half_the_price_of_memory_at_which_choices_fitted() -> None:
    prices: list[int] = []

    def another(priced: Problem, *_: Any, **__: Any) -> Result:
        prices.append(int(priced.node_costs[0][0]))
        return solve(priced)

    searches: Any = SimpleNamespace(another=another)
    none = Penalties((np.array([0, 0]),), ())
    trade = simpler._Trade(within_fifty(0.0225), searches, None, none)
    assert [trade.at(1, (1,)), trade.at(1, (1,))] == [(1,), (1,)]
    assert prices == [2, 5, 11, 5, 11]


def test_of_a_part_what_holds_far_more_by_the_problem_is_left_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    held = NodeMemory(node=0, usage=np.array([0, 500]), start=0, stop=1)
    costs = (np.array([0, 9]), np.array([0, 5]))
    problem = Problem(costs, node_memory=(held,), memory_limit=1000)
    before: Any = SimpleNamespace(
        choices=(0, 0),
        encoded=SimpleNamespace(problem=problem),
        encoder=SimpleNamespace(memory_limit=1000),
        alive_bytes=0,
        peak_bytes=980,
        is_lowered=True,
    )
    tried: list[tuple[int, ...]] = []

    def decided(_: Any, choices: tuple[int, ...]) -> Any:
        tried.append(choices)
        return SimpleNamespace(choices=choices)

    monkeypatch.setattr(simpler._Trade, "room", 300.0)
    monkeypatch.setattr(simpler._Trade, "decided", decided)
    monkeypatch.setattr(simpler._Trade, "given_up", lambda *_: 0.5)
    unused: Any = None
    trade = simpler._Trade(before, unused, None, Penalties((np.array([1, 0]),) * 2, ()))
    assert trade.part_of(before, (1, 0)) is None
    assert tried == []
    found = trade.part_of(before, (1, 1))
    assert found is not None
    assert found.choices == (0, 1)
    assert tried == [(0, 1)]


@pytest.mark.parametrize(
    ("limit", "peak", "room"), [(1000, 400, 300.0), (1000, 990, 10.0), (None, 400, math.inf)]
)
def test_a_simpler_plan_may_take_half_of_the_memory_that_is_free(
    limit: int | None, peak: int, room: float
) -> None:
    before: Any = SimpleNamespace(
        encoder=SimpleNamespace(memory_limit=limit),
        peak_bytes=peak,
        step_seconds=1.0,
        is_lowered=True,
    )
    unused: Any = None
    trade = simpler._Trade(before, unused, None, unused)
    assert trade.more_bytes == room

    def given_up(more_bytes: int, seconds: float) -> float:
        after: Any = SimpleNamespace(peak_bytes=peak + more_bytes, step_seconds=seconds)
        return trade.given_up(after)

    assert given_up(0, 1.005) == pytest.approx(0.5)
    if limit is not None:
        assert given_up(int(room), 1.0) == 1.0
        assert given_up(limit, 1.0) == math.inf


@pytest.mark.parametrize(("num_columns", "share"), [(1_000_000, 0.02), (9_000_000, 0.5)])
def test_searches_for_simpler_plans_of_large_problems_end_farther_from_the_best(
    num_columns: int, share: float
) -> None:
    asked = []

    def another(priced: Problem, *_: Any, relative_gap: float, **__: Any) -> Result:
        asked.append(relative_gap)
        return solve(priced)

    problem = Problem((np.array([1000, 1020]),))
    solution: Any = SimpleNamespace(
        encoded=SimpleNamespace(problem=problem),
        choices=(0,),
        result=replace(solve(problem), reduced_columns=num_columns),
    )
    penalties = Penalties((np.array([1, 0]),), ())
    searches: Any = SimpleNamespace(another=another)
    trade = simpler._Trade(solution, searches, 0.01, penalties)
    assert trade.at(0, (0,)) == (0,)
    assert asked == [pytest.approx(share * 0.01)]


def test_a_plan_whose_search_the_clock_cuts_stays_as_it_is(
    fastest: autoshard.Plan, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = Searches.another

    def cut(self: Searches, problem: Problem, *hints: Sequence[int], **options: Any) -> Result:
        return replace(whole(self, problem, *hints, **options), status=Status.FEASIBLE)

    monkeypatch.setattr(Searches, "another", cut)
    assert planned(0.02).data.values == fastest.data.values


@pytest.mark.parametrize(
    "asked",
    [
        {"dense": '[{"data"}p1, {?}]', "tables[1]": '[{"model", "data"}, {?}]'},
        {"dense": '[{"data"}, {?}]', "tables[0]": '[{"model"}p1, {?}]'},  # 5 uses before and after
    ],
)
def test_a_plan_in_rounds_has_fewer_constraints_for_the_last_one(asked: dict[str, str]) -> None:
    names = {"dense": "batch['dense']"} | {
        f"tables[{number}]": f"state['params']['tables'][{number}]" for number in (0, 1)
    }
    constraints = {names[name]: sharding for name, sharding in asked.items()}
    found = [planned(share, constraints=constraints) for share in (0, 0.1)]
    counts = [len(plan.constraints) for plan in found]
    assert [len(plan.data.rounds) for plan in found] == [2, 2]
    assert counts[1] < counts[0]


def narrowed(params: Any, x: Any) -> Any:
    for weight in params:
        x = jnp.tanh(x @ weight.astype(jnp.bfloat16))
    return x


def test_a_move_takes_one_constraint_from_an_argument_and_two_from_what_an_op_makes() -> None:
    weights, x = array(512, 512), array(4096, 512, dtype=jnp.bfloat16)
    plan = autoshard.optimize(
        narrowed,
        [weights, weights],
        x,
        mesh="data=8",
        hardware="tpu-v5p",
        in_shardings=([P("data"), P("data")], P("data")),
        baselines=False,
    )
    solution = plan.solution
    assert solution is not None
    encoded, graph = solution.encoded, solution.graph
    most = {
        graph.maker(graph.ops[index].operands[position]).name: edges.max()
        for (index, position), edges in (
            (read, simpler._num_constraints(solution)[number])
            for read, number in encoded.edge_by_read.items()
        )
    }
    assert most["argument"] == 1
    assert most["convert"] == 2


def test_a_plan_that_ends_near_its_gap_is_made_simpler_too() -> None:
    workload = get_workload("llama_7b", layers=2)
    plan = planned_step(workload, mesh="data=4,model=8", hardware="tpu-v5p", relative_gap=0.005)
    assert len(plan.constraints) <= 40  # 52 where the first price followed what the gap left
    assert plan.data.solver.gap <= 0.005


def test_by_default_the_plan_stays_within_the_gap(fastest: autoshard.Plan) -> None:
    usual = planned(None)
    assert usual.data.solver.gap <= 0.01
    assert len(usual.data.wanted_uses) <= len(fastest.data.wanted_uses)


def test_who_asks_for_the_best_plan_gets_it(fastest: autoshard.Plan) -> None:
    assert planned(None, relative_gap=0.0).data.priced_seconds == fastest.data.priced_seconds


def test_a_negative_simplicity_is_no_amount() -> None:
    with pytest.raises(InputError, match="simplicity is -1, which is no amount"):
        planned(-1)
