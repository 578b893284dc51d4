"""Seconds of candidates, through the door to the cost models."""

from __future__ import annotations

from dataclasses import replace

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from autoshard.backends import backend_for
from autoshard.candidates.candidate import Candidate, CandidateMaker
from autoshard.costing.arrivals import SHARE
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.model_dtype import model_dtype
from autoshard.costing.sums import sums_of
from autoshard.encoding.encode import Encoder
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.rule import Dims, Rule
from autoshard.reshard import StepKind
from cost_models import AxisPart, dtype_family, get_hardware
from tests.planner.graphs import Program, encoder_for, parts_of
from tests.planner.traced import exported

HARDWARE = ["cpu-host", "tpu-v5p", "h100"]


def matmul_program(size: int = 512) -> Graph:
    program = Program()
    left, right = program.argument(size, size), program.argument(size, size)
    return program.graph(program.matmul(left, right))


def compute_op(graph: Graph) -> Op:
    return next(op for op in graph.ops if op.kind is OpKind.COMPUTE)


def priced(
    graph: Graph, mesh: str, hardware: str
) -> tuple[Encoder, Op, tuple[Candidate, ...], list[float]]:
    encoder = encoder_for(graph, mesh, hardware=hardware)
    op = compute_op(graph)
    assert op.rule is not None
    candidates = CandidateMaker(parts_of(mesh)).of_rule(op.rule)
    seconds = encoder.node_costs.seconds(op, candidates)
    return encoder, op, candidates, [float(s) for s in seconds]


@pytest.mark.parametrize("hardware", HARDWARE)
@pytest.mark.parametrize("mesh", ["x=8", "x=2,y=4", "x=2,y=2,z=2"])
def test_cutting_the_work_never_costs_more(mesh: str, hardware: str) -> None:
    encoder, op, candidates, seconds = priced(matmul_program(), mesh, hardware)
    reductions = encoder.node_costs.reductions.seconds(op, candidates)
    work = np.array(seconds) - reductions
    assert np.all(work <= work[0] * (1 + 1e-9))


def test_an_all_to_all_takes_a_copy_of_all_it_moves_on_accelerators() -> None:
    num_bytes = np.array([2.0**24])
    extra = {}
    for hardware in HARDWARE:
        parts = parts_of("x=8")
        model = cost_model_for(get_hardware(hardware), parts)
        costing = Costing(model, parts)
        took = costing.step_seconds(StepKind.ALL_TO_ALL, (0,), num_bytes)
        sent = model.all_to_all_seconds(num_bytes, costing.axis_parts((0,)))
        extra[hardware] = float(took[0] - sent[0])
    assert extra["cpu-host"] == 0
    for hardware in ("tpu-v5p", "h100"):
        memory = get_hardware(hardware).memory
        share = 1.0 if memory.streamed is None else memory.streamed.copies
        moved = 2 * num_bytes[0] / (share * memory.bytes_per_second)
        assert 1.0 <= extra[hardware] / moved < 1.5


def reduction_of(hardware: str, *, is_scattered: bool) -> float:
    graph = matmul_program()
    encoder, op, candidates, _ = priced(graph, "x=8", hardware)
    chosen = [
        c for c in candidates if bool(c.scattered) is is_scattered and (c.reduced or c.scattered)
    ]
    return float(encoder.node_costs.reductions.seconds(op, (chosen[0],))[0])


def test_a_machine_without_reduce_scatter_pays_the_all_reduce() -> None:
    scattered = reduction_of("cpu-host", is_scattered=True)
    assert scattered == reduction_of("cpu-host", is_scattered=False) > 0


def test_a_machine_with_reduce_scatter_pays_less_than_the_all_reduce() -> None:
    scattered, whole = (reduction_of("tpu-v5e", is_scattered=given) for given in (True, False))
    assert 0 < scattered < whole


