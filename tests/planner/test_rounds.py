"""Rounds: smaller priorities are decided first, later ones only extend."""

from __future__ import annotations

import gc
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from jax.sharding import AxisType
from jax.sharding import PartitionSpec as P

from autoshard.candidates.candidate import Candidate
from autoshard.candidates.op_candidates import read_pins
from autoshard.candidates.rounds import ONLY_ROUND, extends, parts_in_use, priorities_of, rounds_of
from autoshard.errors import ConstraintError
from autoshard.frontend.module import ModuleNames, module_to_graph
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Rule
from autoshard.layouts import refines
from autoshard.planning import searches, stages
from autoshard.planning.solution import DecidedRound, Solution
from autoshard.sharding import AxisRef, DimSharding, Sharding, parse_sharding
from autoshard.wishes.pinned import Pin, read_pin
from autoshard.wishes.wishes import Wishes
from solvers import Problem, Result, Status, solve
from tests.planner.graphs import Program, parts_of, plan, wishes_for
from tests.planner.traced import planned

MESH = "data=4,model=2"
DATA, MODEL = 0, 1
BORDERS = (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL)


def pin(text: str, shape: tuple[int, ...] = (16, 16)) -> Pin:
    return read_pin(parse_sharding(text), parts_of(MESH), shape, "x")


@pytest.mark.parametrize(
    ("texts", "priorities"),
    [
        (['[{"data"}, {}]'], (0,)),
        (['[{"data"}p3, {"model"}p3]'], (3,)),
        (['[{"data"}, {"model"}p2]', '[{"data"}p5, {}]'], (0, 2, 5)),
        (['[{}, {"model"}p1]', "[{?}, {?}]"], (1,)),
        (["[{?}p2, {}]"], (2,)),
        (["[{}, {}]"], ()),
    ],
)
def test_the_rounds_are_the_priorities_of_dimensions_that_ask_for_something(
    texts: list[str], priorities: tuple[int, ...]
) -> None:
    assert priorities_of(map(pin, texts)) == priorities


def test_a_dimension_that_waits_is_held_uncut_and_keeps_its_axes() -> None:
    asked = pin('[{"data", ?}p2, {?}]')
    held = asked.in_round(0)
    assert (held.asked, held.is_open) == (((), ()), (False, True))
    assert held.admits(((), (MODEL,)))
    assert not held.admits(((), (DATA,)))
    assert not held.admits(((MODEL,), ()))
    assert asked.in_round(2) == asked


def test_replicated_axes_bind_in_every_round() -> None:
    held = pin('<@mesh, [{?}p2, {?}], replicated={"model"}>')
    assert not held.in_round(0).admits(((), (MODEL,)))
    assert held.in_round(0).admits(((), (DATA,)))


def test_axes_in_use_are_those_that_binding_dimensions_name() -> None:
    pins = [pin('[{"data"}, {"model"}p1]'), pin('[{"model"}p2, {}]')]
    assert parts_in_use(pins, 0, parts_of(MESH)) == {DATA}
    assert parts_in_use(pins, 1, parts_of(MESH)) == {DATA, MODEL}


def test_a_candidate_extends_another_where_it_cuts_further_at_minor_ends() -> None:
    decided = Candidate((((DATA,), ()),), (((DATA,), ()),), 4)
    further = Candidate((((DATA, MODEL), ()),), (((DATA, MODEL), ()),), 8)
    before = Candidate((((MODEL, DATA), ()),), (((MODEL, DATA), ()),), 8)
    assert extends(further, decided)
    assert extends(decided, decided)
    assert not extends(before, decided)
    assert not extends(decided, further)


def test_a_sum_that_was_reduced_whole_may_be_scattered_later() -> None:
    whole = Candidate((((), (DATA,)),), (((),),), 4, (DATA,), (), ((),))
    scattered = Candidate((((), (DATA,)),), (((DATA,),),), 4, (), (DATA,), ((),))
    assert extends(scattered, whole)
    assert not extends(whole, scattered)


def mlp() -> Graph:
    """Two layers: `tanh(x @ w1) @ w2`."""
    program = Program()
    x = program.argument(64, 512, name="x")
    w1 = program.argument(512, 1024, name="w1")
    w2 = program.argument(1024, 512, name="w2")
    hidden = program.elementwise(program.matmul(x, w1), name="tanh")
    return program.graph(program.matmul(hidden, w2))


def asked(graph: Graph, *texts: str) -> Wishes:
    """Wishes for the first arguments; "" leaves one free."""
    return wishes_for(
        graph, {place: parse_sharding(text) for place, text in enumerate(texts) if text}
    )


