"""A decided plan on two lanes, body by body."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.encoding.accounting import Account, account_for
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Decoded, Encoded, decode
from autoshard.graph.program import Graph
from autoshard.overlap.timeline import PlanTimeline, overlapped_seconds, plan_timeline
from solvers import solve
from tests.planner.graphs import Program, encoder_for, parts_of, wishes_for
from tests.planner.test_encode import PROGRAMS
from tests.planner.test_hidden import batch_and_cut_weights, chain


def decided(
    encoder: Encoder, encoded: Encoded, choices: tuple[int, ...]
) -> tuple[Account, Decoded]:
    decoded = decode(encoded, choices)
    return account_for(encoder, encoded, decoded, choices), decoded


def drawn_choices(encoded: Encoded, seed: int) -> tuple[int, ...]:
    drawn = np.random.default_rng(seed)
    return tuple(int(drawn.integers(len(c))) for c in encoded.problem.node_costs)


def in_a_loop() -> Graph:
    """Two weights read in every run of a loop, and a product after it."""
    program = Program()
    x, first, second = (program.argument(256, 256) for _ in range(3))
    carried = program.carry(x)
    program.open_loop(8.0)
    hidden = program.elementwise(program.matmul(carried, first), name="tanh")
    program.loop_back(carried, program.matmul(hidden, second))
    program.close_loop()
    return program.graph(program.matmul(carried, first))


ALL = {**PROGRAMS, "loop with two weights": in_a_loop}


@settings(max_examples=40, deadline=None)
@given(
    name=st.sampled_from(sorted(ALL)),
    hardware=st.sampled_from(["cpu-host", "tpu-v5e", "h100"]),
    seed=st.integers(0, 2**16),
)
def test_any_plan_takes_no_less_than_it_computes_or_sends_and_no_more_than_both(
    name: str, hardware: str, seed: int
) -> None:
    encoder = encoder_for(ALL[name](), "x=2,y=4", hardware=hardware)
    encoded = encoder.encode()
    account, decoded = decided(encoder, encoded, drawn_choices(encoded, seed))
    timeline = plan_timeline(encoder, encoded, decoded)
    compute, sent = timeline.compute_seconds, sum(c.seconds for c in timeline.collectives)
    both = account.compute_seconds + account.communication_seconds
    assert max(compute, sent) * (1 - 1e-9) <= timeline.seconds <= (compute + sent) * (1 + 1e-9)
    found = overlapped_seconds(encoder, encoded, decoded, account)
    if hardware == "cpu-host":
        assert found is None
    else:
        assert found is not None
        assert timeline.seconds * (1 - 1e-9) <= found <= both * (1 + 1e-9)


@settings(max_examples=40, deadline=None)
@given(name=st.sampled_from(sorted(ALL)), seed=st.integers(0, 2**16))
def test_where_everything_waits_for_collectives_a_step_takes_its_tasks_in_turn(
    name: str, seed: int
) -> None:
    encoder = encoder_for(ALL[name](), "x=2,y=4")
    encoded = encoder.encode()
    account, decoded = decided(encoder, encoded, drawn_choices(encoded, seed))
    timeline = plan_timeline(encoder, encoded, decoded)
    sent = sum(collective.seconds for collective in timeline.collectives)
    assert timeline.hidden_seconds == pytest.approx(0.0, abs=1e-12)
    assert timeline.seconds == pytest.approx(timeline.compute_seconds + sent)
    assert sent <= account.communication_seconds * (1 + 1e-9)
    assert timeline.seconds <= (account.compute_seconds + account.communication_seconds) * (
        1 + 1e-9
    )


def gathering(graph: Graph, *gathered: int, hardware: str = "tpu-v5e") -> PlanTimeline:
    """The timeline of a program whose activations are cut by rows and whose weights are fetched."""
    parts = parts_of("x=4")
    rows = parts.to_sharding(((0,), ()))
    encoder = encoder_for(
        graph,
        "x=4",
        wishes_for(graph, dict.fromkeys((0, *gathered), rows), {0: rows}),
        hardware=hardware,
    )
    encoded = encoder.encode()
    data_parallel = [
        [
            10**12 * (c.cut != 4 or bool(c.reduced or c.scattered) or any(c.operands[-1]))
            if graph.ops[op].name == "dot_general"
            else 0
            for c in candidates
        ]
        for op, candidates in zip(encoded.ops, encoded.candidates, strict=True)
    ]
    data_parallel += [[0] * len(read.layouts) for read in encoded.reads]
    costs = tuple(
        own + np.array(extra, dtype=np.int64)
        for own, extra in zip(encoded.problem.node_costs, data_parallel, strict=True)
    )
    choices = solve(replace(encoded.problem, node_costs=costs), relative_gap=0.0).choices
    assert choices is not None
    _, decoded = decided(encoder, encoded, tuple(choices))
    return plan_timeline(encoder, encoded, decoded)


def test_the_first_weight_is_waited_for_and_the_others_are_fetched_meanwhile() -> None:
    timeline = gathering(chain(65536, 1024), 1, 2, 3)
    assert [c.kind for c in timeline.collectives] == ["all-gather"] * 3
    first, *others = timeline.collectives
    assert first.exposed_seconds > 0.75 * first.seconds  # the batch arrives meanwhile
    assert [c.exposed_seconds for c in others] == pytest.approx([0.0, 0.0], abs=1e-12)


def test_with_little_to_compute_most_of_every_weight_is_waited_for() -> None:
    timeline = gathering(chain(128, 1024), 1, 2, 3)
    assert timeline.hidden_seconds < 0.3 * sum(c.seconds for c in timeline.collectives)


def test_nothing_crosses_from_one_run_of_a_loop_into_the_next() -> None:
    timeline = gathering(in_a_loop(), 1, 2)
    in_loop = [c for c in timeline.collectives if c.op < 8][:2]
    assert [c.kind for c in in_loop] == ["all-gather", "all-gather"]
    assert in_loop[0].exposed_seconds == pytest.approx(in_loop[0].seconds)
    assert in_loop[1].exposed_seconds < in_loop[1].seconds


def test_a_weight_fetched_for_two_readers_is_there_once() -> None:
    program = Program()
    x, w = program.argument(4096, 512), program.argument(512, 512)
    first = program.matmul(x, w)
    graph = program.graph(program.matmul(program.elementwise(first, name="tanh"), w))
    timeline = gathering(graph, 1)
    assert [c.kind for c in timeline.collectives] == ["all-gather"]


def test_a_plan_is_told_what_overlap_gains() -> None:
    graph = chain(16384, 1024)
    encoder = encoder_for(graph, "x=4", batch_and_cut_weights(graph), hardware="tpu-v5e")
    encoded = encoder.encode()
    choices = solve(encoded.problem, relative_gap=0.0).choices
    assert choices is not None
    account, decoded = decided(encoder, encoded, tuple(choices))
    timeline = plan_timeline(encoder, encoded, decoded)
    seconds = account.compute_seconds + account.communication_seconds
    found = overlapped_seconds(encoder, encoded, decoded, account)
    assert found == pytest.approx(seconds - timeline.hidden_seconds)
    assert timeline.hidden_seconds > 0
