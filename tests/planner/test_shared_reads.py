"""Values that several ops read: their reshard is paid once, and its copy lives as long."""

from __future__ import annotations

from itertools import product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.backends import get_backend
from autoshard.costing.convert_motion import ReadBits
from autoshard.encoding import encode
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.encoding.shared_reads import SharedRead, shared_reads
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, OpClass
from autoshard.graph.rule import identity_rule
from autoshard.layouts import Layout
from autoshard.sharding import parse_sharding
from autoshard.wishes.wishes import Wishes
from solvers import FORBIDDEN, evaluate, solve
from tests.planner.graphs import Program, encoder_for, estimated, plan, wishes_for


def readers(count: int) -> Graph:
    """One activation multiplied with several weights; all of it is given back."""
    program = Program()
    x = program.argument(64, 64, name="x")
    weights = [program.argument(64, 64, name=f"w{i}") for i in range(count)]
    return program.graph(*(program.matmul(x, w) for w in weights))


def chain() -> Graph:
    """`x` is read by a product and, later, by a sum with its result."""
    program = Program()
    x, w = program.argument(32, 32), program.argument(32, 32)
    return program.graph(program.elementwise(program.matmul(x, w), x))


def in_loop() -> Graph:
    """A carry that two products of a loop body read."""
    program = Program()
    w, v = program.argument(16, 16), program.argument(16, 16)
    carried = program.carry(program.argument(16, 16))
    program.open_loop(3.0)
    back = program.elementwise(program.matmul(carried, w), program.matmul(carried, v))
    program.loop_back(carried, back)
    program.close_loop()
    return program.graph(carried)


PROGRAMS = {"two": lambda: readers(2), "three": lambda: readers(3), "chain": chain, "loop": in_loop}


def reads_in(encoded: Encoded) -> tuple[SharedRead, ...]:
    return encoded.reads


def accounted(encoder: Encoder, encoded: Encoded, choices: tuple[int, ...]) -> float:
    return estimated(encoder, encoded, choices).blocking_seconds * PICOSECONDS


def test_readers_of_one_value_in_one_body_share_a_node() -> None:
    encoded = encoder_for(readers(3), "x=2,y=2").encode()
    (read,) = reads_in(encoded)
    assert [encoded.graph.ops[op].name for op, _ in read.reads] == ["dot_general"] * 3
    assert [position for _, position in read.reads] == [0, 0, 0]
    assert read.repeat == 1.0
    assert (read.start, read.stop) == (read.reads[0][0], read.reads[-1][0] + 1)
    maker = encoded.maker(len(encoded.ops))
    assert encoded.graph.values[maker.results[0]].name == "x"


def test_a_value_read_once_has_none() -> None:
    assert reads_in(encoder_for(readers(1), "x=2,y=2").encode()) == ()


def test_loops_and_results_keep_copies_of_their_own() -> None:
    program = Program()
    x = program.argument(16, 16)
    made = program.elementwise(x, name="tanh")
    graph = program.graph(made, program.elementwise(made, name="tanh"))
    assert reads_in(encoder_for(graph, "x=4").encode()) == ()


def test_readers_inside_a_loop_share_with_those_inside_only() -> None:
    encoded = encoder_for(in_loop(), "x=2,y=2").encode()
    (read,) = reads_in(encoded)
    assert read.repeat == 3.0
    assert {encoded.graph.ops[op].region for op, _ in read.reads} == {1}


def test_what_the_maker_makes_is_always_offered() -> None:
    encoded = encoder_for(readers(2), "x=2,y=2").encode()
    (read,) = reads_in(encoded)
    made = {candidate.results[0] for candidate in encoded.candidates[0]}
    assert made <= set(read.layouts)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(PROGRAMS)), data=st.data())
def test_the_account_of_any_choices_is_at_most_their_price(name: str, data: st.DataObject) -> None:
    encoder = encoder_for(PROGRAMS[name](), "x=2,y=2")
    encoded = encoder.encode()
    choices = tuple(data.draw(st.integers(0, len(c) - 1)) for c in encoded.problem.node_costs)
    cost = evaluate(encoded.problem, choices).cost
    if cost < FORBIDDEN:
        terms = len(encoded.ops) + 2 * len(encoded.problem.edges)
        assert accounted(encoder, encoded, choices) <= cost + terms