BATCH_THEN_MEGATRON = ('[{"data"}, {}]', '[{}, {"model"}p1]', '[{"model"}p1, {}]')


def cuts(solution: Solution, decided: DecidedRound) -> list[str]:
    """Shardings after a round of all values that ops make, without arguments."""
    graph, parts = solution.graph, solution.encoded.parts
    return [
        str([tuple(map(str, dim.axes)) for dim in parts.to_sharding(layout).dims])
        for value, layout in zip(graph.values, decided.decoded.layouts, strict=True)
        if graph.ops[value.op].kind is OpKind.COMPUTE
    ]


def test_batch_first_then_megatron() -> None:
    graph = mlp()
    solution = plan(graph, MESH, asked(graph, *BATCH_THEN_MEGATRON))
    first, second = solution.rounds
    batch = """[('"data"',), ()]"""
    both = """[('"data"',), ('"model"',)]"""
    assert [found.round.priority for found in solution.rounds] == [0, 1]
    assert cuts(solution, first) == [batch, batch, batch]
    assert cuts(solution, second)[:2] == [both, both]
    assert first.estimate.collective_bytes == 0
    assert {c.axes for c in solution.account.collectives} == {("model",)}
    assert second.estimate is solution.estimate


def test_the_last_round_is_the_plan() -> None:
    graph = mlp()
    solution = plan(graph, MESH, asked(graph, *BATCH_THEN_MEGATRON))
    assert solution.rounds[-1].decoded is solution.decoded
    assert solution.rounds[-1].estimate is solution.estimate


def test_one_priority_is_one_round_that_limits_nothing() -> None:
    graph = mlp()
    wishes = asked(graph, '[{"data"}p7, {}]', '[{}, {"model"}p7]')
    pins = read_pins(graph, parts_of(MESH), wishes)
    assert rounds_of(graph, pins, parts_of(MESH), wishes) == (ONLY_ROUND,)
    assert plan(graph, MESH, wishes).rounds == ()


def test_swapped_priorities_are_other_rounds_and_another_plan() -> None:
    """What comes first takes an axis that both would like."""
    program = Program()
    x = program.argument(64, 4096, name="x")
    w = program.argument(4096, 64, name="w")
    graph = program.graph(program.elementwise(program.matmul(x, w), name="tanh"))
    rows, columns = '[{"data"}%s, {}]', '[{}, {"data"}%s]'
    by_rows = plan(graph, MESH, asked(graph, rows % "", columns % "p1"))
    by_columns = plan(graph, MESH, asked(graph, rows % "p1", columns % ""))
    made = graph.ops[2].results[0]
    assert by_rows.rounds[0].decoded.layouts[made] == ((DATA,), ())
    assert by_columns.rounds[0].decoded.layouts[made] == ((), (DATA,))
    assert by_rows.decoded.layouts[made][0][:1] == (DATA,)
    assert by_columns.decoded.layouts[made][1][:1] == (DATA,)