def test_what_is_scattered_first_leaves_less_to_reduce() -> None:
    graph = matmul_program()
    encoder, op, candidates, _ = priced(graph, "x=2,y=4", "tpu-v5p")
    costing = encoder.costing

    def cost(reduced: tuple[int, ...], scattered: tuple[int, ...]) -> float:
        found = next(
            c
            for c in candidates
            if (c.reduced, c.scattered) == (reduced, scattered) and c.partial == ((), ())
        )
        return float(encoder.node_costs.reductions.seconds(op, (found,))[0])

    num_bytes = np.array([512 * 512 * 4.0])
    scatter = costing.model.reduce_scatter_seconds(num_bytes, (AxisPart("y", 1, 4),))
    rest = costing.model.all_reduce_seconds(num_bytes / 4, (AxisPart("x", 1, 2),))
    assert cost((0,), (1,)) == pytest.approx(float((scatter + rest)[0]))
    assert cost((0, 1), ()) > 0


def test_ops_that_only_rename_or_pin_cost_nothing() -> None:
    program = Program()
    value = program.constraint(program.argument(8, 8), "#sdy.sharding<@mesh, [{?}, {?}]>")
    graph = program.graph(value)
    encoder = encoder_for(graph, "x=4")
    for op in graph.ops:
        assert op.rule is not None
        candidates = CandidateMaker(parts_of("x=4")).of_rule(op.rule)
        seconds = encoder.node_costs.seconds(op, candidates)
        assert op.kind is OpKind.ARGUMENT or not seconds.any()


def test_of_an_argument_that_may_be_new_small_pieces_are_better_and_a_kept_one_costs_nothing() -> (
    None
):
    program = Program()
    graph = program.graph(program.constraint(program.argument(8, 8), "<@mesh, [{?}, {?}]>"))
    encoder = encoder_for(graph, "x=4")
    (argument,) = graph.arguments
    assert argument.rule is not None
    candidates = CandidateMaker(parts_of("x=4")).of_rule(argument.rule)
    pieces = np.array([c.cut for c in candidates])
    costing = encoder.costing
    seconds = encoder.node_costs.seconds(argument, candidates)
    bandwidth = costing.model.hardware.memory.bytes_per_second
    np.testing.assert_allclose(seconds, SHARE * 8 * 8 * 4 / pieces / bandwidth)
    kept = replace(graph, donated=(argument.index,))
    assert not encoder_for(kept, "x=4").node_costs.seconds(argument, candidates).any()


def test_mesh_parts_are_said_as_axes_in_mesh_order() -> None:
    parts = parts_of("x=8,y=2", x=(4, 2))
    costing = Costing(cost_model_for(get_hardware("cpu-host"), parts), parts)
    assert costing.axis_parts((2, 0)) == (AxisPart("x", 1, 4), AxisPart("y", 1, 2))
    assert costing.axis_parts((1, 0)) == (AxisPart("x", 1, 8),)
    assert costing.axis_parts((1,)) == (AxisPart("x", 4, 2),)


def test_renaming_axes_leaves_costs_alone() -> None:
    graph = matmul_program()
    _, _, _, first = priced(graph, "x=2,y=4", "cpu-host")
    _, _, _, second = priced(graph, "rows=2,columns=4", "cpu-host")
    assert first == second


def test_a_longer_op_costs_in_proportion_to_its_repeats() -> None:
    graph = matmul_program()
    again = replace(
        graph,
        ops=tuple(replace(op, repeat=7.0) if op.kind is OpKind.COMPUTE else op for op in graph.ops),
    )
    once = encoder_for(graph, "x=2,y=4").encode()
    often = encoder_for(again, "x=2,y=4").encode()
    node = once.node_by_op[compute_op(graph).index]
    np.testing.assert_allclose(
        often.problem.node_costs[node], 7 * once.problem.node_costs[node], rtol=1e-6
    )


@pytest.mark.parametrize(
    ("dtype", "family"),
    [
        ("f32", "float32"),
        ("bf16", "bfloat16"),
        ("f8E4M3FN", "float8"),
        ("i8", "int8"),
        ("i32", "float32"),
        ("complex<f64>", "float64"),
    ],
)
def test_element_types_are_priced_as_their_family(dtype: str, family: str) -> None:
    assert model_dtype(dtype) == family
    assert dtype_family(model_dtype(dtype)) == family  # as the cost model reads it


