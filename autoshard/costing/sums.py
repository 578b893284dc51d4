"""The collectives that sum the partial results of an op, as a backend runs them."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.backend_habits import scatters_along_one_dimension, sums_by_dimension
from autoshard.candidates.candidate import Candidate
from autoshard.layouts import MeshParts, Parts
from cost_models import Hardware


@dataclass(frozen=True, slots=True)
class Sum:
    """One collective that sums.

    Args:
        kind: `all-reduce` or `reduce-scatter`.
        parts: The mesh parts it works over.
        pieces: How many pieces of the whole tensor there are, of which a device sums one.
    """

    kind: str
    parts: Parts
    pieces: int


def sums_of(machine: Hardware, parts: MeshParts, candidate: Candidate) -> tuple[Sum, ...]:
    """What a candidate ends in, in the order in which it runs.

    What is scattered comes first, so that all-reduces have the less to sum.
    """
    pieces = parts.num_shards(part for dim in candidate.partial for part in dim)
    if candidate.scattered and not _scatters(machine, candidate):
        every = tuple(sorted((*candidate.scattered, *candidate.reduced)))
        return (Sum("all-reduce", every, pieces),)
    found = []
    if candidate.scattered:
        kind = "reduce-scatter" if machine.has_reduce_scatter else "all-reduce"
        found.append(Sum(kind, candidate.scattered, pieces))
        pieces *= parts.num_shards(candidate.scattered)
    return (*found, *(Sum("all-reduce", rest, pieces) for rest in _all_reduced(machine, candidate)))


def _scatters(machine: Hardware, candidate: Candidate) -> bool:
    """Whether a sum is scattered, and not taken whole and cut after that."""
    if not scatters_along_one_dimension(machine.backend):
        return True
    (after,) = candidate.results
    changed = sum(old != new for old, new in zip(candidate.partial, after, strict=True))
    return len(after) > 1 and changed == 1


def _all_reduced(machine: Hardware, candidate: Candidate) -> tuple[Parts, ...]:
    """Parts of each all-reduce."""
    if not candidate.reduced or not sums_by_dimension(machine.backend):
        return (candidate.reduced,) if candidate.reduced else ()
    left = (
        tuple(sorted(part for part in parts if part in candidate.reduced))
        for parts in candidate.summed
    )
    return tuple(parts for parts in left if parts)
