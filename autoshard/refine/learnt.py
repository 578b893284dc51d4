"""What several compiled plans of a program show together, as corrections of its choice problem."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TypeAlias, TypeVar

from autoshard.encoding.corrections import (
    MOST_RATIO,
    NO_CORRECTIONS,
    ChoiceCorrection,
    Corrections,
    MemoryCorrection,
    ReshardCorrection,
)
from autoshard.refine.attribution import Observation
from autoshard.sharding import Sharding

Way: TypeAlias = tuple[str, tuple[Sharding, ...], tuple[Sharding, ...], bool]
Move: TypeAlias = tuple[str, int, Sharding, Sharding]
Held: TypeAlias = tuple[str, int, Sharding]


K = TypeVar("K")


@dataclass(slots=True, eq=False)
class Learnt:
    """Everything observed so far.

    Args:
        start: Corrections from a file: they hold until something else is seen of the same choice.
    """

    start: Corrections = NO_CORRECTIONS
    _choices: dict[Way, tuple[float, float]] = field(default_factory=dict)  # of the step, more
    _reshards: dict[Move, tuple[float, float]] = field(default_factory=dict)
    _memory: dict[Held, int] = field(default_factory=dict)
    _classes: dict[str, list[float]] = field(default_factory=dict)

    def add(self, seen: Observation, step_seconds: float) -> None:
        """Add what one compiled plan shows; of what several show, the fastest one's counts.

        So the corrected problem prices the best plan as it was compiled.

        Args:
            seen: What it shows.
            step_seconds: Of its step, as compiled.
        """
        for one in seen.choices:
            way = (one.op, one.operands, one.results, one.in_chunks)
            _keep_faster(self._choices, way, step_seconds, one.seconds)
        for move in seen.reshards:
            key = (move.reader, move.operand, move.before, move.after)
            _keep_faster(self._reshards, key, step_seconds, move.seconds)
        for held in seen.memory:
            place = (held.op, held.result, held.sharding)
            self._memory[place] = max(self._memory.get(place, 0), held.num_bytes)
        for total in seen.classes:
            sums = self._classes.setdefault(total.op_class, [0.0, 0.0])
            sums[0] += total.priced
            sums[1] += total.compiled

    def corrections(self) -> Corrections:
        """One of each choice that was compiled; of bytes the most that any plan shows."""
        choices = {(c.op, c.operands, c.results, c.in_chunks): c for c in self.start.choices}
        for way, (_, seconds) in self._choices.items():
            op, operands, results, in_chunks = way
            choices[way] = ChoiceCorrection(
                op=op,
                operands=operands,
                results=results,
                in_chunks=in_chunks,
                seconds=seconds,
            )
        reshards = {(r.reader, r.operand, r.before, r.after): r for r in self.start.reshards}
        for move, (_, seconds) in self._reshards.items():
            reader, operand, before, after = move
            reshards[move] = ReshardCorrection(
                reader=reader, operand=operand, before=before, after=after, seconds=seconds
            )
        memory = {(m.op, m.result, m.sharding): m for m in self.start.memory}
        for (op, result, sharding), num_bytes in self._memory.items():
            memory[op, result, sharding] = MemoryCorrection(
                op=op, result=result, sharding=sharding, num_bytes=num_bytes
            )
        ratios = dict(self.start.ratio_by_class or {})
        for name, (priced, compiled) in self._classes.items():
            ratios[name] = min(max(compiled / priced, 1 / MOST_RATIO), MOST_RATIO)
        return replace(
            NO_CORRECTIONS,
            choices=tuple(choices.values()),
            reshards=tuple(reshards.values()),
            memory=tuple(memory.values()),
            ratio_by_class=dict(sorted(ratios.items())) or None,
        )


def _keep_faster(
    known: dict[K, tuple[float, float]], key: K, step_seconds: float, more: float
) -> None:
    if key not in known or step_seconds < known[key][0]:
        known[key] = step_seconds, more


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
