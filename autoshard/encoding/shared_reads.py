"""Values that several ops of one body read: moved to another sharding once, for all of them.

The compiler makes one reshard of equal ones in a body, and keeps its result from the first reader
to the last. So such a value is offered a second sharding, the one that it is *read* in: getting
there is paid once, and a reader that needs it so pays nothing more. A reader that needs yet another
sharding pays the way from there; back to how the value was made is mostly a slice, or nothing is
shared and both are the same.

No plan can have two such moves apart, each for its own reader only: the compiler makes them one.
Where memory is scarce the choice also says which one reader may hold a copy for itself; a copy that
another one has moved, to what several may need, is held from the first reader to the last.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.candidates.candidate import Candidate
from autoshard.costing.convert_motion import ReadBits
from autoshard.encoding.left_in_place import is_left_in_place
from autoshard.graph.buffers import Buffers, read_stop
from autoshard.graph.dataflow import trace_back
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.layouts import Layout

_MOST_MOVERS = 8
"""Readers of one value; where there are more, none may hold a copy for itself."""

_NOBODY = -1


@dataclass(frozen=True, slots=True)
class SharedRead:
    """A value as several ops of one body read it.

    Args:
        value: What they read.
        reads: Its readers in program order: `(op index, operand position)`.
        repeat: How often each reads it.
        bits: Of an element, as they read it.
        layouts: What it may be moved to; all that its op may make are among them. Where memory is
            scarce, each is there once for every reader.
        movers: By layout, the op that may hold a copy for itself, -1 for no op; none of them: every
            one may.
        common: What two readers or more may need.
        start: When the moved copy is made: the first reader, or all of an update.
        stop: When it is read no more.
        stops: Likewise by reader.
    """

    value: int
    reads: tuple[tuple[int, int], ...]
    repeat: float
    bits: int
    layouts: tuple[Layout, ...]
    start: int
    stop: int
    stops: tuple[int, ...]
    movers: tuple[int, ...] = ()
    common: frozenset[Layout] = frozenset()

    def for_each_reader(self) -> SharedRead:
        """The same, with a choice of the reader that may hold a copy for itself."""
        readers = sorted({index for index, _ in self.reads})
        if len(readers) > _MOST_MOVERS:
            readers = [_NOBODY]
        pairs = [(layout, reader) for layout in self.layouts for reader in readers]
        layouts, movers = zip(*pairs, strict=True)
        return replace(self, layouts=layouts, movers=movers)


def shared_reads(
    graph: Graph,
    buffers: Buffers,
    candidates: Mapping[int, Sequence[Candidate]],
    read_bits: ReadBits,
    updates: Collection[tuple[int, int]] = (),
    read_early: Collection[int] = (),
) -> Iterator[SharedRead]:
    """Find the values that two or more ops of one body read equally often and equally wide.

    Args:
        graph: The program.
        buffers: Its storage.
        candidates: Of every op with a choice, by op index.
        read_bits: How wide they read.
        updates: Reads that take the value as it lies: `(op index, value)`.
        read_early: Ops that read what is moved for them as soon as it is there.

    Returns:
        In the order of first readers.
    """
    readers: dict[tuple[int, int, float, int], list[tuple[int, int]]] = {}
    for index in candidates:
        op = graph.ops[index]
        if op.kind is not OpKind.COMPUTE:  # loops and results keep copies of their own
            continue
        for position, value in enumerate(op.operands):
            maker = graph.values[value].op
            if (index, value) in updates or is_left_in_place(graph, op, position):
                continue
            if maker in candidates and maker != index and graph.values[value].shape:
                region = graph.region_of_read(op, position)
                key = (value, region, reads_of(op, position), read_bits.to(op, position))
                readers.setdefault(key, []).append((index, position))
    known: dict[Hashable, tuple[tuple[Layout, ...], frozenset[Layout]]] = {}
    for (value, _, repeat, bits), reads in readers.items():
        indices = dict.fromkeys(index for index, _ in reads)
        if len(indices) < 2:
            continue
        made_by = graph.maker(value)
        place = made_by.results.index(value)
        positions = {i: tuple(p for reader, p in reads if reader == i) for i in indices}
        like = (
            *(id(candidates[made_by.index]), place),
            *((id(candidates[index]), own) for index, own in positions.items()),
        )
        if like not in known:  # equal layers share their candidates
            needs = [(candidates[index], own) for index, own in positions.items()]
            known[like] = _layouts([c.results[place] for c in candidates[made_by.index]], needs)
        layouts, common = known[like]
        later = [index for index in indices if index not in read_early] or indices
        stop_of = {index: read_stop(graph, buffers, graph.ops[index]) for index in indices}
        stop = max(stop_of[index] for index in later)
        at_once = buffers.updates.issuperset(indices)
        start = stop - 1 if at_once else min(map(buffers.time_of, indices))
        stops = tuple(min(stop_of[index], stop) for index, _ in reads)
        yield SharedRead(
            value, tuple(reads), repeat, bits, layouts, start, stop, stops, common=common
        )


def updating_reads(graph: Graph, alike: Collection[tuple[int, int]]) -> frozenset[tuple[int, int]]:
    """Element-wise reads of arguments on the way to the results that replace them.

    An update reads a state last of all, and gives it back in the sharding that it came in. So no
    copy that is moved for a product is held for it.

    Returns:
        `(op index, value)` of each.
    """

    def same_shape(op: Op) -> list[int]:
        shape = graph.values[op.results[0]].shape
        return [value for value in op.operands if graph.values[value].shape == shape]

    arguments, results = graph.arguments, graph.results
    found: set[tuple[int, int]] = set()
    for argument, result in alike:
        state = arguments[argument].results[0]
        met = trace_back(graph, results[result].operands[:1], _is_elementwise, same_shape)
        makers = (graph.maker(value) for value in met.inner)
        found |= {(op.index, state) for op in makers if state in op.operands}
    return frozenset(found)


def _is_elementwise(op: Op, _: int) -> bool:
    return op.op_class is OpClass.ELEMENTWISE


def reads_of(op: Op, position: int) -> float:
    """How often an op reads an operand."""
    return op.operand_repeats[position] if op.operand_repeats else op.repeat


def _layouts(
    made: Iterable[Layout], needs: Iterable[tuple[Sequence[Candidate], Sequence[int]]]
) -> tuple[tuple[Layout, ...], frozenset[Layout]]:
    """Layouts that a value may be read in: those it is made in, and those that two readers need.

    Args:
        made: What it may be made as.
        needs: Candidates of each reader, and its operands that are the value.

    Returns:
        Both in order, and the second.
    """
    needed: Counter[Layout] = Counter()
    for candidates, positions in needs:
        needed.update({c.operands[position] for c in candidates for position in positions})
    common = frozenset(layout for layout, count in needed.items() if count > 1)
    return tuple(sorted({*made, *common})), common
