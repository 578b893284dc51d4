"""Memory that choices of ops take: their results, and what they hold while they run."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import prod
from typing import TypeVar

import numpy as np
import numpy.typing as npt

from autoshard.backends import Backend
from autoshard.backends.split_k import Products, num_splits
from autoshard.candidates.candidate import Candidate
from autoshard.costing.combined_calls import combined_calls
from autoshard.costing.convert_motion import copies_for_loops
from autoshard.costing.local_products import local_products
from autoshard.encoding.device_room import DeviceRoom
from autoshard.encoding.memory_tags import PARTIAL, PEELED, SUMMED, UNWRITTEN, WORK, WRITTEN
from autoshard.encoding.row_memory import RowMemory
from autoshard.graph.library_copies import is_kernel_gradient, library_copies
from autoshard.graph.op_traits import READS_FUSED
from autoshard.graph.program import DEVICE_MEMORY, Graph, Op, OpClass, OpKind, Value
from autoshard.graph.stacks import stacked_by
from autoshard.graph.summed_stacks import summed_stacks
from autoshard.graph.transposed_operands import transposed_operands
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import Layout
from solvers import NodeMemory

IntArray = npt.NDArray[np.int64]
_SomeLayout = TypeVar("_SomeLayout", Layout, Layout | None)

_PARTIAL_BITS = 32  # of an element that a matmul sums up
_INDEX_BITS = 32


def reversed_kernels(graph: Graph, backend: Backend) -> frozenset[int]:
    """Ops that reverse a kernel, where that is copied as soon as the kernel is there.

    What is gathered for them is let go after the convolution of the forward pass.
    """
    if not backend.layout.copies_conv_gradient_operands:
        return frozenset()
    return frozenset(op.index for op in graph.ops if op.name == "reverse")


def _of_each(layouts: Sequence[_SomeLayout], held: Callable[[_SomeLayout], int]) -> IntArray:
    """int64[num_layouts]: what is held in each, found once where they are equal."""
    known = {one: held(one) for one in dict.fromkeys(layouts)}
    return np.array([known[one] for one in layouts], dtype=np.int64)


@dataclass(frozen=True, slots=True)
class ChoiceMemory:
    """The memory terms of nodes.

    Args:
        room: Of the device.
        alike: Arguments and the results that replace them, by position.
        candidates: By op index.
        node_by_op: Likewise.
    """

    room: DeviceRoom
    alike: Sequence[tuple[int, int]]
    candidates: Mapping[int, tuple[Candidate, ...]]
    node_by_op: Mapping[int, int]
    narrowed: Mapping[int, int]
    _times: dict[tuple[int, float], Mapping[int, tuple[int, int]]] = field(default_factory=dict)
    _held: IdentityCache[IntArray] = field(default_factory=IdentityCache)
    _partial: IdentityCache[IntArray] = field(default_factory=IdentityCache)

    def terms(self) -> Iterator[NodeMemory]:
        """All of them."""
        yield from self._copied_arguments()
        yield from self._unwritten_results()
        yield from self._narrowed_for_loops()
        for value in self.room.graph.values:
            if value.index not in self.room.reused and value.op in self.node_by_op:
                yield from self._of_value(value)
        yield from self._on_their_way()
        yield from self._of_last_runs()
        yield from self._panels()
        yield from RowMemory(self.room, self.candidates, self.node_by_op).terms()
        yield from self._masked_groups()
        yield from self._split_sums()
        yield from self._halos()
        yield from self._library_copies()
        yield from self._positions()
        yield from self._transposed_operands()
        yield from self._summed_stacks()

    def _nodes(self) -> Iterator[tuple[Op, int, tuple[Candidate, ...]]]:
        """Ops that have a choice, with their nodes and candidates."""
        for index, node in self.node_by_op.items():
            yield self.room.graph.ops[index], node, self.candidates[index]

    def _of_value(self, value: Value) -> Iterator[NodeMemory]:
        """A value itself, and what making it takes beside it."""
        room = self.room
        start, stop = room.buffers.intervals[value.index]
        op = room.graph.ops[value.op]
        is_summed = op.op_class is OpClass.MATMUL and not room.buffers.is_stored[value.index]
        if stop <= start and not is_summed:
            return
        node, candidates = self.node_by_op[op.index], self.candidates[op.index]
        bits = self.narrowed.get(value.index, value.bits)
        usage = self._local(value, op, op.results.index(value.index), bits=bits)
        if value.index in room.buffers.unless_summed:
            usage = np.where([bool(c.reduced or c.scattered) for c in candidates], usage, 0)
        if is_summed:  # what it is written as comes after the sum: until then all is held
            start, usage = op.index, np.zeros_like(usage)
        else:
            left = room.vmem.hbm_bytes(usage, may_hold=room.vmem.short_lived[value.index])
            tag = WRITTEN if value.index in room.results else ""
            yield NodeMemory(node, start, stop, left, tag)
        yield from self._layout_copies(node, op)
        partial = self._partial_bytes(op, candidates, value, bits, usage, is_summed=is_summed)
        holds = room.vmem.holds_copies
        is_combined = bool(room.backend.memory.combined_sum_bytes)
        is_combined &= op.index in room.calls.group_of and op.index not in room.buffers.filled_at
        if is_combined:
            summed = np.zeros_like(usage) if partial is None else partial
            for begun, over, held, tag in self._until_called(op, start, value, usage, summed):
                left = room.vmem.hbm_bytes(held, may_hold=holds)
                yield NodeMemory(node, begun, over, left, tag)
        elif partial is not None:
            if op.index in room.buffers.filled_at:
                stop = room.buffers.time_of(op.index) + 1
            else:
                stop = start + 1
            left = room.vmem.hbm_bytes(partial, may_hold=holds)
            yield NodeMemory(node, room.earliest(op.index, start), stop, left, PARTIAL)

    def _until_called(
        self, op: Op, start: int, value: Value, usage: IntArray, partial: IntArray
    ) -> Iterator[tuple[int, int, IntArray, str]]:
        """When a partial sum is held that is taken in one call with others.

        Until the call is over: an asynchronous one is when the next one begins. Then its results
        are there too, if they are not written over what is summed.
        """
        candidates = self.candidates[op.index]
        is_summed = np.array([bool(c.reduced or c.scattered) for c in candidates])
        is_scattered = np.array([bool(c.scattered) for c in candidates])
        is_apart = is_scattered if self.room.backend.memory.sums_in_place else is_summed
        group = self.room.calls.group_of[op.index]
        begun, over = np.empty_like(usage), np.empty_like(usage)
        for size in np.unique(usage[is_summed]):
            times = self._call_times(group, float(size) / max(value.num_bytes, 1))
            begun[usage == size], over[usage == size] = times[op.index]
        for first, last in sorted({*zip(begun[is_summed], over[is_summed], strict=True)}):
            here = is_summed & (begun == first) & (over == last)
            yield start, int(last) + 1, np.where(here, partial, 0), PARTIAL
            yield int(first), int(last) + 1, np.where(here & is_apart, usage, 0), SUMMED

    def _call_times(self, group: Sequence[int], share: float) -> Mapping[int, tuple[int, int]]:
        """By op of a group, when the call of its sum begins and when it is over.

        Args:
            group: Ops whose sums may be one call, in program order.
            share: Of each result that a device has.
        """
        key = group[0], share
        if key not in self._times:
            graph, backend = self.room.graph, self.room.backend
            made = [graph.values[graph.ops[index].results[0]] for index in group]
            sizes = [share * value.num_bytes for value in made]
            keys = dict.fromkeys(range(len(group)))
            most = backend.memory.combined_sum_bytes
            first_of = combined_calls([()] * len(group), sizes, keys, most)
            members: dict[int, list[int]] = {}
            for place, index in enumerate(group):
                members.setdefault(first_of[place], []).append(index)
            calls = sorted(members.values(), key=lambda call: call[-1])
            starts = [max(map(self.room.buffers.time_of, call)) for call in calls]
            waits = backend.schedule.is_async("reduce-scatter")
            ends = [*starts[1:], starts[-1]] if waits else starts
            self._times[key] = {
                index: (start, end)
                for call, start, end in zip(calls, starts, ends, strict=True)
                for index in call
            }
        return self._times[key]

    def _local(
        self, value: Value, op: Op, place: int, *, is_result: bool = True, bits: int | None = None
    ) -> IntArray:
        """int64[num_candidates]: what one device has of a result or operand of an op.

        Args:
            value: The result or operand.
            op: The op.
            place: Of the value among its results or operands.
            is_result: Which of the two.
            bits: Of an element, where they are not as many as the value's own.
        """
        candidates = self.candidates[op.index]
        is_output = value.index in self.room.results if is_result else op.kind is OpKind.RESULT
        is_temporary = op.kind is not OpKind.ARGUMENT and not is_output
        lies = self.room.channels.get(value.index), value.index in self.room.rows

        def held() -> IntArray:
            layouts = [c.side(is_result=is_result)[place] for c in candidates]
            local = self.room.local_bytes if is_temporary else self.room.held_bytes
            return _of_each(layouts, lambda layout: local(value, layout, bits))

        key = (is_result, place, is_temporary, value.shape, value.bits, bits, lies)
        return self._held.get(held, candidates, key=key)

    def _on_their_way(self) -> Iterator[NodeMemory]:
        """Slices of stacks in host memory: that of one run leaves, or comes, during another."""
        graph = self.room.graph
        for op, node, _ in self._nodes():
            if graph.is_transfer(op) and graph.is_in_loop(op.region):
                region = graph.regions[op.region]
                usage = self._local(graph.values[op.results[0]], op, 0)
                yield NodeMemory(node, region.start, region.stop, usage)

    def _of_last_runs(self) -> Iterator[NodeMemory]:
        """Stacks of loops in a loop that brings slices from the host, a second time.

        Its last run is peeled off, as nothing is brought ahead there: the stacks that the run fills
        are allocated before the loop begins.

        Source: stacks of a scan that the reverse scan around it computes again, by libtpu 0.0.52
        for a v5e.
        """
        graph = self.room.graph
        peeled = {
            op.region
            for op in graph.ops
            if graph.is_transfer(op) and op.memory_kind == DEVICE_MEMORY
        }
        for op, node, _ in self._nodes():
            if op.region in peeled and graph.is_in_loop(op.region) and stacked_by(graph, op):
                region = graph.regions[op.region]
                usage = self._local(graph.values[op.results[0]], op, 0)
                yield NodeMemory(node, region.start, region.stop, usage, PEELED)

    def _panels(self) -> Iterator[NodeMemory]:
        """What products in steps hold while they run."""
        room = self.room
        for op, node, candidates in self._nodes():
            if candidates[-1].streamed is None:
                continue
            run = room.buffers.time_of(op.index)
            yield NodeMemory(node, run, run + 1, self._panel_bytes(op, candidates))

    def _panel_bytes(self, op: Op, candidates: tuple[Candidate, ...]) -> IntArray:
        """int64[num_candidates]; equal products share one array."""
        room = self.room

        def held() -> IntArray:
            found = [room.costing.streamed_bytes(room.graph, op, c) for c in candidates]
            return (np.array(found, dtype=np.float64) * room.overhead).astype(np.int64)

        values = (room.graph.values[value] for value in (*op.operands, *op.results))
        types = tuple((value.shape, value.dtype, value.bits) for value in values)
        return self._held.get(held, candidates, key=("panels", op.rule, op.is_exact, types))

    def _masked_groups(self) -> Iterator[NodeMemory]:
        """Operands of ragged matmuls once for each group, masked.

        The rows are, and both operands where rows are contracted, each in a dimension order of its
        own: from the first ragged matmul that reads them to the last of one kind.

        Source: openxla/xla, `ragged_dot_rewriter.cc`.
        """
        graph = self.room.graph
        if not self.room.backend.fusion.stores_masked_groups:
            return
        first: dict[int, int] = {}
        last: dict[tuple[int, bool], tuple[Op, int]] = {}
        for index in self.node_by_op:
            op = graph.ops[index]
            if op.name == "ragged_dot":
                rows, matrices, _ = (len(graph.values[value].shape) for value in op.operands)
                is_contracted = matrices == rows
                for place, value in enumerate(op.operands[: 1 + is_contracted]):
                    first.setdefault(value, index)
                    last[value, is_contracted] = op, place
        for (value, _), (op, place) in last.items():
            num_groups = prod(graph.values[op.operands[2]].shape)
            usage = num_groups * self._local(graph.values[value], op, place, is_result=False)
            yield NodeMemory(self.node_by_op[op.index], first[value], op.index + 1, usage, WORK)

    def _split_sums(self) -> Iterator[NodeMemory]:
        """Parts of split-k matmuls: there until their sum is, which fusible readers compute."""
        room = self.room
        graph, weights = room.graph, room.backend.fusion.split_k
        for op, node, candidates in self._nodes() if weights else ():
            if op.name != "dot_general" or op.rule is None:
                continue
            (made,) = (graph.values[value] for value in op.results)
            if made.num_bytes < room.negligible_bytes:
                continue
            products = self._products(op, made, candidates)
            splits = num_splits(products, weights)
            is_vector = np.minimum(products.rows, products.columns) == 1
            num_bytes = products.batch * products.rows * products.columns * _PARTIAL_BITS / 8
            parts = np.where((splits > 1) & ~is_vector, splits * num_bytes, 0.0) * room.overhead
            held = self._local(made, op, 0)
            readers = graph.consumers[made.index]
            run = room.buffers.time_of(op.index)
            stop = max((room.buffers.time_of(reader) + 1 for reader in readers), default=run + 1)
            is_moved = np.array([bool(one.reduced or one.scattered) for one in candidates])
            is_fused = all(graph.ops[reader].op_class in READS_FUSED for reader in readers)
            at_once = np.where(
                is_moved, parts, np.maximum(parts - held, 0.0) if is_fused else parts
            )
            yield NodeMemory(node, run, run + 1, at_once.astype(np.int64), WORK)
            if is_fused and stop > run + 1:
                later = np.where(is_moved, 0.0, np.maximum(parts - held, 0.0))
                yield NodeMemory(node, run + 1, stop, later.astype(np.int64), WORK)

    def _products(self, op: Op, made: Value, candidates: tuple[Candidate, ...]) -> Products:
        """What devices multiply under each candidate."""
        assert op.rule is not None
        parts, graph = self.room.costing.parts, self.room.graph
        rows, columns, summed = local_products(parts, op.rule, candidates)
        local = [prod(parts.local_shape(c.partial or c.results[0], made.shape)) for c in candidates]
        left, right = (graph.values[value].bits for value in op.operands)
        return Products(
            rows, columns, summed, np.array(local) / (rows * columns), (left, right), made.bits
        )

    def _halos(self) -> Iterator[NodeMemory]:
        """Pieces of images with their halos; where an image is last read, in its place."""
        room = self.room
        for op, node, candidates in self._nodes():
            if not op.windows:
                continue
            held = [room.costing.padded_bytes(room.graph, op, c) for c in candidates]
            if not any(held):
                continue
            usage = np.array(held, dtype=np.int64)
            value = room.graph.values[op.operands[0]]
            _, stop = room.buffers.intervals[value.index]
            run = room.buffers.time_of(op.index)
            if 0 < stop <= run + 1:
                piece = self._local(value, op, 0, is_result=False)
                usage = np.where(usage > 0, np.maximum(usage - piece, 0), 0)
            left = room.vmem.hbm_bytes(usage, may_hold=room.vmem.holds_copies)
            yield NodeMemory(node, run, run + 1, left, WORK)

    def _library_copies(self) -> Iterator[NodeMemory]:
        """Kernels and images in the order that a library of convolutions takes."""
        graph = self.room.graph
        if not self.room.backend.layout.copies_conv_operands:
            return
        for copy in library_copies(graph):
            if copy.op in self.node_by_op:
                op = graph.ops[copy.op]
                value = graph.values[op.operands[copy.place]]
                usage = copy.growth * self._local(value, op, copy.place, is_result=False)
                stop = self.room.buffers.time_of(copy.last) + 1
                yield NodeMemory(
                    self.node_by_op[copy.op], copy.op, stop, usage.astype(np.int64), WORK
                )

    def _positions(self) -> Iterator[NodeMemory]:
        """Positions in an image that the gradient of a max pool selects, and what stands there."""
        memory, graph = self.room.backend.memory, self.room.graph
        for op, node, _ in self._nodes():
            if op.name != "select_and_scatter" or not memory.stores_selected_positions:
                continue
            image, source = (graph.values[value] for value in op.operands[:2])
            usage = self._local(source, op, 1, is_result=False)
            rank = len(image.shape)
            usage = usage + rank * self._local(source, op, 1, is_result=False, bits=_INDEX_BITS)
            if memory.stores_image_positions:
                usage = usage + rank * self._local(image, op, 0, is_result=False, bits=_INDEX_BITS)
            yield NodeMemory(node, op.index, op.index + 1, usage, WORK)

    def _transposed_operands(self) -> Iterator[NodeMemory]:
        """Operands of matmuls in the order of matrices."""
        if not self.room.backend.layout.transposes_matmul_operands:
            return
        graph = self.room.graph
        for op, node, _ in self._nodes():
            for place in transposed_operands(graph, op):
                value = graph.values[op.operands[place]]
                usage = self._local(value, op, place, is_result=False)
                yield NodeMemory(node, op.index, op.index + 1, usage, WORK)

    def _summed_stacks(self) -> Iterator[NodeMemory]:
        """Stacks in the order in which a loop sums over them, beside those that were written."""
        if not self.room.backend.layout.copies_summed_stacks:
            return
        graph = self.room.graph
        for carry in summed_stacks(graph):
            if carry.index in self.node_by_op:
                stack = graph.values[carry.operands[0]]
                usage = self._local(stack, carry, 0, is_result=False)
                node, time = self.node_by_op[carry.index], self.room.buffers.time_of(carry.index)
                yield NodeMemory(node, time, time + 1, usage, WORK)

    def _copied_arguments(self) -> Iterator[NodeMemory]:
        """Results that are arguments unchanged: the program writes a copy."""
        room = self.room
        arguments = {op.results[0] for op in room.graph.arguments}
        kept = {result for _, result in self.alike}
        for position, op in enumerate(room.graph.results):
            value = room.graph.values[op.operands[0]]
            is_argument = room.buffers.owner[value.index] in arguments
            if not is_argument or position in kept or op.index not in self.node_by_op:
                continue
            usage = self._local(value, op, 0, is_result=False)
            start = 0 if room.backend.memory.results_apart else op.index
            yield NodeMemory(self.node_by_op[op.index], start, len(room.graph.ops), usage)

    def _unwritten_results(self) -> Iterator[NodeMemory]:
        """Results until they are written, where temporaries take none of their memory.

        Those that take the buffers of donated arguments are there with these.
        """
        room = self.room
        for owner, op in room.results.items():
            value = room.graph.values[op.operands[0]]
            start = room.buffers.intervals[owner][0]
            if op.index in self.node_by_op and value.num_bytes >= room.negligible_bytes:
                usage = self._local(value, op, 0, is_result=False)
                yield NodeMemory(self.node_by_op[op.index], 0, start, usage, UNWRITTEN)

    def _narrowed_for_loops(self) -> Iterator[NodeMemory]:
        """Narrower copies of what loops read unchanged, from the first such loop to the last."""
        room = self.room
        for copy in copies_for_loops(room.graph, room.backend):
            found = room.graph.values[copy.value]
            if found.op not in self.node_by_op or found.num_bytes < room.negligible_bytes:
                continue
            maker = room.graph.ops[found.op]
            place = maker.results.index(copy.value)
            usage = self._local(found, maker, place, bits=copy.bits)
            is_brief = room.vmem.loop_reads.issuperset(copy.joins)
            left = room.vmem.hbm_bytes(usage, may_hold=is_brief)
            yield NodeMemory(self.node_by_op[found.op], copy.start, copy.stop, left)

    def _layout_copies(self, node: int, op: Op) -> Iterator[NodeMemory]:
        """Copies that XLA's CPU backend makes for the gradients of a convolution.

        The kernel's gradient contracts over the batch and wants both operands in another dimension
        order; the input's gradient wants the kernel reversed. Each copy is made as soon as what it
        is made from is there (seen in buffer assignments of jaxlib 0.10.2).
        """
        room = self.room
        copies = room.backend.layout.copies_conv_gradient_operands
        if op.op_class is not OpClass.CONVOLUTION or not copies:
            return
        for position, value in enumerate(op.operands):
            found = room.graph.values[value]
            maker = room.graph.ops[found.op]
            if is_kernel_gradient(op):
                start, stop = found.op, op.index + 1
            elif maker.name == "reverse":
                start, stop = room.graph.values[maker.operands[0]].op, maker.index
            else:
                continue
            usage = self._local(found, op, position, is_result=False)
            yield NodeMemory(node, start, stop, usage, WORK)

    def _partial_bytes(
        self,
        op: Op,
        candidates: tuple[Candidate, ...],
        value: Value,
        bits: int,
        usage: IntArray,
        *,
        is_summed: bool,
    ) -> IntArray | None:
        """Bytes a result takes beyond its final size before it is scattered.

        What is written as something else, which comes after the sum, takes all of them.
        """
        room = self.room

        def sums(candidate: Candidate) -> Layout | None:
            if candidate.stands_partial:
                return candidate.partial
            return candidate.results[0] if is_summed and candidate.reduced else None

        if len(op.results) != 1 or all(sums(c) is None for c in candidates):
            return None
        if value.num_bytes * bits < room.negligible_bytes * value.bits:
            return None

        def held() -> IntArray:
            layouts = [sums(candidate) for candidate in candidates]
            return _of_each(
                layouts, lambda one: 0 if one is None else room.local_bytes(value, one, bits)
            )

        key = (is_summed, value.shape, bits)
        extra: IntArray = np.maximum(self._partial.get(held, candidates, key=key) - usage, 0)
        return extra
