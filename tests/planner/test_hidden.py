"""What the objective takes off collectives that run beside computing."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.costing.convert_motion import ReadBits
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded, decode
from autoshard.encoding.hidden_communication import (
    LEAST_EXPOSED_SHARE,
    exposed_seconds,
    hidden_behind_computing,
)
from autoshard.encoding.slack import SharedSlack, Wanted, Window, Windows
from autoshard.graph.program import Graph
from autoshard.graph.rule import Rule
from autoshard.lowering.estimate import estimate
from autoshard.lowering.lower import lower
from autoshard.wishes.wishes import Wishes
from solvers import evaluate, solve
from tests.planner.graphs import Program, encoder_for, parts_of, wishes_for

amounts = st.floats(0.0, 1e3)


@given(seconds=amounts, slack=amounts, more=amounts)
def test_more_slack_never_exposes_more_and_some_of_a_collective_always_shows(
    seconds: float, slack: float, more: float
) -> None:
    one = np.array([seconds])
    exposed = exposed_seconds(one, slack)[0]
    assert seconds * LEAST_EXPOSED_SHARE <= exposed <= seconds
    assert exposed_seconds(one, slack + more)[0] <= exposed
    assert exposed_seconds(one, 0.0)[0] == seconds


def chain(rows: int, size: int, products: int = 3) -> Graph:
    """Products one after the other, each with a weight of its own."""
    program = Program()
    x, *weights = [program.argument(rows, size)] + [
        program.argument(size, size) for _ in range(products)
    ]
    for weight in weights:
        x = program.elementwise(program.matmul(x, weight), name="tanh")
    return program.graph(x)


@given(
    computing=st.lists(st.integers(0, 9), min_size=1, max_size=9),
    drawn=st.lists(st.tuples(st.integers(0, 9), st.integers(0, 9), st.integers(0, 30)), max_size=9),
)
def test_no_second_of_computing_hides_two_collectives(
    computing: list[int], drawn: list[tuple[int, int, int]]
) -> None:
    graph = chain(8, 8, products=len(computing))
    windows = Windows(graph)
    ops = windows.ops_of(0)
    least = dict(zip(ops, map(float, computing), strict=False))
    slack = SharedSlack(windows, least)
    wanted = [
        Wanted(Window(0, min(a, b), max(a, b), is_prefetch=False), float(most))
        for a, b, most in drawn
    ]
    given_out = slack.share_out(wanted)
    free = np.array([least.get(op, 0.0) for op in ops])
    for one, seconds in zip(wanted, given_out, strict=True):
        assert 0 <= seconds <= one.seconds
    for start in range(10):
        for stop in range(start, 11):
            inside = sum(
                seconds
                for one, seconds in zip(wanted, given_out, strict=True)
                if start <= one.window.start and one.window.stop <= stop
            )
            assert inside <= free[start:stop].sum() + 1e-9


def test_a_weight_may_be_fetched_from_the_start_and_an_activation_once_it_is_made() -> None:
    graph = chain(8, 8)
    windows = Windows(graph)
    products = [op for op in graph.ops if op.name == "dot_general"]
    places = [list(windows.ops_of(0)).index(op.index) for op in products]
    of_weights = [windows.of_read(op, 1) for op in products]
    assert [(w.start, w.stop, w.is_prefetch) for w in of_weights] == [
        (0, place, True) for place in places
    ]
    of_activations = [windows.of_read(op, 0) for op in products[1:]]
    assert [(w.start, w.is_prefetch) for w in of_activations] == [
        (place + 1, False) for place in places[:-1]
    ]


def test_a_converted_weight_is_there_as_early_as_the_weight() -> None:
    program = Program()
    x, w = program.argument(8, 8), program.argument(8, 8)
    made = program.matmul(x, x)
    converted = program.elementwise(w, name="convert")
    graph = program.graph(program.matmul(made, converted))
    last = [op for op in graph.ops if op.name == "dot_general"][-1]
    windows = Windows(graph)
    assert windows.of_read(last, 1).start == 0
    assert windows.of_read(last, 0).start > 0


def test_in_a_loop_what_comes_from_outside_is_there_when_a_run_starts() -> None:
    program = Program()
    w = program.argument(8, 8)
    carried = program.carry(program.argument(8, 8))
    program.open_loop(5.0)
    first = program.matmul(carried, w)
    program.loop_back(carried, program.matmul(first, w))
    program.close_loop()
    graph = program.graph(program.matmul(carried, w))
    windows = Windows(graph)
    inner_first, inner_second, after = [op for op in graph.ops if op.name == "dot_general"]
    assert [
        (windows.of_read(op, 1).start, windows.of_read(op, 1).stop)
        for op in (inner_first, inner_second)
    ] == [(0, 0), (0, 1)]
    assert windows.of_read(inner_second, 0).start == 1
    assert windows.of_read(after, 1).start == 0
    read = windows.of_read(after, 0)  # the carry is there when the loop is over
    assert (read.start, read.stop) == (3, 3)


def planned(
    graph: Graph, wishes: Wishes, *, overlaps: bool, hardware: str = "tpu-v5e"
) -> tuple[Encoder, Encoded, tuple[int, ...]]:
    encoder = encoder_for(graph, "x=4", wishes, hardware=hardware)
    encoder.costing.overlaps = overlaps
    encoded = encoder.encode()
    choices = solve(encoded.problem, relative_gap=0.0).choices
    assert choices is not None
    return encoder, encoded, tuple(choices)


def timed(
    encoder: Encoder, encoded: Encoded, choices: tuple[int, ...]
) -> tuple[float, float, set[str]]:
    """Seconds of a step with and without overlap, and the kinds of its collectives."""
    program = lower(encoder, encoded, decode(encoded, choices), choices)
    found = estimate(program)
    return found.seconds, found.blocking_seconds, {c.kind for c in program.collectives}


def batch_and_cut_weights(graph: Graph) -> Wishes:
    """Activations cut by their batch at both ends, all weights by their rows."""
    rows = parts_of("x=4").to_sharding(((0,), ()))
    return wishes_for(graph, dict.fromkeys(range(len(graph.arguments)), rows), {0: rows})


@pytest.mark.parametrize(
    ("rows", "size", "hardware"),
    [
        (512, 1024, "tpu-v5e"),
        (4096, 1024, "tpu-v5e"),
        (16384, 1024, "tpu-v5e"),
        (3072, 4096, "tpu-v5e"),
        (1024, 4096, "h100"),
        (16384, 4096, "h100"),
    ],
)
def test_no_plan_at_all_is_faster_by_a_tenth_when_collectives_overlap(
    rows: int, size: int, hardware: str
) -> None:
    graph = chain(rows, size, products=2)
    wishes = batch_and_cut_weights(graph)
    encoder, encoded, choices = planned(graph, wishes, overlaps=True, hardware=hardware)
    found, _, _ = timed(encoder, encoded, choices)
    every = product(*(range(len(c)) for c in encoded.candidates))
    best = min(
        timed(encoder, encoded, other)[0]
        for other in every
        if evaluate(encoded.problem, other).is_allowed
    )
    assert best <= found <= 1.1 * best


def test_weights_that_can_be_fetched_early_are_gathered_where_sums_would_block() -> None:
    graph = chain(4096, 8192)
    wishes = batch_and_cut_weights(graph)
    alone = timed(*planned(graph, wishes, overlaps=False))
    beside = timed(*planned(graph, wishes, overlaps=True))
    assert "reduce-scatter" in alone[2]
    assert beside[2] == {"all-gather"}
    assert beside[0] < alone[0]
    assert beside[1] > alone[1]


def test_the_first_product_has_nothing_to_hide_its_weight_behind() -> None:
    graph = chain(3072, 4096)
    encoder, encoded, _ = planned(graph, batch_and_cut_weights(graph), overlaps=True)
    candidates = dict(zip(encoded.ops, encoded.candidates, strict=True))
    products = [op.index for op in graph.ops if op.name == "dot_general"]
    least = dict.fromkeys(products, 1.0)
    read_bits = ReadBits.of(graph, encoder.costing.backend)
    hidden = hidden_behind_computing(encoder.node_costs.reductions, candidates, least, read_bits)
    assert [(op, 1) in hidden.reads for op in products] == [False, True, True]


def test_where_nothing_overlaps_costs_are_those_of_blocking_collectives() -> None:
    graph = chain(512, 512)
    wishes = batch_and_cut_weights(graph)
    for hardware in ("cpu-host", "tpu-v5e"):
        _, alone, _ = planned(graph, wishes, overlaps=False, hardware=hardware)
        _, beside, _ = planned(graph, wishes, overlaps=True, hardware=hardware)
        same = [
            np.array_equal(a.costs, b.costs)
            for a, b in zip(alone.problem.edges, beside.problem.edges, strict=True)
        ]
        assert all(same) == (hardware == "cpu-host")
        assert all(
            np.all(a.costs >= b.costs)
            for a, b in zip(alone.problem.edges, beside.problem.edges, strict=True)
        )


def test_reads_alike_in_all_but_their_place_share_one_array_of_costs() -> None:
    graph = chain(4096, 1024, products=12)
    _, encoded, _ = planned(graph, batch_and_cut_weights(graph), overlaps=True)
    weights = {op.results[0] for op in graph.arguments[1:]}
    nodes = {
        encoded.node_by_op[op.index]
        for op in graph.ops
        if op.name == "dot_general" and op.operands[1] in weights
    }
    reads = [e for e in encoded.problem.edges if e.v in nodes and 1 <= e.u < 13]
    assert len(reads) == 12
    assert len({id(e.costs) for e in reads}) <= 4


def test_sums_that_nobody_reads_soon_are_cheaper_where_they_run_beside_computing() -> None:
    program = Program()
    x, y, w = program.argument(4096, 512), program.argument(4096, 512), program.argument(512, 512)
    rule = Rule((512, 512, 4096), (((2,), (0,)), ((2,), (1,))), (((0,), (1,)),), frozenset({2}))
    (gradient,) = program.compute("dot_general", (x, y), [(512, 512)], rule)
    h = program.matmul(program.matmul(y, w), w)
    graph = program.graph(h, program.elementwise(gradient, w))
    made = graph.ops[graph.values[gradient].op]
    for hardware, is_cheaper in (("h100", True), ("tpu-v5e", False)):
        costs = []
        for overlaps in (False, True):
            encoder = encoder_for(graph, "x=4", hardware=hardware)
            encoder.costing.overlaps = overlaps
            encoded = encoder.encode()
            costs.append(encoded.problem.node_costs[encoded.node_by_op[made.index]])
            candidates = encoded.candidates[encoded.node_by_op[made.index]]
        sums = np.array([bool(c.reduced or c.scattered) for c in candidates])
        assert np.array_equal(costs[0][~sums], costs[1][~sums])
        assert np.all((costs[1] < costs[0])[sums]) == is_cheaper
        assert np.all(costs[1] <= costs[0])
