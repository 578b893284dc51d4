"""Ops that run in the kernel of another one, as they read what it has at hand.

A matmul's kernel also writes what element-wise ops and reductions make of its result, if they wait
for nothing that the kernel has to finish first: the gradients of a normalization with the matmul
before it, the largest score of a row. A reduction of rows that its readers repeat along the rows
again is no end of a kernel (a softmax's maximum); another one is (a loss whose gradient reads the
sums of rows). What reads the same tensor as an op that joins a matmul's kernel is written by that
kernel too, unless the matmul waits for it (recomputed softmax weights, with their gradient). Beside
matmuls, ops that reduce or write what they make of the same tensor run in one kernel.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass
from math import prod

from autoshard.graph.op_traits import is_elementwise
from autoshard.graph.product_writes import there_at
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.row_sums import goes_along_rows

_MOST_READERS = 64
"""Ops from a value on until a matmul is taken to wait for it. A choice: more than a layer's."""


@dataclass(frozen=True, slots=True)
class _Kernel:
    """A kernel that others may join.

    Args:
        start: The op that it runs for first.
        is_product: That is a matmul or a convolution.
        num_elements: Of what it goes through.
        at_hand: Values that it has read or made, element by element.
    """

    start: int
    is_product: bool
    num_elements: int
    at_hand: set[int]


class JoinedKernels:
    """Finds for one op after the other, in program order, the kernel that it joins.

    Args:
        graph: The program.
        at_products: Products, by what is written in their place.
        softmaxes: Maxima whose own kernel writes the exponentials too. What it reads as it lies it
            reads twice: for the maxima, and for them.
        longest_row: Elements of the longest row whose maximum a matmul's kernel takes.

    Attributes:
        by_op: By op, the op whose kernel it has joined.
    """

    def __init__(
        self,
        graph: Graph,
        at_products: Mapping[int, int],
        softmaxes: Set[int],
        longest_row: int,
    ) -> None:
        self.by_op: dict[int, int] = {}
        self._graph, self._softmaxes, self._longest_row = graph, softmaxes, longest_row
        self._there = there_at(graph)
        self._given = {*at_products, *(op.operands[0] for op in graph.results)}
        self._through: dict[int, _Kernel] = {}  # by value, the last kernel that goes through it
        self._last_of: dict[int, int] = {}  # by kernel, the last op that joined it
        self._reading: dict[int, list[Op]] = {}  # by value read, element-wise ops that write
        self._kernels = {  # by value made in it
            value: _Kernel(product, True, prod(graph.values[value].shape), {value})
            for value, product in at_products.items()
        }

    def join(self, op: Op, sources: Set[int], stored: Sequence[bool]) -> Set[int]:
        """The sources of an op that are at hand, in the kernel that it joins; none where in none.

        Args:
            op: Of the program; those before it were asked for before.
            sources: Buffers that it is computed from.
            stored: By value, whether it has a buffer.
        """
        if op.kind is not OpKind.COMPUTE or len(op.results) != 1:
            return frozenset()
        is_reduction = op.op_class is OpClass.REDUCE
        result = op.results[0]
        is_written = is_elementwise(op) and stored[result] and result not in self._given
        if not is_reduction and not is_written:
            return frozenset()
        num_elements = prod(self._graph.values[op.operands[0] if is_reduction else result].shape)
        goes_on = is_reduction and goes_along_rows(self._graph, op)
        kernel = self._last(op, sources, num_elements, self._kernels)
        if kernel and goes_on and kernel.is_product:
            kernel = kernel if op.is_sum or self._joins_product(op) else None
            goes_on = kernel is None or self._is_of_rows(op, stored)
        if kernel is None and not goes_on:
            kernel = self._last(op, sources, num_elements, self._through)
        if kernel and kernel.is_product:
            self._join_beside(kernel, sources)
        elif is_written:
            for source in self._as_large(sources, num_elements):
                self._reading.setdefault(source, []).append(op)
        if kernel is None:
            found = _Kernel(op.index, False, num_elements, {*sources})
            if op.index in self._softmaxes:
                found.at_hand.discard(op.operands[0])
            if goes_on or is_written:
                found.at_hand.add(result)
                self._kernels[result] = found
            if not goes_on:
                self._through.update(dict.fromkeys(sources, found))
            return frozenset()
        self.by_op[op.index] = kernel.start
        self._last_of[kernel.start] = op.index
        at_hand = kernel.at_hand & sources
        if not kernel.is_product and not goes_on:
            kernel.at_hand.update(sources)
            self._through.update(dict.fromkeys(sources, kernel))
        if goes_on or not is_reduction:
            kernel.at_hand.add(result)
            self._kernels[result] = kernel
        return at_hand

    def _join_beside(self, kernel: _Kernel, sources: Set[int]) -> None:
        """Let ops that read a source of one that joins a matmul join the matmul as well."""
        product = self._graph.ops[kernel.start]
        for source in self._as_large(sources - kernel.at_hand, kernel.num_elements):
            for other in self._reading.get(source, ()):
                start = self.by_op.get(other.index, -1)
                last = max(self._last_of.get(other.index, -1), self._last_of.get(start, -1))
                if last <= other.index < product.index and not self._waits(product, other):
                    self.by_op[other.index] = product.index
                    self._kernels.pop(other.results[0], None)

    def _as_large(self, sources: Set[int], num_elements: int) -> Iterator[int]:
        values = self._graph.values
        return (v for v in sources if prod(values[v].shape) == num_elements)

    def _waits(self, product: Op, op: Op) -> bool:
        """True where a matmul needs what an op before it makes, or a body lies between them."""
        graph = self._graph
        todo, seen = [*op.results], set[int]()
        while todo and len(seen) < _MOST_READERS:
            for index in graph.consumers[todo.pop()]:
                if index <= product.index and index not in seen:
                    seen.add(index)
                    todo += graph.ops[index].results
        if todo or product.index in seen:
            return True
        between = graph.ops[op.index : product.index]
        return any(one.region != product.region for one in between)

    def _last(
        self, op: Op, sources: Set[int], num_elements: int, kernels: Mapping[int, _Kernel]
    ) -> _Kernel | None:
        """The last kernel that has a source at hand, if an op waits for nothing behind it."""
        found = [kernels[source] for source in sources if source in kernels]
        if not found:
            return None
        last = max(found, key=lambda kernel: kernel.start)
        is_beside = self._graph.ops[last.start].region == op.region
        if not is_beside or last.num_elements != num_elements:
            return None
        waits = any(
            source not in last.at_hand and self._there[source] >= last.start for source in sources
        )
        return None if waits else last

    def _is_of_rows(self, op: Op, stored: Sequence[bool]) -> bool:
        """True for a reduction of what a matmul writes as it is, in elements as wide as sums."""
        return stored[op.operands[0]] and self._graph.values[op.operands[0]].bits >= 32

    def _joins_product(self, maximum: Op) -> bool:
        """True for a maximum that has no kernel with the exponentials, of short rows."""
        row = self._graph.values[maximum.operands[0]].shape[-1]
        return maximum.index not in self._softmaxes and row <= self._longest_row
