"""What several compiled plans of a program show together, as corrections of its choice problem."""

from __future__ import annotations

from collections import defaultdict, deque
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from autoshard.encoding.corrections import (
    MOST_RATIO,
    NO_CORRECTIONS,
    ChoiceCorrection,
    Corrections,
    MemoryCorrection,
    ReshardCorrection,
    op_keys,
)
from autoshard.graph.program import Graph
from autoshard.refine.attribution import SMALLEST, Observation
from autoshard.sharding import Sharding

Way: TypeAlias = tuple[str, tuple[Sharding, ...], tuple[Sharding, ...], bool]
Move: TypeAlias = tuple[str, int, Sharding, Sharding]
Held: TypeAlias = tuple[str, int, Sharding]


@dataclass(slots=True, eq=False)
class Learnt:
    """Everything observed so far.

    Args:
        start: Corrections from a file: they hold until something else is seen of the same choice;
            of another batch or depth, only the ratios do once anything is seen.
        near: By key of an op, those of the ops that make what it reads or read what it makes.
    """

    start: Corrections = NO_CORRECTIONS
    near: Mapping[str, Collection[str]] = field(default_factory=dict)
    _seen: list[tuple[float, Observation]] = field(default_factory=list)

    def add(self, seen: Observation, step_seconds: float) -> None:
        """Add what one compiled plan shows.

        Args:
            seen: What it shows.
            step_seconds: Of its step, as compiled.
        """
        self._seen.append((step_seconds, seen))

    def corrections(self) -> Corrections:
        """One of each choice that was compiled: every compiled plan costs what it was compiled to.

        Of a choice in several plans, the fastest one's seconds count. What it takes beside them in
        a slower plan is laid to the nearest op of that plan that no faster one cuts so.
        """
        if not self._seen:
            return self.start
        found = _Ways({}, {})
        for _, seen in sorted(self._seen, key=lambda one: one[0]):
            found.add(seen, self.near)
        least = SMALLEST * min(seconds for seconds, _ in self._seen)
        start = self._exact_start()
        choices = {_way(one): one for one in start.choices}
        choices |= {
            way: one
            for way, one in found.choices.items()
            if max(abs(one.seconds), one.priced) >= least
        }
        reshards = {_move(one): one for one in start.reshards}
        reshards |= {move: one for move, one in found.reshards.items() if abs(one.seconds) >= least}
        return Corrections(
            choices=tuple(choices.values()),
            reshards=tuple(reshards.values()),
            memory=self._memory(),
            ratio_by_class=self._ratios(),
            num_ops=len(self.near),
        )

    def _exact_start(self) -> Corrections:
        """Corrections from the file that are of the same batch and depth."""
        return NO_CORRECTIONS if self.start.is_of_other_sizes else self.start

    def _memory(self) -> tuple[MemoryCorrection, ...]:
        """Of each value the most bytes that any plan shows."""
        held: dict[Held, MemoryCorrection] = {}
        for _, seen in self._seen:
            for one in seen.memory:
                place = (one.op, one.result, one.sharding)
                if place not in held or held[place].num_bytes < one.num_bytes:
                    held[place] = one
        before = {(one.op, one.result, one.sharding): one for one in self._exact_start().memory}
        return tuple({**before, **held}.values())

    def _ratios(self) -> Mapping[str, float] | None:
        sums: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for _, seen in self._seen:
            for total in seen.classes:
                sums[total.op_class][0] += total.priced
                sums[total.op_class][1] += total.compiled
        ratios = dict(self.start.ratio_by_class or {})
        for name, (priced, compiled) in sums.items():
            ratios[name] = min(max(compiled / priced, 1 / MOST_RATIO), MOST_RATIO)
        return dict(sorted(ratios.items())) or None


@dataclass(frozen=True, slots=True)
class _Ways:
    choices: dict[Way, ChoiceCorrection]
    reshards: dict[Move, ReshardCorrection]

    def add(self, seen: Observation, near: Mapping[str, Collection[str]]) -> None:
        """Add the ways of a plan that no faster one has; what the others take beside, to these."""
        left: dict[str, float] = defaultdict(float)
        new: dict[str, ChoiceCorrection] = {}
        for one in seen.choices:
            known = self.choices.get(_way(one))
            if known is None:
                new[one.op] = one
            else:
                left[one.op] += one.seconds - known.seconds
        for move in seen.reshards:
            before = self.reshards.setdefault(_move(move), move)
            left[move.reader] += move.seconds - before.seconds
        more = sum(left.values())
        if more > 0:
            self._lay(left, more, new, near)
        else:  # by what they take, so that none seems to take nothing
            whole = sum(map(_taken, new.values()))
            for op, one in new.items():
                less = max(more * _taken(one) / whole, -_taken(one)) if whole else 0.0
                new[op] = replace(one, seconds=one.seconds + less)
        self.choices.update((_way(one), one) for one in new.values())

    @staticmethod
    def _lay(
        left: Mapping[str, float],
        more: float,
        new: dict[str, ChoiceCorrection],
        near: Mapping[str, Collection[str]],
    ) -> None:
        """Lay what ops take more in all to the nearest that are cut in a new way."""
        nearest = _nearest(new, near)
        longer = {op: seconds for op, seconds in left.items() if seconds > 0}
        share = more / sum(longer.values())
        for op, seconds in longer.items():
            if op in nearest:
                one = new[nearest[op]]
                new[nearest[op]] = replace(
                    one,
                    seconds=one.seconds + share * seconds,
                    elsewhere=one.elsewhere + share * seconds,
                )


def _taken(one: ChoiceCorrection) -> float:
    """Seconds of its kernels as compiled."""
    return max(one.priced + one.seconds, 0.0)


def _way(one: ChoiceCorrection) -> Way:
    return one.op, one.operands, one.results, one.in_chunks


def _move(one: ReshardCorrection) -> Move:
    return one.reader, one.operand, one.before, one.after


def _nearest(ops: Collection[str], near: Mapping[str, Collection[str]]) -> dict[str, str]:
    """By op, the nearest of some ops; of several as near, the first."""
    found = {op: op for op in ops}
    waiting = deque(ops)
    while waiting:
        op = waiting.popleft()
        for other in near.get(op, ()):
            if other not in found:
                found[other] = found[op]
                waiting.append(other)
    return found


def neighbours(graph: Graph) -> dict[str, tuple[str, ...]]:
    """By key of an op, those of the ops that make what it reads, then of its readers."""
    keys = op_keys(graph)
    makers = {op.index: [graph.maker(value).index for value in op.operands] for op in graph.ops}
    readers: dict[int, list[int]] = defaultdict(list)
    for index, own in makers.items():
        for maker in own:
            readers[maker].append(index)
    return {
        keys[index]: tuple(keys[near] for near in dict.fromkeys((*own, *readers[index])))
        for index, own in makers.items()
    }


def in_words(corrections: Corrections) -> str:
    """`12 ops, 3 reshards, 1 value, 4 classes of ops`; "" where there are none."""
    counts = [
        (len(corrections.choices), "op"),
        (len(corrections.reshards), "reshard"),
        (len(corrections.memory), "value"),
        (len(corrections.ratio_by_class or ()), "class of ops"),
    ]
    return ", ".join(f"{count} {_plural(word, count)}" for count, word in counts if count)


def _plural(word: str, count: int) -> str:
    if count == 1:
        return word
    return "classes of ops" if word == "class of ops" else f"{word}s"
