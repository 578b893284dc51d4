"""Matrix products whose pieces go round rings: what is offered, what it costs, what runs."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.apply.scheduled.lower import lower
from autoshard.apply.scheduled.received import received_bytes
from autoshard.candidates.candidate import Candidate
from autoshard.candidates.streamed import dot_schedule_of, extents_of, messages_of
from autoshard.encoding.hidden_communication import LEAST_EXPOSED_SHARE, hidden_in_products
from autoshard.graph.program import Graph, Op
from autoshard.loops.dot_schedule import DotSchedule
from tests.planner.graphs import encoder_for, parts_of
from tests.planner.test_streamed import offered, product_graph

SIZES = (16, 32, 64)  # rows, summed, columns
CASES = [
    ("x=4", 3, "C", False),
    ("x=4", 2, "C", True),
    ("x=4", 2, "B", True),
    ("x=4", 2, "A", False),
    ("x=4", 2, "A", True),
    ("x=2,y=2", 3, "C", False),
    ("x=2,y=2", 3, "A", False),
    ("x=2,y=2", 2, "BC", False),
    ("x=2,y=4", 1, "B", True),
]


def rings(
    mesh: str, moved: str = "", *, both_ways: bool | None = None, sizes: tuple[int, ...] = SIZES
) -> tuple[Graph, Op, list[tuple[Candidate, DotSchedule]]]:
    """The offers in which these tensors go round, with the schedule of each."""
    rows, summed, columns = sizes
    graph, op = product_graph(rows, summed, columns, mesh)
    assert op.rule is not None
    parts = parts_of(mesh)
    pairs = [(c, dot_schedule_of(parts, op.rule, c)) for c in offered(graph, op, parts)]
    found = [
        (candidate, made)
        for candidate, made in pairs
        if made.rings and moved in ("", made.moved) and both_ways in (None, made.both_ways)
    ]
    return graph, op, found


def test_each_algorithm_is_offered_where_the_mesh_has_its_rings() -> None:
    def algorithms(mesh: str) -> set[tuple[str, bool]]:
        return {(made.algorithm, made.both_ways) for _, made in rings(mesh)[2]}

    one_way = {("all-gather-matmul", False), ("matmul-reduce-scatter", False)}
    both = one_way | {(name, True) for name, _ in one_way}
    assert algorithms("x=2") == one_way
    assert algorithms("x=4") == both
    assert algorithms("x=2,y=2") == one_way | {("cannon", False)}
    assert algorithms("x=2,y=4") == both


@pytest.mark.parametrize(("mesh", "most", "moved", "both_ways"), CASES)
@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_ring_gives_the_product_and_receives_what_is_predicted(
    mesh: str, most: int, moved: str, both_ways: bool, dtype: str
) -> None:
    _, op, found = rings(mesh, moved, both_ways=both_ways)
    assert op.rule is not None
    assert found
    parts = parts_of(mesh)
    axes = parts.mesh.sizes
    auto = (jax.sharding.AxisType.Auto,) * len(axes)
    devices = jax.make_mesh(tuple(axes.values()), tuple(axes), axis_types=auto)
    draw = np.random.default_rng(2)
    rows, summed, columns = SIZES
    near = 1e-4 if dtype == "float32" else 1e-12
    with jax.enable_x64(dtype == "float64"):
        left = jnp.asarray(draw.normal(size=(rows, summed)), dtype)
        right = jnp.asarray(draw.normal(size=(summed, columns)), dtype)
        for candidate, made in found[:: max(1, len(found) // most)]:
            placed = made.placed(extents_of(op.rule), parts.mesh)
            run = lower(placed, devices, made.grid)
            shards = [jax.NamedSharding(devices, spec_of(home)) for home in made.homes]
            jitted = jax.jit(run, in_shardings=shards[1:], out_shardings=shards[0])
            program = jitted.lower(left, right).compile()
            value = program(*jax.device_put((left, right), tuple(shards[1:])))
            np.testing.assert_allclose(value, left @ right, rtol=near, atol=near, err_msg=str(made))
            words = sum(
                m.message.received * m.message.count for m in messages_of(parts, op.rule, candidate)
            )
            received = sum(r.num_bytes * r.count for r in received_bytes(program.as_text() or ""))
            assert received == words * left.dtype.itemsize


def spec_of(home: object) -> jax.sharding.PartitionSpec:
    dims = [tuple(ref.name for ref in dim.axes) or None for dim in home.dims]  # type: ignore[attr-defined]
    return jax.sharding.PartitionSpec(*dims)


@pytest.mark.parametrize("moved", ["A", "B", "BC"])
def test_pieces_hide_behind_products_where_permutations_run_beside_them(moved: str) -> None:
    mesh = "x=2,y=2" if moved == "BC" else "x=4"
    graph, op, found = rings(mesh, moved, both_ways=False, sizes=(4096, 8192, 4096))
    candidate, _ = found[0]
    assert candidate.streamed is not None
    steps = candidate.streamed.num_steps
    for hardware, is_hidden in (
        ("cpu-host", False),
        ("tpu-v5p", moved != "A"),  # that compiler makes such loops by itself
        ("h100", True),
    ):
        costing = encoder_for(graph, mesh, hardware=hardware).costing
        (hidden,) = hidden_in_products(graph, costing, op, (candidate,))
        chunks = costing.chunk_seconds(graph, op, (candidate,))
        (compute,), (sent,), (passing,) = chunks.compute, chunks.sent, chunks.passing
        assert sent >= passing * (steps - 1)
        exposed = max(passing * LEAST_EXPOSED_SHARE, passing - compute / steps)
        expected = (steps - 1) * (passing - exposed) if is_hidden else 0.0
        assert hidden == pytest.approx(expected)
        assert (hidden > 0) == is_hidden


@pytest.mark.parametrize("moved", ["A", "B", "C"])
def test_a_ring_holds_pieces_and_not_what_they_make_up(moved: str) -> None:
    graph, op, found = rings("x=4", moved, both_ways=False, sizes=(256, 256, 256))
    costing = encoder_for(graph, "x=4").costing
    whole = 256 * 256 * 4
    for candidate, _ in found:
        assert not candidate.stands_partial
        assert costing.streamed_bytes(graph, op, candidate) <= whole
