"""Gathering names that differ only in their numbers: `blocks[0]`, `blocks[1]` as `blocks[0..1]`."""

from __future__ import annotations

import re
from collections.abc import Hashable, Iterable, Sequence
from math import prod
from typing import TypeVar

K = TypeVar("K", bound=Hashable)

_MODULE = re.compile(r"((?:.*? at )?)((?!/)[^\s,:]+)((?: backward)?(?:, .*:\d.*)?)")

# A number that counts: `[3]`, `['3']`, `_3'`, `.3.` and `/3/`; the 1 of `w1` is part of a word.
_DIGITS = r"(?:0|[1-9][0-9]*)"
_NUMBER = re.compile(
    rf"(?<=\[){_DIGITS}(?=\])"
    rf"|(?<=\[['\"]){_DIGITS}(?=['\"])"
    rf"|(?<=[_.]){_DIGITS}(?=['\".\[\]]|$)"
    rf"|(?<![^_/]){_DIGITS}(?=/|$)"
)


def gather_alike(items: Iterable[tuple[str, K]]) -> list[tuple[str, K, list[int]]]:
    """Join items of the same kind whose names differ only in the numbers that count.

    Args:
        items: `(name, kind)`.

    Returns:
        `(name with ranges, kind, positions of its items)` in the order of their first item. The
        ranges of one name stand for every combination of their numbers, and for nothing else.
    """
    groups: dict[tuple[tuple[str, ...], K], list[tuple[tuple[int, ...], int]]] = {}
    for position, (name, kind) in enumerate(items):
        words, numbers = numbers_of(name)
        groups.setdefault((words, kind), []).append((numbers, position))
    gathered = [
        (_joined(words, part), kind, [position for _, position in part])
        for (words, kind), members in groups.items()
        for part in _rectangles(members, 0)
    ]
    return sorted(gathered, key=lambda group: group[2][0])


def gather_places(items: Iterable[tuple[str, K]]) -> list[tuple[str, K, list[int]]]:
    """The same for texts that name a place: those that differ only in the numbers of its module.

    Args:
        items: `(text, kind)`, the text as `format_source` writes places, with or without `op at `
            before it and further remarks behind it.
    """
    split: list[tuple[str, tuple[str, str, K]]] = []
    for text, kind in items:
        found = _MODULE.fullmatch(text)
        before, module, after = found.groups() if found else (text, "", "")
        split.append((module, (before, after, kind)))
    return [
        (before + module + after, kind, positions)
        for module, (before, after, kind), positions in gather_alike(split)
    ]


def numbers_of(name: str) -> tuple[tuple[str, ...], tuple[int, ...]]:
    """A name as the words between the numbers that count, and the numbers."""
    return tuple(_NUMBER.split(name)), tuple(map(int, _NUMBER.findall(name)))


def _rectangles(
    members: list[tuple[tuple[int, ...], int]], place: int
) -> list[list[tuple[tuple[int, ...], int]]]:
    """Split so that the numbers of each part are all combinations of some numbers per place."""
    distinct = {numbers for numbers, _ in members}
    if not distinct or prod(map(len, map(set, zip(*distinct, strict=True)))) == len(distinct):
        return [members]
    by_number: dict[int, list[tuple[tuple[int, ...], int]]] = {}
    for member in members:
        by_number.setdefault(member[0][place], []).append(member)
    return [part for some in by_number.values() for part in _rectangles(some, place + 1)]


def _joined(words: Sequence[str], members: list[tuple[tuple[int, ...], int]]) -> str:
    places = zip(*(numbers for numbers, _ in members), strict=True)
    ranges = [format_ranges(numbers) for numbers in places]
    return words[0] + "".join(
        range_text + word for range_text, word in zip(ranges, words[1:], strict=True)
    )


def format_ranges(numbers: Iterable[int]) -> str:
    """`0..3,7`."""
    runs: list[list[int]] = []
    for number in sorted(set(numbers)):
        if runs and runs[-1][-1] == number - 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    return ",".join(str(run[0]) if len(run) == 1 else f"{run[0]}..{run[-1]}" for run in runs)
