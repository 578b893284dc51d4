"""The collectives that sum the partial results of an op, as a backend runs them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

from autoshard.backends import Backend
from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass
from autoshard.layouts import MeshParts, Parts
from cost_models import Hardware


@dataclass(frozen=True, slots=True)
class Sum:
    """One collective that sums.

    Args:
        kind: `all-reduce` or `reduce-scatter`; `all-gather` of partial results that each device
            then reduces.
        pieces: How many pieces of the whole tensor there are, of which a device sums one.
        num_gathered: Partial results of its piece that a device gathers.
    """

    kind: str
    parts: Parts
    pieces: int
    num_gathered: int = 1


def sums_of(
    machine: Hardware,
    backend: Backend,
    parts: MeshParts,
    op_class: OpClass,
    candidate: Candidate,
    shape: Sequence[int],
    bits: int,
    links: Sequence[int] = (),
    order: Sequence[int] = (),
    *,
    is_in_slice: bool = True,
) -> tuple[Sum, ...]:
    """What a candidate ends in, in the order in which it runs.

    Of a product what is scattered comes first, so that all-reduces have the less to sum. The
    partitioner sums what other ops leave at once, and cuts it after that, if only a part of it is
    scattered, or onto several dimensions, or if nothing is ever scattered (jaxlib 0.10.2 on CPU and
    for H100, libtpu 0.0.42 for a v5e).

    Results that are reduced together, as the value and the place of an argmax, are gathered over
    all axes at once (jaxlib 0.10.2 on CPU).

    Args:
        machine: With or without reduce-scatters.
        backend: The compiler model.
        parts: The mesh parts of this plan.
        op_class: Of the op.
        candidate: One that leaves something to sum.
        shape: Of the result.
        bits: Of one element of it.
        links: Devices of a group that scatters, along each physical dimension that it spans.
        order: Dimensions of the result as they are made, major to minor; as they are numbered where
            it is left out.
        is_in_slice: Whether a group that scatters lies in one slice.
    """
    every = tuple(sorted((*candidate.scattered, *candidate.reduced)))
    if len(candidate.results) > 1:
        pieces = parts.num_pieces(candidate.partial)
        return (Sum("all-gather", every, pieces, parts.num_shards(every)),)
    is_whole = bool(candidate.scattered) and len(_changed(candidate)) > 1
    is_at_once = bool(candidate.reduced) or is_whole or not machine.has_reduce_scatter
    if is_at_once and op_class not in PRODUCTS:
        candidate = replace(candidate, reduced=every, scattered=())
    pieces = parts.num_pieces(candidate.partial)
    found = []
    if candidate.scattered:
        is_fit = is_in_slice or not backend.collectives.is_hierarchical
        is_fit = is_fit and _scatters_over(backend, links)
        is_fit = is_fit and _scatters(backend, parts, candidate, shape, bits, order)
        if machine.has_reduce_scatter and is_whole:
            return (Sum("all-reduce", every, pieces),)
        kind = "reduce-scatter" if is_fit and machine.has_reduce_scatter else "all-reduce"
        found += [Sum(kind, onto, pieces) for onto in _scattered(candidate)]
        pieces *= parts.num_shards(candidate.scattered)
    return (*found, *(Sum("all-reduce", rest, pieces) for rest in _all_reduced(backend, candidate)))


def _scatters_over(backend: Backend, links: Sequence[int]) -> bool:
    """True where a group scatters: one along one dimension, or along another of two devices too."""
    if not backend.collectives.reduce_scatter_along_lines:
        return True
    return len(links) < 2 or (len(links) == 2 and min(links) == 2)


def made_order(graph: Graph, op: Op, readers: Sequence[int]) -> tuple[int, ...]:
    """Dimensions of what an op makes as they are made, major to minor.

    A product that is only transposed is made in the order of the transposed result: XLA swaps its
    operands instead (of bfloat16[1024, 1024] over 8 devices of a v5e, made so, libtpu 0.0.42
    scatters columns where it would scatter rows).
    """
    rank = len(graph.values[op.results[0]].shape)
    reader = graph.ops[readers[0]] if len(readers) == 1 else None
    is_turned = reader is not None and reader.name == "transpose" and op.name == "dot_general"
    if reader is None or reader.rule is None or not is_turned:
        return tuple(range(rank))
    return tuple(reader.rule.operands[0].index(factors) for factors in reader.rule.results[0])


def _scatters(
    backend: Backend,
    parts: MeshParts,
    candidate: Candidate,
    shape: Sequence[int],
    bits: int,
    order: Sequence[int],
) -> bool:
    """True where a sum is scattered, and not taken whole and cut after that."""
    if not backend.collectives.reduce_scatter_whole_tiles:
        return True
    tile, changed = backend.layout, _changed(candidate)
    if len(shape) < 2 or len(changed) > 1:
        return False
    (dim,), (after,) = changed, candidate.results
    local = parts.local_shape(candidate.partial, shape)
    place = _minor_to_major(local, order, tile.num_lanes).index(dim)
    piece = parts.local_shape(after, shape)[dim]
    if place == 0:
        return piece * bits % (tile.num_lanes * tile.word_bits) == 0
    if place == 1:
        packed = tile.word_bits // bits if bits < tile.word_bits and len(shape) > 2 else 1
        return piece % (tile.num_sublanes * packed) == 0
    return True


def _changed(candidate: Candidate) -> list[int]:
    """Dimensions that a sum is scattered onto."""
    (after,) = candidate.results
    return [dim for dim, cut in enumerate(after) if cut != candidate.partial[dim]]


def _scattered(candidate: Candidate) -> list[Parts]:
    """Parts by the dimension that they are scattered onto, the last one first.

    Where nothing is scattered, a product onto several dimensions is summed whole for each in turn
    (jaxlib 0.10.2 on CPU).
    """
    (after,) = candidate.results
    return [
        tuple(sorted(part for part in after[dim] if part in candidate.scattered))
        for dim in reversed(_changed(candidate))
    ]


def _minor_to_major(shape: Sequence[int], order: Sequence[int], lanes: int) -> tuple[int, ...]:
    """Dimensions as they lie in memory; one that fills the lanes is minor in place of the last."""
    dims = list(reversed(order or range(len(shape))))
    if shape[dims[0]] < lanes:
        wide = next((dim for dim in dims if shape[dim] % lanes == 0), dims[0])
        dims.remove(wide)
        dims.insert(0, wide)
    return tuple(dims)


def _all_reduced(backend: Backend, candidate: Candidate) -> tuple[Parts, ...]:
    """Parts of each all-reduce."""
    if not candidate.reduced or not backend.collectives.all_reduce_per_dimension:
        return (candidate.reduced,) if candidate.reduced else ()
    left = (
        tuple(sorted(part for part in parts if part in candidate.reduced))
        for parts in candidate.summed
    )
    return tuple(parts for parts in left if parts)