def test_sums_over_two_cut_dimensions_are_taken_one_by_one_on_hosts_and_at_once_on_tpus() -> None:
    rule = Rule((16, 32), (((0,), (1,)),), ((),), reduction=frozenset({0, 1}))
    candidates = CandidateMaker(parts_of("x=2,y=4")).of_rule(rule)
    (both,) = (c for c in candidates if c.operands == (((0,), (1,)),))
    sums = {
        hardware: tuple(
            one.parts
            for one in sums_of(
                get_hardware(hardware),
                backend_for(get_hardware(hardware)),
                parts_of("x=2,y=4"),
                OpClass.REDUCE,
                both,
                (),
                32,
            )
        )
        for hardware in HARDWARE
    }
    assert sums == {"cpu-host": ((0,), (1,)), "tpu-v5p": ((0, 1),), "h100": ((0, 1),)}


def ended(shape: tuple[int, ...], *result: tuple[int, ...]) -> Candidate:
    """A sum over one more dimension in front, cut by all of a mesh x=2,y=4, that ends so."""
    dims: Dims = tuple((d,) for d in range(len(shape) + 1))
    rule = Rule((64, *shape), (dims,), (dims[1:],), reduction=frozenset({0}))
    candidates = CandidateMaker(parts_of("x=2,y=4")).of_rule(rule)
    whole = ((0, 1), *((),) * len(shape))
    (found,) = (c for c in candidates if c.operands == (whole,) and c.results == (result,))
    return found


def along(shape: tuple[int, ...], dim: int) -> Candidate:
    """The same, cut by both axes along one dimension."""
    return ended(shape, *((0, 1) if d == dim else () for d in range(len(shape))))


def kinds(hardware: str, candidate: Candidate, shape: tuple[int, ...], bits: int) -> list[str]:
    machine, parts = get_hardware(hardware), parts_of("x=2,y=4")
    model = backend_for(machine)
    sums = sums_of(machine, model, parts, OpClass.REDUCE, candidate, shape, bits)
    assert {part for one in sums for part in one.parts} == {0, 1}
    return [one.kind for one in sums]


SCATTERED = [  # shape, dimension, whether libtpu 0.0.42 scatters float32, and bfloat16
    ((512, 1024), 1, True, False),
    ((512, 2048), 1, True, True),
    ((512, 512), 1, False, False),
    ((64, 512), 0, True, True),
    ((32, 512), 0, False, False),
    ((8, 64, 512), 0, True, True),
    ((64, 8, 512), 1, False, False),
    ((64, 64, 512), 1, True, False),
    ((512, 8, 64), 0, False, False),
    ((512, 8, 64), 1, True, True),
    ((512, 8, 64), 2, True, False),
    ((8, 64, 512), 2, False, False),
    ((8, 16, 4096), 2, True, True),
    ((512, 64), 0, False, False),
    ((512, 1024), 0, True, True),
    ((65536,), 0, False, False),
    ((512, 5, 128), 0, True, True),
]


@pytest.mark.parametrize(("shape", "dim", "as_f32", "as_bf16"), SCATTERED)
def test_tpus_scatter_a_sum_whose_pieces_fill_tiles(
    shape: tuple[int, ...], dim: int, as_f32: bool, as_bf16: bool
) -> None:
    for bits, is_scattered in ((32, as_f32), (16, as_bf16)):
        one = "reduce-scatter" if is_scattered else "all-reduce"
        assert kinds("tpu-v5e", along(shape, dim), shape, bits) == [one]
        assert kinds("h100", along(shape, dim), shape, bits) == ["reduce-scatter"]


def test_sums_of_products_of_few_rows_are_scattered() -> None:
    shape = (512, 4, 128)
    machine, parts = get_hardware("tpu-v5e"), parts_of("x=2,y=4")
    model = backend_for(machine)
    (one,) = sums_of(machine, model, parts, OpClass.MATMUL, along(shape, 0), shape, 32)
    assert one.kind == "reduce-scatter"


@pytest.mark.parametrize("machine", ["tpu-v5e", "h100"])
def test_a_sum_that_is_scattered_onto_two_dimensions_is_taken_whole(machine: str) -> None:
    shape = (512, 1024)
    assert kinds(machine, ended(shape, (0,), (1,)), shape, 32) == ["all-reduce"]


