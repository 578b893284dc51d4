"""Bytes that a device writes for an op, and the kernel that writes them."""

from __future__ import annotations

import numpy as np

from autoshard.costing.cost_term import FloatArray
from autoshard.costing.joined_updates import LoopKernels
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import PRODUCTS, Op, OpClass, OpKind

_PARTS = frozenset({"concatenate", "dynamic_slice", "dynamic_update_slice", "pad", "slice"})
"""Ops that copy parts of tensors."""

_PASSED = PRODUCTS | {OpClass.ELEMENTWISE}
"""Classes of ops whose results pass the vector unit."""


class KernelWrites:
    """Results that ops pay for, in VMEM and in HBM, by their own kernel or that of another op."""

    def __init__(self, facts: ProgramFacts) -> None:
        self.facts, self.vmem, self.graph = facts, facts.vmem, facts.graph
        self.buffers, self.costing = facts.buffers, facts.costing
        joins = facts.costing.backend.fusion.fuses_stack_updates
        self.loops = LoopKernels.of(facts.graph, facts.buffers) if joins else LoopKernels()

    def num_bytes(
        self, op: Op, value: int, local: FloatArray, work: OpClass | None = None
    ) -> FloatArray:
        """float64[num_candidates]: as how many bytes a result counts that has so many.

        Narrow elements pass the vector unit before they are written; what stays in VMEM takes that.
        """
        vmem, passes, is_product = self.vmem, self.costing.passes, op.op_class in PRODUCTS
        work = work or work_class(op)
        local = local * self.facts.read_share(value)
        in_memory = np.where(local > vmem.capacity, local, 0.0) if vmem.stays[value] else local
        if is_product and not vmem.holds_copies:
            in_memory = local
        if work in PRODUCTS and not is_product and self.stays_in_loop(value):
            in_memory = np.zeros_like(local)
        if passes is None or work not in _PASSED:
            return in_memory if is_product else local
        if op.index in self.buffers.updates and work is OpClass.ELEMENTWISE:
            in_memory = local if self.facts.always_spills else np.zeros_like(local)
        bits = self.facts.written_bits.get(value, self.graph.values[value].bits)
        return self.costing.stored_bytes(local, bits, in_memory, work)

    def whole_bytes(self, op: Op, value: int, work: OpClass) -> float:
        """As how many bytes it counts on all devices together to write a value."""
        num_devices = self.costing.parts.mesh.num_devices
        piece = np.array(self.graph.values[value].num_bytes / num_devices)
        return float(self.num_bytes(op, value, piece, work)) * num_devices

    def is_paid(self, op: Op, value: int) -> bool:
        """True where an op pays for writing a value: not for what a product adds to a carry."""
        is_own = self.buffers.owner[value] == value
        return self.buffers.is_stored[value] and (is_own or self.is_carried_apart(op))

    def is_carried_apart(self, op: Op) -> bool:
        """True where a kernel of its own writes what an op makes for the next run of a loop."""
        return any(value in self.loops.apart for value in op.results)

    def is_in_other_kernel(self, op: Op) -> bool:
        """True where an op is launched with another: an update of a state with one that needs it.

        Or what joins the kernel of another op, or a row of a stack with one that is computed from
        the same.
        """
        buffers = self.buffers
        if op.name == "dynamic_update_slice":
            return op.index in self.loops.joined
        if op.index in buffers.updates:
            readers = (self.graph.ops[i] for v in op.results for i in self.graph.consumers[v])
            return any(reader.kind is OpKind.COMPUTE for reader in readers)
        if any(buffers.parts.get(value, value) != value for value in op.results):
            return True
        return op.index in buffers.joined

    def stays_in_loop(self, value: int) -> bool:
        """True for what a loop updates in place, in VMEM for all its runs."""
        num_bytes = self.graph.values[value].num_bytes / self.costing.parts.mesh.num_devices
        return num_bytes <= self.vmem.carried.get(self.buffers.owner[value], 0.0)


def work_class(op: Op) -> OpClass:
    """The op class whose memory bandwidth an op reaches.

    Copies of contiguous parts run as element-wise kernels.

    Source: slices, pads and concatenations of 5 dimensions by libtpu 0.0.52 for a v5e and a v5p; it
        writes gaps between elements in a kernel of its own.
    """
    return OpClass.ELEMENTWISE if op.name in _PARTS and not op.spread else op.op_class
