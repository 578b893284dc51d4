"""Nodes that look alike, as far as a number of edges away: the classes of repeated parts."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from solvers.flat import Flat, SharedArrays
from solvers.interned import Interned
from solvers.problem import IntArray, Problem

_ODD = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class Alike:
    """Classes of nodes by costs, usages and, some edges far, neighbours over equal tables.

    An edge has two ends, one after the other: its first is end ``2 * e``, its second ``2 * e + 1``.

    Args:
        class_of: int64[nodes], numbered by first appearance.
        coarser: int64[nodes]: classes one edge less far.
        tables: int64[edges]: equal numbers for equal tables.
    """

    class_of: IntArray
    coarser: IntArray
    tables: IntArray

    @property
    def num_classes(self) -> int:
        return int(self.class_of.max(initial=-1)) + 1


def alike(problem: Problem, rounds: int) -> Alike:
    """Classes of nodes that look alike so many edges far. When memory is held may differ."""
    contents, flat = Interned(), Flat.of(problem)

    def numbers(arrays: SharedArrays) -> IntArray:
        return arrays.of_each(lambda array: id(contents.of(array)))

    held: list[list[int]] = [[] for _ in problem.node_costs]
    for node, usage in zip(flat.node_of_term.tolist(), numbers(flat.usages).tolist(), strict=False):
        held[node].append(usage)
    known: dict[tuple[int, tuple[int, ...]], int] = {}
    own = [
        known.setdefault((costs, tuple(sorted(usages))), len(known))
        for costs, usages in zip(numbers(flat.costs).tolist(), held, strict=True)
    ]
    classes = np.array(own, dtype=np.int64)
    tables = by_first_appearance(numbers(flat.tables))
    ends = ends_of(problem)
    sides = np.repeat(2 * tables, 2) + np.arange(len(ends)) % 2
    far = ends.reshape(-1, 2)[:, ::-1].ravel()
    coarser = classes
    for _ in range(rounds):
        coarser = classes
        classes = _refined(classes, ends, sides, far)
    return Alike(by_first_appearance(classes), by_first_appearance(coarser), tables)


def ends_of(problem: Problem) -> IntArray:
    """Returns int64[2 * edges]: the node at each end of each edge."""
    flat = Flat.of(problem)
    return np.column_stack((flat.u, flat.v)).ravel()


def distinct_rows(rows: IntArray) -> tuple[IntArray, IntArray, IntArray]:
    """Distinct rows of int64[rows, columns] of numbers from 0, in lexicographic order.

    Returns:
        The first place of each, the distinct row of every row, and how often each comes.
    """
    packed = np.zeros(len(rows), dtype=np.int64)  # as rows compare, and sorted much faster
    for column in rows.T:
        packed = packed * (column.max(initial=0) + 1) + column
    _, first, inverse, counts = np.unique(
        packed, return_index=True, return_inverse=True, return_counts=True
    )
    return first, inverse.ravel(), counts


def by_first_appearance(numbers: Sequence[int] | IntArray) -> IntArray:
    """Numbers in the order in which they come."""
    _, first, inverse = np.unique(numbers, return_index=True, return_inverse=True)
    place = np.empty(len(first), dtype=np.int64)
    place[np.argsort(first)] = np.arange(len(first))
    return place[inverse.ravel()]


def _refined(classes: IntArray, ends: IntArray, sides: IntArray, far: IntArray) -> IntArray:
    """Classes by the class before and a hash of the neighbours': one edge further."""
    seen = _mixed(_mixed(sides.astype(np.uint64)) + classes[far].astype(np.uint64))
    around = np.zeros(len(classes), dtype=np.uint64)
    np.add.at(around, ends, seen)
    _, refined = np.unique(_mixed(around + _mixed(classes.astype(np.uint64))), return_inverse=True)
    return refined.ravel().astype(np.int64)


def _mixed(numbers: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    """A bijection of 64-bit numbers that scatters them.

    Source: Steele, Lea and Flood (2014), Fast splittable pseudorandom number generators.
    """
    mixed = (numbers + np.uint64(1)) * _ODD
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return mixed ^ (mixed >> np.uint64(31))