@pytest.mark.parametrize(
    ("bits", "kind"), [(32, "reduce-scatter"), (16, "all-reduce")], ids=["float32", "bfloat16"]
)
def test_what_products_sum_is_scattered_before_the_rest_is_reduced(bits: int, kind: str) -> None:
    candidate, shape = ended((512, 512), (), (1,)), (512, 512)
    machine, parts = get_hardware("tpu-v5e"), parts_of("x=2,y=4")
    model = backend_for(machine)
    first, rest = sums_of(machine, model, parts, OpClass.MATMUL, candidate, shape, bits)
    assert (first.kind, first.parts, first.pieces) == (kind, (1,), 1)
    assert (rest.kind, rest.parts, rest.pieces) == ("all-reduce", (0,), 4)


def test_on_cpus_a_product_is_summed_whole_for_each_dimension_that_it_is_scattered_onto() -> None:
    machine, parts, shape = get_hardware("cpu-host"), parts_of("x=2,y=4"), (512, 1024)
    model = backend_for(machine)
    candidate = ended(shape, (0,), (1,))
    sums = sums_of(machine, model, parts, OpClass.MATMUL, candidate, shape, 32)
    assert [(one.parts, one.pieces) for one in sums] == [((1,), 1), ((0,), 1)]


@pytest.mark.parametrize("op_class", [OpClass.REDUCE, OpClass.SCATTER])
@pytest.mark.parametrize("hardware", HARDWARE)
def test_what_other_ops_sum_is_reduced_at_once_unless_all_of_it_is_scattered(
    hardware: str, op_class: OpClass
) -> None:
    candidate, shape = ended((512, 1024), (), (1,)), (512, 1024)
    machine, parts = get_hardware(hardware), parts_of("x=2,y=4")
    model = backend_for(machine)
    (one,) = sums_of(machine, model, parts, op_class, candidate, shape, 32)
    assert (one.kind, one.parts, one.pieces) == ("all-reduce", (0, 1), 1)


@pytest.mark.parametrize(("is_turned", "scattered_dim"), [(False, 0), (True, 1)])
def test_a_product_that_is_transposed_is_scattered_as_its_transpose_lies(
    is_turned: bool, scattered_dim: int
) -> None:
    program = Program()
    x, y = program.argument(1024, 65536), program.argument(65536, 1024)
    made = program.matmul(x, y)
    turned = Rule((1024, 1024), (((0,), (1,)),), (((1,), (0,)),))
    if is_turned:
        program.compute("transpose", (made,), [(1024, 1024)], turned, OpClass.COPY)
    graph, parts = program.graph(), parts_of("x=8")
    costing = Costing(cost_model_for(get_hardware("tpu-v5e"), parts), parts)
    op = next(op for op in graph.ops if op.name == "dot_general")
    graph = replace(
        graph,
        values=tuple(
            replace(v, dtype="bf16", bits=16) if v.index == made else v for v in graph.values
        ),
    )
    assert op.rule is not None
    kinds_by_dim = {
        candidate.results[0].index((0,)): costing.sums_of(graph, op, candidate)[0].kind
        for candidate in CandidateMaker(parts).of_rule(op.rule)
        if candidate.scattered
    }
    assert kinds_by_dim == {scattered_dim: "reduce-scatter", 1 - scattered_dim: "all-reduce"}


def test_a_sum_that_a_tpu_does_not_scatter_costs_as_much_as_one_that_stays_whole() -> None:
    program = Program()
    graph = program.graph(program.sum(program.argument(128, 1024, 8)))
    op = next(op for op in graph.ops if op.name == "reduce")
    assert op.rule is not None
    parts = parts_of("x=2,y=4")
    reductions = encoder_for(graph, "x=2,y=4", hardware="tpu-v5e").node_costs.reductions
    candidates = CandidateMaker(parts).of_rule(op.rule)
    priced_sums = zip(candidates, reductions.seconds(op, candidates), strict=True)
    by_end = {c.results[0]: s for c, s in priced_sums if c.operands == (((), (), (0, 1)),)}
    whole, one, two = (by_end[end] for end in (((), ()), ((0, 1), ()), ((0,), (1,))))
    assert one < two == whole


