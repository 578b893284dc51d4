"""Which values are written to memory, and which are computed by what reads them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from math import prod

from autoshard.backends import FusionPolicy, LayoutPolicy
from autoshard.graph.dataflow import trace_back, trace_forward
from autoshard.graph.index_uses import store_widely_indexed
from autoshard.graph.library_copies import is_read_reversed
from autoshard.graph.op_traits import FUSIBLE, READS_FUSED, is_elementwise, is_fusible, is_matmul
from autoshard.graph.product_writes import meeting
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind, Value
from autoshard.graph.recomputing import (
    Computed,
    computed_from,
    is_cheaper_stored,
    is_quantized,
    matmuls_reading,
)
from autoshard.graph.row_sums import goes_along_rows
from autoshard.graph.scatters import is_one_hot, scattered_sums
from autoshard.graph.shared_slices import is_sliced_apart
from autoshard.graph.sliced_operands import sliced_operands
from autoshard.graph.window import Window

TILE_DIMS = 2
"""Dimensions of a tile of a TPU's memory: the last ones of most tensors."""


def stored_values(
    graph: Graph,
    fusion: FusionPolicy,
    layout: LayoutPolicy,
    written: Mapping[int, int],
    addends: Mapping[int, int],
    kept: Set[int],
) -> list[bool]:
    """Per value, whether it has a buffer.

    Args:
        graph: The program.
        fusion: Policy.
        layout: Policy.
        written: As of `Written.by_value`.
        addends: By sum that a scatter makes, what it is scattered into.
        kept: Further values that are stored.
    """
    computed, sources = (
        _computed_by_products(graph) if fusion.matmuls_read_single_source else (set(), set())
    )
    kept = {*addends, *addends.values(), *sources, *kept}
    if fusion.materializes_scatter_sums:
        kept |= scattered_sums(graph)
    if fusion.stores_sliced_operands:
        kept |= sliced_operands(graph)
    in_place = {
        operand
        for total, addend in addends.items()
        for operand in graph.maker(total).operands
        if operand != addend
    }
    stored: list[bool] = []
    behind: list[Computed] = []
    costs = dict(fusion.op_costs)
    for value in graph.values:
        index = value.index
        is_stored = index not in in_place and (
            index in kept or _is_stored(graph, index, fusion, layout, written, computed)
        )
        if fusion.fuses_into_matmuls:
            own = Computed({index: value.num_bytes}, {})
            made = own if is_stored else computed_from(graph, value, behind, costs)
            is_stored = (
                is_stored
                or is_quantized(graph, value, made, fusion)
                or is_cheaper_stored(graph, value, made, fusion, layout)
                or _is_written_with_a_sum(graph, value, made, fusion, layout)
            )
            behind.append(own if is_stored else made)
        stored.append(is_stored)
    if fusion.max_positions:
        store_widely_indexed(graph, stored, fusion.max_positions)
    return stored


def _is_written_with_a_sum(
    graph: Graph, value: Value, made: Computed, fusion: FusionPolicy, layout: LayoutPolicy
) -> bool:
    """True for what a reduction computes, if all that need it would read more to do so again.

    The reduction's kernel writes it, once; the others read that. Several matmuls for which it is
    computed once need it once.
    """
    op, read_bytes = graph.maker(value.index), made.num_bytes
    if not is_elementwise(op) or read_bytes <= value.num_bytes:
        return False
    if meeting(graph, value.index, op.region, lambda _op, _made: True) is not None:
        return False
    enough = read_bytes / (read_bytes - value.num_bytes)
    num_elements = prod(value.shape)
    num_ends, is_reduced = 0, False
    todo, seen = list(graph.consumers[value.index]), set()
    while todo and not (is_reduced and num_ends > enough):
        index = todo.pop()
        if index in seen:
            continue
        seen.add(index)
        reader = graph.ops[index]
        is_through = _is_fused_through(graph, reader, num_elements)
        result = graph.values[reader.results[0]] if is_through else value
        if is_through and not is_cheaper_stored(graph, result, made, fusion, layout):
            todo += graph.consumers[reader.results[0]]
        else:
            num_ends += 1
            is_reduced = is_reduced or reader.op_class is OpClass.REDUCE
    return is_reduced and num_ends > enough


def _is_fused_through(graph: Graph, op: Op, num_elements: int) -> bool:
    """True for an op that readers compute, of as many elements."""
    return is_fusible(op) and prod(graph.values[op.results[0]].shape) == num_elements


def is_stored_constant(op: Op) -> bool:
    """True where it is a large table written into the program, which is there all the time."""
    return op.kind is OpKind.COMPUTE and op.name == "constant"


def _is_stored(
    graph: Graph,
    value: int,
    fusion: FusionPolicy,
    layout: LayoutPolicy,
    written: Mapping[int, int],
    computed: Set[int],
) -> bool:
    op = graph.maker(value)
    if op.kind is OpKind.FREE or _is_made_in_loop(graph, op, fusion):
        return False
    if not graph.values[value].shape:  # a sum is there once it is taken, however late it is read
        return op.kind is OpKind.COMPUTE and op.op_class not in FUSIBLE
    readers = [graph.ops[index] for index in graph.consumers[value]]
    if value in computed:
        readers = [reader for reader in readers if reader.op_class is not OpClass.MATMUL]
    if value in written:
        is_reduced_only = all(
            reader.op_class is OpClass.REDUCE and not reader.windows for reader in readers
        )
        is_fused = fusion.fuses_into_matmuls and bool(readers) and is_reduced_only
        return written[value] == value and not is_fused
    if not _is_fusible(graph, op, fusion):
        return True
    if layout.copies_conv_operands and is_read_reversed(graph, op):
        return False
    if fusion.materializes_moved_elements and _is_kernel(graph, op):
        return True
    if not all(_reads_fused(graph, value, reader, fusion) for reader in readers):
        return True
    if fusion.stores_shared_slices and is_sliced_apart(graph, value):
        return True
    if op.name not in fusion.materialized_ops or len(readers) < 2 or value in computed:
        return False
    is_narrow = graph.values[value].bits <= fusion.materialized_max_bits
    return is_narrow or _is_reduced_apart(graph, value, readers)


