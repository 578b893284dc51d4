"""Ops of equal layers: one of the copies stands for those around which all is alike."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass
from functools import cached_property
from itertools import chain

import numpy as np
import numpy.typing as npt

from autoshard.graph.program import Graph

IntArray = npt.NDArray[np.int64]
BoolArray = npt.NDArray[np.bool_]

_STANDING = 2
"""The copy that stands for others, and so many layers at the other end that none stands for: the
first and the last layers meet what no other layer does. A choice: runs of a forward and a backward
pass may begin a layer apart."""
_AROUND = 2
"""Ops so many reads away from one that is read, or reads, otherwise than its copies are stood for
by none either. A choice."""
_NO_COPIES = -1


def stand_ins(graph: Graph, of_ops: IntArray, of_values: IntArray) -> list[int]:
    """By op of a program, the one that stands for it: itself, or an earlier copy of it.

    Ops that others stand for read copies of what these read, in the same places and from as many
    layers away, and are read by copies of what reads these; types are equal. Arguments and what no
    layer holds are told apart by kind and type alone.

    Args:
        graph: The program.
        of_ops: int64[ops]: further numbers that are equal for an op and the one that stands for it.
        of_values: int64[values]: likewise, for all that they read and make.
    """
    if all(op.copies == _NO_COPIES for op in graph.ops):
        return list(range(len(graph.ops)))
    layers = _Layers(graph, of_values)
    is_odd = layers.is_inner & (layers.differs() | (of_ops != of_ops[layers.standing]))
    for _ in range(_AROUND):
        is_odd = layers.with_neighbours(is_odd)
    found: list[int] = np.where(is_odd, layers.index, layers.standing).tolist()
    return found


@dataclass(frozen=True, eq=False)
class _Layers:
    """The ops of a program as numbers: which is which copy of which, and what each reads.

    Reads are in the order of their ops and of their operands.
    """

    graph: Graph
    of_values: IntArray

    @cached_property
    def index(self) -> IntArray:
        """int64[ops]."""
        return np.arange(len(self.graph.ops))

    @cached_property
    def copies(self) -> IntArray:
        """int64[ops]: equal numbers for copies; below 0 for ops that have none, by their kind."""
        numbers: dict[Hashable, int] = {}
        ops = self.graph.ops
        return np.array(
            [
                ~numbers.setdefault(op.kind, len(numbers)) if op.copies < 0 else op.copies
                for op in ops
            ],
            np.int64,
        )

    @cached_property
    def _groups(self) -> tuple[IntArray, IntArray, IntArray]:
        """int64[ops] in the order of groups of copies, and the start and size of each one's."""
        order = np.argsort(self.copies, kind="stable")
        _, starts, sizes = np.unique(self.copies[order], return_index=True, return_counts=True)
        return order, np.repeat(starts, sizes), np.repeat(sizes, sizes)

    @cached_property
    def layer(self) -> IntArray:
        """int64[ops]: the place of an op among its copies, in program order."""
        order, starts, _ = self._groups
        return _put(order, self.index - starts)

    @cached_property
    def standing(self) -> IntArray:
        """int64[ops]: the copy that would stand for each inner one; else itself."""
        order, starts, _ = self._groups
        second = order[np.minimum(starts + _STANDING, len(order) - 1)]
        return np.where(self.is_inner, _put(order, second), self.index)

    @cached_property
    def is_inner(self) -> BoolArray:
        """bool[ops]: of a layer between the one that stands for others and the last ones."""
        order, _, sizes = self._groups
        left = _put(order, sizes) - self.layer
        return (self.copies >= 0) & (self.layer > _STANDING) & (left > _STANDING)

    @cached_property
    def num_reads(self) -> IntArray:
        """int64[ops]."""
        return np.array([len(op.operands) for op in self.graph.ops], np.int64)

    @cached_property
    def first_read(self) -> IntArray:
        """int64[ops]."""
        return np.cumsum(self.num_reads) - self.num_reads

    @cached_property
    def reader(self) -> IntArray:
        """int64[reads]."""
        return np.repeat(self.index, self.num_reads)

    @cached_property
    def value(self) -> IntArray:
        """int64[reads]."""
        operands = chain.from_iterable(op.operands for op in self.graph.ops)
        return np.fromiter(operands, np.int64, int(self.num_reads.sum()))

    @cached_property
    def maker(self) -> IntArray:
        """int64[reads]."""
        return np.array([value.op for value in self.graph.values], np.int64)[self.value]

    @cached_property
    def kind_of_value(self) -> IntArray:
        """int64[values]: its type, its place among the results of its op, and what is told of it.

        Results of an op are numbered one after the other.
        """
        numbers: dict[Hashable, int] = {}
        values, ops, own = self.graph.values, self.graph.ops, self.of_values.tolist()
        keys = (
            (one.shape, one.dtype, one.bits, one.index - ops[one.op].results[0], told)
            for one, told in zip(values, own, strict=True)
        )
        return np.array([numbers.setdefault(key, len(numbers)) for key in keys], np.int64)

    def differs(self) -> BoolArray:
        """bool[ops]: reads otherwise than the op that would stand for it, or is read otherwise."""
        at = np.flatnonzero(self.is_inner[self.reader])
        own = self.reader[at]
        place, other = at - self.first_read[own], self.standing[own]
        is_odd = np.zeros(len(self.index), np.bool_)
        is_odd[own] = self.num_reads[own] != self.num_reads[other]
        beside = np.minimum(self.first_read[other] + place, len(self.value) - 1)
        is_alike = self.kind_of_value[self.value[at]] == self.kind_of_value[self.value[beside]]
        is_alike &= self._are_copies(self.maker[at], own, self.maker[beside], other)
        is_odd[own[~is_alike]] = True
        around = self._results() + self._readers()
        is_odd |= around != around[self.standing]
        return is_odd

    def _are_copies(
        self, maker: IntArray, reader: IntArray, other: IntArray, standing: IntArray
    ) -> BoolArray:
        """bool[reads]: made by one op, by no layer, or by copies as many layers away.

        Layers of a backward pass come in the other order.
        """
        layer = self.layer
        ahead = layer[maker] - layer[reader] == layer[other] - layer[standing]
        back = layer[maker] + layer[reader] == layer[other] + layer[standing]
        is_of_none = self.copies[maker] < 0
        is_same = self.copies[maker] == self.copies[other]
        found: BoolArray = (maker == other) | (is_same & (is_of_none | ahead | back))
        return found

    def _results(self) -> IntArray:
        """int64[ops]: a number that tells apart what ops make."""
        random = _numbers(self.kind_of_value)
        found = np.zeros(len(self.index), np.int64)
        np.add.at(found, [value.op for value in self.graph.values], random)
        return found

    def _readers(self) -> IntArray:
        """int64[ops]: a number that tells apart what reads an op, and at which places."""
        place = np.arange(len(self.value)) - self.first_read[self.reader]
        kinds = self.kind_of_value[self.value] * (place.max(initial=0) + 1) + place
        of_reader = self.copies[self.reader] - self.copies.min(initial=0)
        around = np.zeros(len(self.index), np.int64)
        np.add.at(around, self.maker, _numbers(kinds * (of_reader.max(initial=0) + 1) + of_reader))
        return around

    def with_neighbours(self, is_odd: BoolArray) -> BoolArray:
        """bool[ops]: these, what they read and what reads them."""
        found = is_odd.copy()
        found[self.maker[is_odd[self.reader]]] = True
        found[self.reader[is_odd[self.maker]]] = True
        return found


def _numbers(kinds: IntArray) -> IntArray:
    """Random numbers of 62 bits, equal for equal kinds: sums of them tell sets of these apart."""
    distinct, place = np.unique(kinds, return_inverse=True)
    found: IntArray = np.random.default_rng(0).integers(2**62, size=len(distinct))[place.ravel()]
    return found


def _put(places: IntArray, numbers: IntArray) -> IntArray:
    found = np.empty_like(numbers)
    found[places] = numbers
    return found
