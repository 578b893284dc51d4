"""Reads of one value in one sharding, which share one move."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field, replace

from autoshard.graph.program import Graph, OpKind
from autoshard.layouts import Layout
from autoshard.sharding import Sharding
from autoshard.use_paths import join_uses

_BARRIER = "optimization_barrier"
_HAS_REGIONS = frozenset({OpKind.JOIN, OpKind.ENTER_MANUAL})


@dataclass(frozen=True, slots=True)
class Move:
    """A move that the compiler makes once for all reads in a body.

    Args:
        region: Of the reads.
        source: The path of the value in the body.
        way: Its layouts on the way.
        step: The suffix of the step that this is.
        bits: Of an element that is sent.
    """

    region: int
    source: str
    way: tuple[Layout, ...]
    step: str
    bits: int


@dataclass(frozen=True, slots=True)
class Alike:
    """Reads that a move serves: by their paths, those in the body of the move.

    `inside` holds the same reads by bodies of calls.
    """

    paths: dict[str, str] = field(default_factory=dict)
    inside: list[Alike] = field(default_factory=list)

    def shared(self) -> Iterator[dict[str, str]]:
        """Outside of calls as far as that makes several reads share a move."""
        if self.inside and len(set(self.paths.values())) == 1:
            for one in self.inside:
                yield from one.shared()
        else:
            yield self.paths


def with_shared_paths(
    found: dict[str, Sharding], alike: Sequence[dict[str, str]]
) -> dict[str, Sharding]:
    """The same with one path for reads of one value in one sharding."""
    order = {path: number for number, path in enumerate(found)}
    path_of: dict[str, str] = {}
    for uses in alike:
        there = dict.fromkeys(uses[path] for path in sorted(uses, key=order.__getitem__))
        if len(there) > 1:
            path_of |= dict.fromkeys(uses, join_uses(list(there)))
    return {path_of.get(path, path): sharding for path, sharding in found.items()}


def shared_by_reads(
    graph: Graph,
    alike: Mapping[Move, Alike],
    operand_paths: Mapping[str, tuple[str | None, ...]],
) -> Iterator[dict[str, str]]:
    """Reads that share a move, those of the body of a call (`jit`) as a read of the call.

    So where the body reads its argument nowhere else.
    """
    waiting = dict(alike)
    have_regions = {
        op.equation for op in graph.ops if op.kind in _HAS_REGIONS and op.name != _BARRIER
    }
    while waiting:
        move = max(waiting, key=lambda move: move.source.count("/"))
        reads = waiting.pop(move)
        at = _read_by_call(graph, move, len(set(reads.paths.values())), operand_paths, have_regions)
        if at is None:
            yield from reads.shared()
            continue
        call, number = at
        source = operand_paths[call][number]
        outer = waiting.setdefault(replace(move, source=source or ""), Alike())
        outer.paths.update(dict.fromkeys(reads.paths, f"{call}<{number}{move.step}"))
        outer.inside.append(reads)


def _read_by_call(
    graph: Graph,
    move: Move,
    num_reads: int,
    operand_paths: Mapping[str, tuple[str | None, ...]],
    have_regions: Set[str],
) -> tuple[str, int] | None:
    """The call and its operand that a body reads so often; None where it has other reads.

    Equations that have regions are no calls: loops and branches.
    """
    body, _, name = move.source.rpartition("/")
    call, number = body.rpartition(".")[0], name.removeprefix("in.")
    inside = (paths for at, paths in operand_paths.items() if at.startswith(f"{body}/"))
    value = graph.value_by_path.get(move.source)
    is_of_call = (
        number != name
        and call in operand_paths
        and call not in have_regions
        and value is not None
        and sum(paths.count(move.source) for paths in inside) == num_reads
        and graph.value_by_path.get(operand_paths[call][int(number)] or "") == value
    )
    return (call, int(number)) if is_of_call else None