@pytest.mark.parametrize(
    ("links", "kind"),
    [
        ((8,), "reduce-scatter"),
        ((2, 4), "reduce-scatter"),
        ((2, 2), "reduce-scatter"),
        ((4, 4), "all-reduce"),
        ((2, 2, 2), "all-reduce"),
    ],
)
def test_tpus_scatter_sums_over_rings_that_fit_the_torus(links: tuple[int, ...], kind: str) -> None:
    shape, parts = (512, 1024), parts_of("x=2,y=4")
    for hardware, expected in (("tpu-v5e", kind), ("h100", "reduce-scatter")):
        machine, candidate = get_hardware(hardware), along(shape, 0)
        model = backend_for(machine)
        (one,) = sums_of(machine, model, parts, OpClass.REDUCE, candidate, shape, 32, links)
        assert one.kind == expected


def test_a_group_over_the_whole_of_a_square_slice_does_not_scatter() -> None:
    program = Program()
    graph = program.graph(program.sum(program.argument(512, 1024, 16)))
    op = next(op for op in graph.ops if op.name == "reduce")
    kinds_by_mesh = {}
    for mesh in ("x=2,y=4", "x=4,y=4"):
        parts = parts_of(mesh)
        costing = Costing(cost_model_for(get_hardware("tpu-v5e"), parts), parts)
        rule = Rule((512, 1024, 16), (((0,), (1,), (2,)),), (((0,), (1,)),), frozenset({2}))
        (candidate,) = (
            c
            for c in CandidateMaker(parts).of_rule(rule)
            if c.operands == (((), (), (0, 1)),) and c.results == (((0, 1), ()),)
        )
        kinds_by_mesh[mesh] = [one.kind for one in costing.sums_of(graph, op, candidate)]
    assert kinds_by_mesh == {"x=2,y=4": ["reduce-scatter"], "x=4,y=4": ["all-reduce"]}


def convolution(groups: int, *, is_gradient: bool = False) -> Graph:
    """A convolution of 16 features in some groups, or the gradient of its kernel."""

    def convolved(image: jax.Array, kernel: jax.Array) -> jax.Array:
        dims = ("NWC", "WIO", "NWC")
        made: jax.Array = jax.lax.conv_general_dilated(
            image, kernel, (1,), "SAME", dimension_numbers=dims, feature_group_count=groups
        )
        return made

    def gradient(image: jax.Array, kernel: jax.Array) -> jax.Array:
        made: jax.Array = jax.grad(lambda kernel: convolved(image, kernel).sum())(kernel)
        return made

    given = jnp.ones((8, 32, 16)), jnp.ones((7, 16 // groups, 16))
    return exported(gradient if is_gradient else convolved, *given, mesh="x=2")[0]


@pytest.mark.parametrize(
    ("groups", "is_gradient", "place"),
    [(16, False, 0), (16, True, 1), (4, False, None), (1, False, None), (1, True, None)],
)
def test_vector_units_compute_depthwise_convolutions_and_the_gradients_of_their_kernels(
    groups: int, *, is_gradient: bool, place: int | None
) -> None:
    graph = convolution(groups, is_gradient=is_gradient)
    encoder = encoder_for(graph, "x=2", hardware="tpu-v5e")
    (op,) = [op for op in graph.ops if op.op_class is OpClass.CONVOLUTION]
    costing = encoder.costing
    macs = costing.backend.layout.depthwise_macs
    assert costing.depthwise_macs(op) == (0.0 if place is None else macs[place])
    assert op.rule is not None
    (whole,) = [c for c in CandidateMaker(parts_of("x=2")).of_rule(op.rule) if c.cut == 1]
    clock = costing.model.hardware.compute.clock_hertz
    assert clock is not None
    lanes = 128 / 16
    multiply_adds = 8 * 32 * 16 * 7  # those that padding is in, too
    seconds = lanes * multiply_adds / macs[place] / clock if place is not None else 0.0
    assert costing.vector_seconds(graph, op, (whole,)) == pytest.approx([seconds])
    assert (costing.padded_flops(graph, op, (whole,)) == 0) == (place is not None)