@pytest.mark.parametrize("name", ["two", "chain"])
def test_the_optimum_is_no_worse_than_paying_every_reader(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    shared = solve(encoder_for(PROGRAMS[name](), "x=2,y=2").encode().problem, relative_gap=0.0)
    monkeypatch.setattr(encode, "shared_reads", lambda *_: ())
    apart = solve(encoder_for(PROGRAMS[name](), "x=2,y=2").encode().problem, relative_gap=0.0)
    assert shared.cost is not None
    assert apart.cost is not None
    assert shared.cost <= apart.cost


@pytest.mark.parametrize("name", [pytest.param("two", marks=pytest.mark.slow), "chain"])
def test_no_plan_has_a_smaller_account_than_the_one_chosen(name: str) -> None:
    """By brute force over the choices of all ops, each with the best sharing for it."""
    encoder = encoder_for(PROGRAMS[name](), "x=4")
    encoded = encoder.encode()
    solved = solve(encoded.problem, relative_gap=0.0)
    assert solved.choices is not None
    ranges = [range(len(costs)) for costs in encoded.problem.node_costs]
    least = min(accounted(encoder, encoded, choices) for choices in product(*ranges))
    terms = len(encoded.ops) + 2 * len(encoded.problem.edges)
    assert accounted(encoder, encoded, solved.choices) <= least + terms


def pinned_rows(count: int) -> float:
    """Seconds of communication where `x` comes in rows and every product wants it whole."""
    graph = readers(count)
    rows = parse_sharding('[{"x"}, {}]')
    whole = parse_sharding("[{}, {}]")
    columns = parse_sharding('[{}, {"x"}]')
    wishes = wishes_for(
        graph,
        arguments={0: rows, **dict.fromkeys(range(1, count + 1), columns)},
        results=dict.fromkeys(range(count), columns),
    )
    solution = plan(graph, "x=4", wishes)
    gathers = [c for c in solution.account.collectives if c.kind == "all-gather"]
    assert len(gathers) == 1
    assert solution.decoded.shared[solution.encoded.reads[0].reads[0]] == (
        solution.encoded.parts.to_layout(whole)
    )
    return solution.account.communication_seconds


def test_a_gather_costs_the_same_however_many_read_it() -> None:
    assert pinned_rows(2) == pytest.approx(pinned_rows(4))


def test_the_copy_lives_from_the_first_reader_to_the_last() -> None:
    encoded = encoder_for(readers(3), "x=4").encode()
    (read,) = reads_in(encoded)
    node = len(encoded.ops)
    held = [m for m in encoded.problem.edge_memory if encoded.problem.edges[m.edge].v == node]
    copy, turned = held  # a host copies what it gathers along another dimension into order
    assert (turned.start, turned.stop) == (read.start, read.start + 1)
    assert (copy.start, copy.stop) == (read.start, read.stop)
    rows = encoded.problem.edges[copy.edge].u
    for made, candidate in enumerate(encoded.candidates[rows]):
        for choice, layout in enumerate(read.layouts):
            if layout == candidate.results[0]:
                assert copy.usage[made, choice] == 0


@pytest.mark.parametrize(("last", "is_held"), [("whole", True), ("rows", False)])
def test_a_copy_is_let_go_by_the_last_reader_that_does_not_read_the_value_itself(
    last: str, *, is_held: bool
) -> None:
    """Two products that read it whole, and an op that reads it whole, or in rows as it was made."""
    program = Program()
    made = program.elementwise(program.argument(64, 64), name="tanh")
    weights = [program.argument(64, 64) for _ in range(2)]
    products = [program.matmul(made, w) for w in weights]
    end = program.elementwise(made, name="sine")
    graph = program.graph(*products, end)
    rows, columns, whole = (
        parse_sharding(text) for text in ('[{"x"}, {}]', '[{}, {"x"}]', "[{}, {}]")
    )
    wishes = Wishes(
        arguments=[rows, columns, columns],
        results=[columns, columns, whole if last == "whole" else rows],
        values={made: rows, end: whole if last == "whole" else rows},
    )
    held = plan(graph, "x=4", wishes).account.memory.held
    (copy,) = (t for t in held if t.kind == "copy" and t.start == graph.values[products[0]].op)
    assert (copy.stop > graph.values[end].op) == is_held


@pytest.mark.parametrize(("name", "is_held_for_it"), [("reverse", False), ("transpose", True)])
@pytest.mark.parametrize(("hardware", "is_copied_early"), [("cpu-host", True), ("h100", False)])
def test_a_kernel_is_let_go_before_its_reversed_copy_is_read(
    name: str, hardware: str, *, is_held_for_it: bool, is_copied_early: bool
) -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    made = program.matmul(x, w)
    turned = program.compute(name, (w,), [(64, 64)], identity_rule((64, 64)), OpClass.COPY)[0]
    graph = program.graph(program.matmul(made, turned))
    encoded = encoder_for(graph, "x=4", hardware=hardware).encode()
    (read,) = (read for read in encoded.reads if read.value == w)
    is_held = read.stop > graph.values[turned].op
    assert is_held == (is_held_for_it or not is_copied_early)


def test_found_reads_are_in_the_order_of_their_first_readers() -> None:
    program = Program()
    x, w = program.argument(16, 16), program.argument(16, 16)
    first = program.matmul(x, w)
    graph = program.graph(program.matmul(first, w), program.elementwise(x, name="tanh"))
    encoded = encoder_for(graph, "x=4").encode()
    candidates = dict(zip(encoded.ops, encoded.candidates, strict=True))
    found = list(
        shared_reads(
            graph,
            find_buffers(graph, get_backend("cpu")),
            candidates,
            ReadBits.of(graph, get_backend("cpu")),
        )
    )
    assert [graph.values[read.value].op for read in found] == [0, 1]


def apart() -> tuple[Graph, int]:
    """A weight that two products read, with two others between them; the weight."""
    program = Program()
    x, w, v = (program.argument(64, 64) for _ in range(3))
    y = program.matmul(x, w)
    for _ in range(2):
        y = program.matmul(y, v)
    return program.graph(program.matmul(y, w)), w


def test_where_memory_is_scarce_every_layout_is_offered_for_each_reader() -> None:
    graph, w = apart()
    roomy, scarce = (
        encoder_for(graph, "x=2", hardware="h100", is_scarce=is_scarce).encode()
        for is_scarce in (False, True)
    )
    (one,), (other,) = ([r for r in encoded.reads if r.value == w] for encoded in (roomy, scarce))
    readers = [op for op, _ in one.reads]
    assert one.movers == ()
    assert list(zip(other.layouts, other.movers, strict=True)) == [
        (layout, reader) for layout in one.layouts for reader in readers
    ]


def test_two_copies_of_one_move_are_not_held_apart() -> None:
    graph, w = apart()
    encoded = encoder_for(graph, "x=2", hardware="h100", is_scarce=True).encode()
    (place,) = (place for place, read in enumerate(encoded.reads) if read.value == w)
    read = encoded.reads[place]
    readers = [op for op, _ in read.reads]
    node, whole, half = len(encoded.ops) + place, ((), ()), ((0,), ())
    edges = {
        encoded.maker(edge.v).index: number
        for number, edge in enumerate(encoded.problem.edges)
        if edge.u == node
    }

    def held(mover: int, reader: int, wanted: Layout) -> set[tuple[int, int]]:
        """When a copy of the weight, which lies in halves, is held for a reader."""
        choice = list(zip(read.layouts, read.movers, strict=True)).index((half, mover))
        options = encoded.candidates[encoded.node_by_op[reader]]
        wants = [number for number, c in enumerate(options) if c.operands[1] == wanted]
        return {
            (term.start, term.stop)
            for term in encoded.problem.edge_memory
            for want in wants
            if term.edge == edges[reader] and term.usage[choice, want]
        }

    first, last = readers
    assert held(first, first, whole) == {(first, first + 1)}
    assert held(last, last, whole) == {(last, last + 1)}
    assert held(first, last, whole) == {(first, last + 1)} == held(last, first, whole)
    assert held(first, last, half) == set()


def test_of_many_readers_none_holds_a_copy_for_itself() -> None:
    program = Program()
    x, w = program.argument(64, 64), program.argument(64, 64)
    for _ in range(9):
        x = program.matmul(x, w)
    encoded = encoder_for(program.graph(x), "x=2", hardware="h100", is_scarce=True).encode()
    (read,) = (read for read in encoded.reads if read.value == w)
    assert len(read.layouts) == len(set(read.layouts)) == len(read.movers)
    assert set(read.movers) == {-1}