def _is_reduced_apart(graph: Graph, value: int, readers: Sequence[Op]) -> bool:
    """True where a reduction reads what is computed from a value, and other kernels read it too.

    A normalization, which reads the value with its own reduction, is one kernel with that.
    """

    def is_fused(op: Op) -> bool:
        is_written = any(any(matmuls_reading(graph, made)) for made in op.results)
        return op.op_class is OpClass.ELEMENTWISE and not is_written

    ends = trace_forward(graph, value, is_fused)
    if all(end.op_class is not OpClass.REDUCE for end in ends):
        return False
    others = [reader for reader in readers if reader.op_class is not OpClass.REDUCE]
    return any(
        value not in trace_back(graph, {*one.operands} - {value}, _is_computed).inner
        for one in others
    )


def _is_computed(op: Op, _: int) -> bool:
    return op.kind is OpKind.COMPUTE and op.op_class in READS_FUSED


def _computed_by_products(graph: Graph) -> tuple[Set[int], Set[int]]:
    """What matrix products compute themselves, and the tensors that they then read for it.

    That is what element-wise ops make of one other tensor, of no wider elements, and constants.
    """
    computed: set[int] = set()
    read: set[int] = set()
    sources: set[int] = set()
    for op in reversed(graph.ops):
        if is_matmul(op):
            read.update(op.operands)
        source = _only_source(graph, op)
        if source is not None and op.results[0] in read:
            computed.add(op.results[0])
            read.add(source)
            sources.add(source)
    return computed, sources - computed


def _only_source(graph: Graph, op: Op) -> int | None:
    """What an element-wise op makes its result of, if that is one tensor besides constants."""
    if not is_elementwise(op):
        return None
    made_of = [v for v in op.operands if graph.maker(v).kind is not OpKind.FREE]
    if len(made_of) != 1 or len(op.results) != 1:
        return None
    source, result = graph.values[made_of[0]], graph.values[op.results[0]]
    is_read_as_well = source.shape == result.shape and source.bits <= result.bits
    return source.index if is_read_as_well else None


def _is_made_in_loop(graph: Graph, op: Op, fusion: FusionPolicy) -> bool:
    """True where a loop makes in each run what it reads unchanged, as that is made of constants."""
    if op.name != "while" or len(op.operands) > 1:
        return False
    maker = graph.maker(op.operands[0])
    return maker.kind is OpKind.FREE and (fusion.sinks_into_loops or _is_splat(graph, maker))


def _is_splat(graph: Graph, op: Op) -> bool:
    """True where every element is one constant that no called function makes."""
    if op.in_function or op.name not in ("constant", "broadcast_in_dim", "convert"):
        return False
    return all(_is_splat(graph, graph.maker(value)) for value in op.operands)


def _is_fusible(graph: Graph, op: Op, fusion: FusionPolicy) -> bool:
    if op.kind is not OpKind.COMPUTE or is_stored_constant(op):
        return False
    if op.op_class is OpClass.SCATTER:
        return fusion.one_hot_scatters and is_one_hot(graph, op)
    if op.op_class is OpClass.GATHER:
        return fusion.fuses_gathers and not _is_normalized(graph, op.results[0])
    return op.op_class in FUSIBLE and op.name != "dynamic_update_slice"


def _is_normalized(graph: Graph, value: int) -> bool:
    """True where a kernel that sums rows and takes the sums along them reads a value."""
    return any(goes_along_rows(graph, end) for end in trace_forward(graph, value, is_elementwise))


def _is_kernel(graph: Graph, op: Op) -> bool:
    """True where it pads between elements, or skips elements along one dimension of a tile."""
    num_dims = len(graph.values[op.results[0]].shape) if op.results else 0
    return bool(op.spread) and (op.name == "pad" or max(op.spread) >= num_dims - TILE_DIMS)


def _moves_elements(op: Op) -> bool:
    """True where an op brings elements to other places of its result, computing nothing."""
    return op.name in ("pad", "concatenate", "reverse") or bool(op.spread)


def _reads_fused(graph: Graph, value: int, reader: Op, fusion: FusionPolicy) -> bool:
    if reader.kind is not OpKind.COMPUTE:
        return False
    # Kernels of loops compute what they join; `joined_parts` has what they do not.
    if fusion.materializes_moved_elements and _moves_elements(reader) and reader.repeat == 1:
        return False
    if reader.op_class in PRODUCTS:
        return fusion.fuses_into_matmuls
    if reader.op_class is OpClass.SCATTER and fusion.fuses_into_scatters:
        return value != reader.operands[0]
    if reader.op_class is OpClass.GATHER:
        taken = prod(graph.values[reader.results[0]].shape)
        return fusion.fuses_into_gathers and taken < prod(graph.values[value].shape)
    overlapping = _overlapping_windows(graph, reader)
    if overlapping:
        image = graph.values[value].shape
        is_running = any(window.size >= image[window.image] for window in overlapping)
        return fusion.fuses_into_overlapping_windows and not is_running
    return reader.op_class in READS_FUSED


def _overlapping_windows(graph: Graph, op: Op) -> list[Window]:
    """The windows of an op that share elements of its operand with the next ones."""
    return [
        window
        for window in op.windows
        if window.size > window.stride and graph.values[op.results[0]].shape[window.made] > 1
    ]
