"""What waits for later rounds: a tensor's dimensions, and the same ones of what it is made into."""

from __future__ import annotations

from autoshard.candidates.op_candidates import read_pins
from autoshard.graph.program import Graph
from autoshard.graph.rule import Rule
from autoshard.sharding import parse_sharding
from autoshard.wishes.waiting import Waiting, waiting_dims
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import Program, free_wishes, parts_of, plan, wishes_for

MESH = "data=4,model=2"
DATA, MODEL = 0, 1


def waits(dims: set[int], parts: set[int]) -> Waiting:
    return Waiting(frozenset(dims), frozenset(parts))


def found(graph: Graph, wishes: Wishes, priority: int = 0) -> dict[int, Waiting]:
    pins = read_pins(graph, parts_of(MESH), wishes)
    return waiting_dims(graph, pins, wishes, priority)


def asked(graph: Graph, *texts: str) -> Wishes:
    pairs = ((place, parse_sharding(text)) for place, text in enumerate(texts) if text)
    return wishes_for(graph, dict(pairs))


def test_a_moment_waits_with_the_gradient_and_the_weight_it_is_made_into() -> None:
    program = Program()
    x, weight, moment = program.argument(8, 16), program.argument(16, 32), program.argument(16, 32)
    hidden = program.matmul(x, weight)
    updated = program.elementwise(weight, moment)
    graph = program.graph(hidden, updated)
    left = waits({0}, {DATA})
    assert found(graph, asked(graph, "", "", '[{"data"}p1, {}]')) == {
        weight: left,
        moment: left,
        updated: left,
    }


def test_what_a_product_makes_of_a_weight_does_not_wait() -> None:
    program = Program()
    x, weight = program.argument(8, 16), program.argument(16, 32)
    graph = program.graph(program.matmul(x, weight))
    assert set(found(graph, asked(graph, "", '[{}, {"model"}p1]'))) == {weight}


def test_nothing_waits_once_its_round_has_come() -> None:
    program = Program()
    moment = program.argument(16, 32)
    graph = program.graph(program.elementwise(moment, name="negate"))
    wishes = asked(graph, '[{"data"}p2, {"model"}p1]')
    assert found(graph, wishes, 1)[moment] == waits({0}, {DATA})
    assert found(graph, wishes, 2) == {}


def test_a_dimension_cut_by_now_waits_for_nobody() -> None:
    program = Program()
    first, second = program.argument(16, 32), program.argument(16, 32)
    made = program.elementwise(first, second)
    graph = program.graph(made)
    wishes = asked(graph, '[{"data"}, {}]', '[{"data"}p1, {"model"}p1]')
    assert found(graph, wishes)[made] == waits({1}, {MODEL})


def test_what_must_be_alike_waits_together() -> None:
    program = Program()
    one, other = program.argument(16, 16), program.argument(16, 16)
    graph = program.graph(one, other, groups=((one, other),))
    left = waits({1}, {MODEL})
    assert found(graph, asked(graph, '[{}, {"model"}p1]')) == {one: left, other: left}


def test_an_open_dimension_with_a_priority_waits_for_whatever_comes() -> None:
    program = Program()
    x = program.argument(16, 16)
    graph = program.graph(x)
    wishes = asked(graph, "[{?}p1, {}]")
    assert found(graph, wishes) == {x: waits({0}, set())}
    assert found(graph, free_wishes(graph)) == {}


def test_a_layout_leaves_what_waits_where_it_neither_cuts_it_nor_takes_its_parts() -> None:
    left = waits({0}, {DATA})
    assert left.is_left_by(((), (MODEL,)))
    assert not left.is_left_by(((MODEL,), ()))
    assert not left.is_left_by(((), (DATA,)))


def test_a_gradient_is_summed_whole_until_the_moment_it_goes_into_is_cut() -> None:
    """It could be scattered in the first round; then over the dimension that the moment wants."""
    program = Program()
    x, error = program.argument(512, 1024), program.argument(512, 1024)
    moment = program.argument(1024, 1024)
    rule = Rule((1024, 1024, 512), (((2,), (0,)), ((2,), (1,))), (((0,), (1,)),), frozenset({2}))
    (gradient,) = program.compute("dot_general", (x, error), [(1024, 1024)], rule)
    graph = program.graph(program.elementwise(gradient, moment))
    batch = '[{"data"}, {}]'
    solution = plan(graph, MESH, asked(graph, batch, batch, '[{"data"}p1, {}]'))
    first, last = (found.decoded.layouts[gradient] for found in solution.rounds)
    assert first == ((), ())
    assert last[0][:1] == (DATA,)