def test_the_memory_limit_binds_in_the_last_round_alone() -> None:
    graph = mlp()
    wishes = asked(graph, *BATCH_THEN_MEGATRON)
    roomy = plan(graph, MESH, wishes)
    first, second = (found.estimate.memory.peak_bytes for found in roomy.rounds)
    assert second < first
    tight = plan(graph, MESH, wishes, memory_limit=(first + second) // 2)
    assert tight.is_feasible
    assert tight.rounds[0].estimate.memory.peak_bytes == first


def test_a_last_round_that_does_not_fit_is_infeasible_and_keeps_its_rounds() -> None:
    graph = mlp()
    wishes = asked(graph, *BATCH_THEN_MEGATRON)
    solution = plan(graph, MESH, wishes, memory_limit=1000)
    assert solution.result.status is Status.INFEASIBLE
    assert solution.account.memory.peak_bytes > 1000
    assert len(solution.rounds) == 2


def test_a_pin_that_no_extension_of_an_earlier_round_meets_is_named_with_what_was_decided() -> None:
    """The sum over rows cut by an axis cannot have its columns cut by the same."""
    program = Program()
    x = program.argument(4096, 64, name="x")
    rule = Rule((4096, 64), (((0,), (1,)),), (((0,), (1,)), ((1,),)), frozenset({0}))
    kept, summed = program.compute("sums", (x,), [(4096, 64), (64,)], rule, OpClass.REDUCE)
    graph = program.graph(kept, summed)
    wishes = asked(graph, '[{"data"}, {}]')
    wishes = replace(wishes, values={summed: parse_sharding('[{"data"}p1]')})
    with pytest.raises(ConstraintError) as caught:
        plan(graph, MESH, wishes)
    assert str(caught.value) == (
        'no sharding of sums ends in <@mesh, [{"data"}p1]> and extends what was decided before,'
        ' which makes <@mesh, [{"data"}, {}]>, <@mesh, [{}]> of <@mesh, [{"data"}, {}]>\n'
        "  where: value made at step.py:1 (step): f32[64]; in the round of priority 1, which keeps"
        " what priority 0 decided\n"
        "  fix: give both one priority, or swap theirs; or put a sharding constraint after it,"
        " which may reshard"
    )
    at_once = replace(wishes, values={summed: parse_sharding('[{"data"}]')})
    assert plan(graph, MESH, at_once).is_feasible


def test_tensors_that_must_be_alike_and_have_two_priorities_are_named_with_the_round() -> None:
    program = Program()
    w = program.argument(16, 16, name="w")
    graph = program.graph(program.elementwise(w, name="negate"))
    wishes = wishes_for(
        graph,
        {0: parse_sharding('[{"data", ?}, {}]')},
        {0: parse_sharding('[{"data", "model"}p1, {}]')},
        alike=[(0, 0)],
    )
    with pytest.raises(ConstraintError) as caught:
        plan(graph, MESH, wishes)
    assert caught.value.where == (
        "an argument given up (donated) and the result that replaces it; in the round of priority"
        " 0, in which dimensions of greater ones are held uncut"
    )
    assert caught.value.fix.startswith("give both one priority; or ask for one sharding")


def test_a_constraint_in_the_program_waits_for_its_round_too() -> None:
    program = Program()
    x, w = program.argument(64, 512), program.argument(512, 512)
    made = program.constraint(program.matmul(x, w), '<@mesh, [{"data"}, {"model"}p1]>')
    graph = program.graph(program.elementwise(made, name="tanh"))
    first, second = plan(graph, MESH).rounds
    assert first.decoded.layouts[made] == ((DATA,), ())
    assert second.decoded.layouts[made] == ((DATA,), (MODEL,))


def test_priorities_of_a_constraint_in_a_module_are_read() -> None:
    module = """
      sdy.mesh @mesh = <["data"=4, "model"=2]>
      func.func @main(%x: tensor<64x512xf32>) -> tensor<64x512xf32> {
        %0 = stablehlo.tanh %x : tensor<64x512xf32>
        %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {"model"}p1]> : tensor<64x512xf32>
        %2 = stablehlo.negate %1 : tensor<64x512xf32>
        return %2 : tensor<64x512xf32>
      }"""
    names = ModuleNames(arguments=["x"], results=["y"], donated=[False])
    graph = module_to_graph(module, names)
    first, second = plan(graph, MESH).rounds
    (constraint,) = (op for op in graph.ops if op.kind is OpKind.CONSTRAINT)
    assert first.decoded.layouts[constraint.results[0]] == ((DATA,), ())
    assert second.decoded.layouts[constraint.results[0]] == ((DATA,), (MODEL,))


def test_a_sharding_on_another_mesh_keeps_its_priorities() -> None:
    """Its devices are in an order that axes of the plan's mesh cannot say."""
    program = Program()
    x = program.argument(64, 64)
    other = '<mesh<["a"=4, "b"=2], device_ids=[0, 3, 5, 6, 1, 2, 4, 7]>, [{"a"}p1, {}]>'
    made = program.constraint(x, other)
    graph = program.graph(made)
    solution = plan(graph, MESH, asked(graph, '[{"data"}, {}]'))
    first, second = solution.rounds
    assert first.decoded.layouts[made] == ((), ())
    assert solution.encoded.parts.num_shards(second.decoded.layouts[made][0]) == 4


def test_the_time_left_is_shared_among_the_rounds_left(monkeypatch: pytest.MonkeyPatch) -> None:
    given, clock = [], [0.0]

    def spy(problem: Problem, **options: Any) -> Result:
        given.append(options["time_limit_seconds"])
        clock.append(clock[-1] + 3.0)
        return solve(problem, **options)

    monkeypatch.setattr(searches, "solve", spy)
    monkeypatch.setattr(stages, "time", SimpleNamespace(perf_counter=lambda: clock[-1]))
    graph = mlp()
    wishes = asked(graph, '[{"data"}, {}]', '[{}, {"model"}p1]', '[{"model"}p4, {}]')
    plan(graph, MESH, wishes)  # with 20 s for all
    assert given == [20 / 3, 17 / 2, 14]


def test_asked_for_the_best_so_far_in_one_round_the_next_take_the_first_that_they_find(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gaps = []

    def interrupted_once(problem: Problem, **options: Any) -> Result:
        gaps.append(options["relative_gap"])
        return replace(solve(problem, **options), is_interrupted=len(gaps) == 2)

    monkeypatch.setattr(searches, "solve", interrupted_once)
    graph = mlp()
    wishes = asked(graph, '[{"data"}, {}]', '[{}, {"model"}p1]', '[{"model"}p4, {}]')
    solution = plan(graph, MESH, wishes)
    assert gaps == [gaps[0], gaps[0], searches.ANY_GAP]
    assert solution.result.is_interrupted
    assert len(solution.rounds) == 3
    is_proven = solution.result.gap <= gaps[0]
    assert (solution.result.status is not Status.FEASIBLE) == is_proven


def test_a_sub_axis_is_in_use_apart_from_the_rest_of_its_axis() -> None:
    graph = mlp()
    solution = plan(graph, "data=8", asked(graph, '[{"data":(1)2}, {}]', '[{}, {"data":(2)4}p1]'))
    first, _ = solution.rounds
    assert first.round.usable == frozenset({0})
    used = {p for layout in first.decoded.layouts for dim in layout for p in dim}
    assert used == {0}


def test_what_a_shard_map_makes_manual_is_cut_by_it_in_every_round() -> None:
    mesh = jax.make_mesh((4, 2), ("data", "model"), axis_types=(AxisType.Auto,) * 2)

    def fn(x: Any, w: Any) -> Any:
        body = jax.shard_map(
            lambda a, b: jnp.tanh(a @ b) @ b.T,
            mesh=mesh,
            in_specs=(P("data"), P()),
            out_specs=P("data"),
            axis_names={"data"},
        )
        return body(x, w)

    big = jax.ShapeDtypeStruct((2048, 1024), jnp.float32)
    wide = jax.ShapeDtypeStruct((1024, 1024), jnp.float32)
    columns = parse_sharding('[{}, {"model"}p1]')
    solution = planned(
        fn, big, wide, mesh=MESH, in_shardings=(None, columns), out_shardings=P("data")
    )
    first, second = solution.rounds
    assert len({op.kind for op in solution.graph.ops} & set(BORDERS)) == 2
    for op in solution.graph.ops:
        if op.kind in BORDERS:
            before, after = (found.decoded.candidates[op.index] for found in (first, second))
            assert extends(after, before)
    assert first.round.usable == frozenset({DATA})
    inside = [
        layout
        for value, layout in zip(solution.graph.values, second.decoded.layouts, strict=True)
        if solution.graph.manual_axes(solution.graph.ops[value.op].region)
    ]
    assert any(MODEL in dim for layout in inside for dim in layout)


def some_program(*, is_tied: bool) -> Graph:
    """A layer and the way back, a loop, a constraint that pins nothing, and a sum."""
    program = Program()
    x = program.argument(16, 32, name="x")
    w = program.argument(32, 16, name="w")
    v = program.argument(16, 32, name="v")
    hidden = program.elementwise(program.matmul(x, w), name="tanh")
    back = program.matmul(hidden, v)
    carried = program.carry(back)
    program.open_loop(3)
    program.loop_back(carried, program.elementwise(carried, x))
    program.close_loop()
    shown = program.constraint(carried, "<@mesh, [{?}, {?}]>")
    negated = program.elementwise(w, name="negate")
    return program.graph(program.sum(shown), negated, groups=((v, back),) if is_tied else ())


@st.composite
def shardings(draw: st.DrawFn, shape: tuple[int, ...]) -> Sharding:
    """A sharding with priorities for a tensor whose dimensions all axes divide together."""
    axes = draw(st.permutations(["data", "model"]))
    cut = draw(st.lists(st.sampled_from(range(len(shape) + 1)), min_size=2, max_size=2))
    dims = []
    for place in range(len(shape)):
        used = tuple(AxisRef(a) for a, where in zip(axes, cut, strict=True) if where == place)
        is_open = draw(st.booleans())
        priority = draw(st.sampled_from([None, 0, 1, 3])) if used or is_open else None
        dims.append(DimSharding(used, is_open, priority))
    return Sharding(tuple(dims))


@st.composite
def wished(draw: st.DrawFn) -> tuple[Graph, Wishes]:
    is_tied = draw(st.booleans())
    graph = some_program(is_tied=is_tied)
    shapes = [graph.values[op.results[0]].shape for op in graph.arguments]
    ends = [graph.values[op.operands[0]].shape for op in graph.results]
    arguments = {i: draw(shardings(s)) for i, s in enumerate(shapes) if draw(st.booleans())}
    results = {i: draw(shardings(s)) for i, s in enumerate(ends) if draw(st.booleans())}
    if is_tied:  # the weight and what replaces it end alike, so only one of them is asked for
        results.pop(1, None)
    return graph, wishes_for(graph, arguments, results, alike=[(1, 1)] if is_tied else [])


thorough = settings(deadline=None, max_examples=40, suppress_health_check=[HealthCheck.too_slow])


@thorough
@given(asked=wished())
def test_each_round_extends_the_one_before(asked: tuple[Graph, Wishes]) -> None:
    solution = plan(asked[0], MESH, asked[1])
    for before, after in zip(solution.rounds, solution.rounds[1:], strict=False):
        for op, candidate in after.decoded.candidates.items():
            assert extends(candidate, before.decoded.candidates[op])
        for finer, coarser in zip(after.decoded.layouts, before.decoded.layouts, strict=True):
            assert refines(finer, coarser)


@thorough
@given(asked=wished())
def test_each_round_meets_the_dimensions_that_bind_in_it(asked: tuple[Graph, Wishes]) -> None:
    graph, wishes = asked
    solution = plan(graph, MESH, wishes)
    pins = read_pins(graph, solution.encoded.parts, wishes)
    for found in solution.rounds:
        priority = found.round.priority
        assert priority is not None
        for op, of_op in pins.items():
            candidate = found.decoded.candidates[op]
            for asked_pin in of_op.values():
                (layout,) = candidate.side(is_result=bool(graph.ops[op].results))
                for dim, want, have in zip(
                    asked_pin.sharding.dims, asked_pin.asked, layout, strict=True
                ):
                    if dim.round > priority:
                        assert have == ()
                    else:
                        assert have[: len(want)] == want
                        assert dim.is_open or have == want


@thorough
@given(asked=wished())
def test_a_round_cuts_only_by_axes_in_use(asked: tuple[Graph, Wishes]) -> None:
    solution = plan(asked[0], MESH, asked[1])
    for found in solution.rounds[:-1]:
        used = {p for layout in found.decoded.layouts for dim in layout for p in dim}
        assert found.round.usable is not None
        assert used <= found.round.usable


@thorough
@given(asked=wished(), priority=st.integers(1, 5))
def test_one_priority_everywhere_is_no_priority(asked: tuple[Graph, Wishes], priority: int) -> None:
    graph, wishes = asked

    def with_priority(sharding: Sharding | None, number: int | None) -> Sharding | None:
        if sharding is None:
            return None
        dims = tuple(
            replace(dim, priority=number if dim.axes or dim.is_open else None)
            for dim in sharding.dims
        )
        return replace(sharding, dims=dims)

    plain, marked = (
        plan(
            graph,
            MESH,
            replace(
                wishes,
                arguments=[with_priority(s, number) for s in wishes.arguments],
                results=[with_priority(s, number) for s in wishes.results],
            ),
        )
        for number in (None, priority)
    )
    assert plain.choices == marked.choices
    assert plain.account == marked.account
    assert plain.rounds == marked.rounds == ()


@thorough
@given(asked=wished())
def test_a_plan_in_rounds_never_costs_less_than_one_that_decides_all_at_once(
    asked: tuple[Graph, Wishes],
) -> None:
    graph, wishes = asked
    solution = plan(graph, MESH, wishes)

    def without(sharding: Sharding | None) -> Sharding | None:
        if sharding is None:
            return None
        dims = tuple(replace(dim, priority=None) for dim in sharding.dims)
        return replace(sharding, dims=dims)

    at_once = plan(
        graph,
        MESH,
        replace(
            wishes,
            arguments=list(map(without, wishes.arguments)),
            results=list(map(without, wishes.results)),
        ),
    )
    assert solution.result.cost is not None
    assert at_once.result.cost is not None
    assert at_once.result.cost <= solution.result.cost


@pytest.mark.parametrize("was_on", [True, False])
def test_cycles_are_looked_for_in_searches_alone_and_afterwards_as_before(*, was_on: bool) -> None:
    clock, seen = stages.Stages(), {}

    def fail_in(stage: str) -> None:
        with clock.time(stage):
            seen[stage] = gc.isenabled()
            raise ValueError(stage)

    before = gc.isenabled()
    (gc.enable if was_on else gc.disable)()
    try:
        for stage in ("buffers", "solve"):
            with pytest.raises(ValueError, match=stage):
                fail_in(stage)
        assert seen == {"buffers": False, "solve": was_on}
        assert gc.isenabled() == was_on
    finally:
        (gc.enable if before else gc.disable)()
