"""Matrix products in steps: what is offered, what it costs, and that it is the same product."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from autoshard.backends import get_backend
from autoshard.candidates.candidate import Candidate, CandidateMaker
from autoshard.candidates.op_candidates import OpCandidates
from autoshard.candidates.streamed import (
    StreamOffers,
    dot_schedule_of,
    extents_of,
    messages_of,
    messages_of_small,
    stream_offers,
)
from autoshard.encoding.with_steps import WithSteps
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.layouts import MeshParts, refines
from autoshard.loops import dot_general_statement, parse_statement, simulate
from autoshard.loops.dot_schedule import DotSchedule, with_plain_names
from autoshard.sharding import parse_sharding
from autoshard.wishes.wishes import Wishes
from tests.planner.graphs import encoder_for, parts_of
from tests.planner.traced import exported

MESHES = ["x=4", "x=2,y=2", "x=2,y=4"]


def product_graph(
    rows: int, summed: int, columns: int, mesh: str, dtype: str = "float32"
) -> tuple[Graph, Op]:

    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        return a @ b

    left = jax.ShapeDtypeStruct((rows, summed), dtype)
    right = jax.ShapeDtypeStruct((summed, columns), dtype)
    graph, _ = exported(multiply, left, right, mesh=mesh)
    return graph, next(op for op in graph.ops if op.name == "dot_general")


def offered(graph: Graph, op: Op, parts: MeshParts, heavy: float = 0.0) -> tuple[Candidate, ...]:
    wishes = Wishes(arguments=(None, None), results=(None,), alike=[])
    plain = OpCandidates(graph, parts, wishes, get_backend("tpu").collectives, 400).of(op)
    return StreamOffers(graph, parts, frozenset({op.equation}), heavy).of(op, plain)


@settings(max_examples=15, deadline=None)
@given(data=st.data())
@pytest.mark.parametrize("mesh", MESHES)
def test_every_offer_is_a_schedule_that_gives_the_product(mesh: str, data: st.DataObject) -> None:
    graph, op = product_graph(16, 32, 8, mesh)
    assert op.rule is not None
    parts = parts_of(mesh)
    candidate = data.draw(st.sampled_from(offered(graph, op, parts)))
    placed = dot_schedule_of(parts, op.rule, candidate).placed(extents_of(op.rule), parts.mesh)
    draw = np.random.default_rng(1)
    left, right = draw.normal(size=(16, 32)), draw.normal(size=(32, 8))
    np.testing.assert_allclose(simulate(placed, left, right).value, left @ right, rtol=1e-9)


@pytest.mark.parametrize("mesh", MESHES)
def test_an_offer_differs_from_a_plain_candidate_in_where_operands_live(mesh: str) -> None:
    graph, op = product_graph(16, 32, 8, mesh)
    parts = parts_of(mesh)
    found = offered(graph, op, parts)
    assert found
    for candidate in found:
        assert candidate.streamed is not None
        pairs = list(zip(candidate.operands, candidate.streamed.needs, strict=True))
        assert all(refines(home, needed) for home, needed in pairs)
        has_moved_home = any(home != needed for home, needed in pairs)
        assert has_moved_home != (0 in candidate.streamed.moved)
        assert candidate.cut == parts.mesh.num_devices


def test_what_is_brought_is_as_much_in_any_number_of_steps_and_round_a_ring() -> None:
    graph, op = product_graph(64, 256, 64, "x=4")
    assert op.rule is not None
    parts = parts_of("x=4")
    words: dict[object, set[int]] = {}
    for candidate in offered(graph, op, parts):
        moved = sum(
            int(found.message.received) * found.message.count
            for found in messages_of(parts, op.rule, candidate)
        )
        words.setdefault((candidate.operands, candidate.results), set()).add(moved)
    assert all(len(amounts) == 1 for amounts in words.values())


def test_light_operands_are_not_offered_steps() -> None:
    graph, op = product_graph(64, 64, 64, "x=4")
    parts = parts_of("x=4")
    whole = 64 * 64 * 4
    assert offered(graph, op, parts, heavy=whole)
    assert not offered(graph, op, parts, heavy=whole + 1)


def test_products_of_nothing_run_in_no_steps() -> None:
    graph, op = product_graph(64, 0, 64, "x=4")
    assert not offered(graph, op, parts_of("x=4"))


def test_nothing_is_offered_without_a_limit_or_outside_of_the_equations() -> None:
    graph, op = product_graph(64, 64, 64, "x=4")
    parts = parts_of("x=4")
    assert stream_offers(graph, parts, frozenset({op.equation}), None) is None
    assert stream_offers(graph, parts, frozenset(), 10**6) is None


def test_a_limit_that_nothing_meets_makes_no_more_operands_heavy() -> None:
    graph, op = product_graph(64, 64, 64, "x=4")
    parts = parts_of("x=4")
    held = find_buffers(graph, get_backend("cpu")).most_held_bytes(graph)
    assert held == 3 * 64 * 64 * 4
    equations = frozenset({op.equation})
    lowest = stream_offers(graph, parts, equations, held // 4, held)
    assert lowest == stream_offers(graph, parts, equations, 1, held)
    assert lowest == StreamOffers(graph, parts, equations, held / 4 / 16)
    assert stream_offers(graph, parts, equations, held, held) != lowest


def test_of_too_many_in_steps_every_way_to_live_keeps_its_fastest() -> None:
    graph, op = product_graph(64, 4096, 64, "x=4,y=2")
    encoder = encoder_for(graph, "x=4,y=2")
    parts = encoder.costing.parts
    wishes = Wishes(arguments=(None, None), results=(None,), alike=[])
    plain = OpCandidates(graph, parts, wishes, get_backend("cpu").collectives, 400).of(op)
    offers = StreamOffers(graph, parts, frozenset({op.equation}), 0.0)

    def in_steps(most: int) -> tuple[Candidate, ...]:
        found = WithSteps(offers, encoder.node_costs, most).of(op, plain)
        assert found[: len(plain)] == plain
        return found[len(plain) :]

    every = in_steps(10**6)
    homes = {candidate.operands for candidate in every}
    few = in_steps(len(homes))
    assert len(few) == len(homes) < len(every)
    assert {candidate.operands for candidate in few} == homes
    assert set(few) < set(every)

    def seconds(candidates: tuple[Candidate, ...]) -> dict[object, float]:
        spent = encoder.node_costs.seconds(op, candidates)
        least: dict[object, float] = {}
        for candidate, value in zip(candidates, spent.tolist(), strict=True):
            least[candidate.operands] = min(value, least.get(candidate.operands, value))
        return least

    assert seconds(few) == seconds(every)


@pytest.mark.parametrize("hardware", ["cpu-host", "tpu-v5p", "h100"])
def test_more_steps_take_longer_and_hold_less(hardware: str) -> None:
    graph, op = product_graph(64, 4096, 64, "x=4")
    costing = encoder_for(graph, "x=4", hardware=hardware).costing
    groups: dict[object, list[tuple[int, float, int]]] = {}
    for candidate in offered(graph, op, costing.parts):
        assert candidate.streamed is not None
        if candidate.streamed.rings:
            continue
        found = groups.setdefault((candidate.operands, candidate.results), [])
        chunks = costing.chunk_seconds(graph, op, (candidate,))
        (seconds,) = chunks.compute + chunks.sent
        held = costing.streamed_bytes(graph, op, candidate)
        found.append((candidate.streamed.num_steps, seconds, held))
    assert any(len(found) > 1 for found in groups.values())
    for found in groups.values():
        for (_, sooner, larger), (_, later, smaller) in zip(
            sorted(found), sorted(found)[1:], strict=False
        ):
            assert later > sooner
            assert smaller < larger


@pytest.mark.parametrize(
    ("hardware", "dtype", "stored", "bits"),
    [
        ("cpu-host", "bfloat16", 16, 32),
        ("tpu-v5p", "bfloat16", 16, 16),
        ("tpu-v5p", "float32", 32, 16),
        ("h100", "float32", 32, 32),
    ],
)
def test_panels_are_as_wide_as_the_backend_multiplies(
    hardware: str, dtype: str, stored: int, bits: int
) -> None:
    graph, op = product_graph(64, 256, 64, "x=4", dtype=dtype)
    costing = encoder_for(graph, "x=4", hardware=hardware).costing
    assert graph.values[op.operands[0]].bits == stored
    assert [costing.step_bits(graph, op, place) for place in (1, 2)] == [bits, bits]
    assert costing.step_bits(graph, op, 0) == max(stored, bits)
    candidate = offered(graph, op, costing.parts)[0]
    assert candidate.streamed is not None
    home = 64 * 256 // 4 * bits // 8  # bytes of an operand at home, as wide as it is multiplied
    steps = candidate.streamed.num_steps
    sums = 64 * 64 // 4 * 4
    wider = sums // 2 if stored == 16 else 0  # than the result
    panels = (64 * 256 // 4 + 2 * 64 * 256) // steps * bits // 8
    converted = 2 * home if bits != stored else 0
    held = costing.streamed_bytes(graph, op, candidate)
    assert held == sums + wider + panels + converted


def test_a_schedule_names_the_variables_as_the_equation_does() -> None:
    graph, op = product_graph(16, 32, 8, "x=4")
    assert op.rule is not None
    parts = parts_of("x=4")
    candidate = offered(graph, op, parts)[0]
    statement = dot_general_statement((((1,), (0,)), ((), ())), 2, 2)
    schedule = dot_schedule_of(parts, op.rule, candidate)
    assert schedule.statement == str(with_plain_names(statement))
    assert not schedule.problems(parts.mesh)
    assert op.kind is OpKind.COMPUTE


def test_problems_of_a_schedule_with_rings_are_named() -> None:
    rows = parse_sharding('[{"x"}, {}]')
    cannon = DotSchedule(
        statement="A(a,b) += B(a,c) * C(c,b)",
        homes=(rows, rows, rows),
        grid=("x",),
        cut=("a",),
        over="c",
        panel=8,
        num_steps=4,
        rings=("x",),
        moved="C",
    )
    mesh = parts_of("x=4").mesh
    assert cannon.problems(mesh) == []
    wrong = replace(cannon, rings=("y",), moved="A", num_steps=2)
    assert wrong.problems(mesh) == [
        "`rings`: 'y' is no axis of `grid`",
        "`over`: A has no dimension 'c'",
    ]
    assert replace(cannon, num_steps=2).problems(mesh) == [
        "`num_steps`: is 2; expected 4, the size of 'x'"
    ]
    assert replace(cannon, moved="CB").problems(mesh) == ["`moved`: 'CB' cannot go round 1 rings"]


def test_problems_of_a_schedule_are_named() -> None:
    rows = parse_sharding('[{"x"}, {}]')
    schedule = DotSchedule(
        statement="A(a,b) += B(a,c) * C(c,b)",
        homes=(rows, rows, parse_sharding('[{"y"}]')),
        grid=("z", "z"),
        cut=("d",),
        over="a",
        panel=0,
        num_steps=4,
    )
    assert schedule.problems(parts_of("x=4").mesh) == [
        "`grid`: the mesh has no axis 'z'",
        "`grid`: the mesh has no axis 'z'",
        "`grid`: names an axis twice",
        "`cut`: has 1 variables for 2 axes",
        "`cut`: the statement has no variable 'd'",
        "`over`: 'a' is not summed over",
        "`homes`: do not have the ranks [2, 2, 2] of the tensors",
        "`panel`, `num_steps`: are below 1",
    ]


def test_plain_names_follow_the_order_of_the_variables() -> None:
    statement = parse_statement("Y(b,t,f) += X(b,t,e) * W(e,f)")
    assert str(with_plain_names(statement)) == "A(a,b,c) += B(a,b,d) * C(d,c)"


@pytest.mark.parametrize("mesh", ["x=8", "x=2,y=4", "x=2,y=2"])
def test_a_schedule_in_its_smallest_form_sends_as_the_whole_one(mesh: str) -> None:
    graph, op = product_graph(512, 256, 1024, mesh)
    parts = parts_of(mesh)
    assert op.rule is not None
    offers = StreamOffers(graph, parts, frozenset({op.equation}), 1.0)
    candidates = offers.of(op, CandidateMaker(parts).of_rule(op.rule))
    assert {bool(c.streamed and c.streamed.rings) for c in candidates} == {False, True}
    for candidate in candidates:
        assert messages_of(parts, op.rule, candidate) == messages_of_small(
            parts, op.rule, candidate
        )


def batched_graph(batch: int, mesh: str) -> tuple[Graph, Op]:
    def multiply(a: jax.Array, b: jax.Array) -> jax.Array:
        made: jax.Array = jnp.einsum("ste,ehd->sthd", a, b)
        return made

    left = jax.ShapeDtypeStruct((batch, 32, 64), "float32")
    right = jax.ShapeDtypeStruct((64, 8, 16), "float32")
    graph, _ = exported(multiply, left, right, mesh=mesh)
    return graph, next(op for op in graph.ops if op.name == "dot_general")


def test_dimensions_that_nothing_parts_are_left_out_of_the_smallest_form() -> None:
    graph, op = batched_graph(64, "x=4")
    parts = parts_of("x=4")
    assert op.rule is not None
    flat = product_graph(64, 64, 128, "x=4")
    messages_of.cache_clear()
    messages_of_small.cache_clear()
    offered(*flat, parts)
    known = messages_of_small.cache_info().misses
    for candidate in offered(graph, op, parts):
        assert messages_of(parts, op.rule, candidate) == messages_of_small.__wrapped__(
            parts, op.rule, candidate
        )
    more = messages_of_small.cache_info().misses - known
    assert more < messages_of.cache_info().currsize / 2


def test_seconds_of_candidates_in_steps_are_found_together_and_once() -> None:
    graph, op = product_graph(64, 256, 64, "x=2,y=2")
    costing = encoder_for(graph, "x=2,y=2", hardware="tpu-v5p").costing
    wishes = Wishes(arguments=(None, None), results=(None,), alike=[])
    collectives = get_backend("tpu").collectives
    plain = OpCandidates(graph, costing.parts, wishes, collectives, 400).of(op)
    every = (*plain, *offered(graph, op, costing.parts))
    found = costing.chunk_seconds(graph, op, every)
    assert costing.chunk_seconds(graph, op, every) is found
    assert not found.compute[: len(plain)].any()
    for place, candidate in enumerate(every):
        alone = costing.chunk_seconds(graph, op, (candidate,))
        assert alone.compute[0] == found.compute[place]
        assert alone.sent[0] == found.sent[place]
        assert alone.passing[0] == found.passing[place]


def test_every_step_has_windows_that_no_arithmetic_runs_beside() -> None:
    graph, op = product_graph(4096, 4096, 4096, "x=4", "bfloat16")
    encoder = encoder_for(graph, "x=4", hardware="tpu-v5p")
    costing, compute = encoder.costing, encoder.costing.model.hardware.compute
    candidate = offered(graph, op, costing.parts)[0]
    assert candidate.streamed is not None
    backend = costing.backend
    (seconds,) = costing.chunk_seconds(graph, op, (candidate,)).compute
    costing.backend = replace(backend, layout=replace(backend.layout, mxu_window_cycles=0.0))
    (without,) = costing.chunk_seconds(graph, op, (candidate,)).compute
    steps, clock = candidate.streamed.num_steps, compute.clock_hertz
    assert clock is not None
    cycles = 2 * 4096**3 / 4 / steps / compute.matmul.bfloat16 * clock
    windows = steps * backend.layout.mxu_window_cycles * cycles**0.5 / clock
    assert seconds - without == pytest.approx(windows, rel=0.05)
    assert windows > 0
