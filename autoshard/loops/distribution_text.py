"""Tensor distributions as text: `T xy -> xy0 M`."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from autoshard.errors import ShardingError
from autoshard.loops.distribution import (
    BROADCAST,
    Broadcast,
    Distribution,
    Fixed,
    MachineDim,
    Named,
    name_problem,
)
from autoshard.sharding.source import source_with_caret

_TOKEN = re.compile(r"\s*(->|↦|,|[A-Za-z_][A-Za-z0-9_]*|[0-9]|\*|%|\[|\]|\S|\Z)")
_NUMBER = re.compile(r"[0-9]+")
_ENTRY_END = re.compile(r"[\s,]|\Z")


def format_distribution(distribution: Distribution) -> str:
    """`T xy -> xy*, **x M`, as `parse_distribution` reads it."""
    dims = "".join(distribution.dims)
    tensor = f"{distribution.tensor} {dims}" if dims else distribution.tensor
    levels = ", ".join("".join(map(_format_entry, level)) for level in distribution.levels)
    return f"{tensor} -> {levels} {distribution.machine}"


def _format_entry(entry: MachineDim) -> str:
    match entry:
        case Broadcast():
            return "*"
        case Fixed(coordinate):
            return str(coordinate) if coordinate < 10 else f"[{coordinate}]"
        case Named(name, None):
            return name
        case Named(name, 1):
            return f"{name}%"
        case Named(name, block):
            return f"{name}%[{block}]"


def parse_distribution(text: str) -> Distribution:
    """Read a tensor distribution.

    The grammar, in which a `letter` is one of a-z and A-Z and a `word` is a name:

        distribution = word letter* arrow level ("," level)* word
        arrow        = "->" | "↦"
        level        = entry entry*                  one for each dimension of the machine
        entry        = letter deal? | digit | "[" number "]" | "*"
        deal         = "%" ("[" number "]")?         cyclic; block-cyclic

    The letters of the tensor stand together, and so do the entries of a level.

    Raises:
        ShardingError: The text is no distribution; the message shows it with a caret.
    """
    return _Reader(text).distribution()


@dataclass(slots=True)
class _Reader:
    """A place in the text."""

    text: str
    at: int = 0
    dims: tuple[str, ...] = field(default=(), init=False)
    tensor: str = field(default="", init=False)

    def peek(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        return match[1] if match else ""

    def start(self) -> int:
        match = _TOKEN.match(self.text, self.at)
        return match.start(1) if match else len(self.text)

    def take(self) -> str:
        match = _TOKEN.match(self.text, self.at)
        if match is None:
            return ""
        self.at = match.end(1)
        return match[1]

    def refuse(self, what: str, fix: str, index: int) -> NoReturn:
        raise ShardingError(what, where=source_with_caret(self.text, index), fix=fix)

    def fail(self, expected: str, fix: str = "") -> NoReturn:
        token = self.peek()
        found = f"found `{token}`" if token else "found the end"
        self.refuse(f"expected {expected}, {found}", fix, self.start())

    def distribution(self) -> Distribution:
        self.tensor = self.word("the name of a tensor")
        if self.peek() not in {"->", "↦"}:
            start = self.start()
            letters = self.word("`->`")
            self.check_letters(letters, start)
            self.dims = tuple(letters)
        if self.take_arrow() is None:
            self.fail("`->`")
        levels = [self.level(None)]
        while self.peek() == ",":
            self.take()
            levels.append(self.level(levels))
        machine = self.word("the name of the machine", "end with a name, as in `T xy -> xy M`")
        if self.peek():
            self.fail("nothing more")
        return Distribution(self.tensor, self.dims, tuple(levels), machine)

    def take_arrow(self) -> str | None:
        return self.take() if self.peek() in {"->", "↦"} else None

    def word(self, what: str, fix: str = "") -> str:
        token = self.peek()
        if not token or not (token[0].isalpha() or token[0] == "_"):
            self.fail(what, fix)
        return self.take()

    def check_letters(self, letters: str, start: int) -> None:
        for offset, letter in enumerate(letters):
            if not letter.isalpha():
                self.refuse(
                    f"expected a letter for a dimension, found `{letter}`",
                    "name the dimensions by single letters, as in `T xy -> xy M`",
                    start + offset,
                )
            if letter in letters[:offset]:
                self.refuse(
                    f"dimension {letter} is named twice",
                    "give every dimension of the tensor a letter of its own",
                    start + offset,
                )

    def level(self, before: list[tuple[MachineDim, ...]] | None) -> tuple[MachineDim, ...]:
        self.at = self.start()
        begin = self.at
        entries: list[MachineDim] = []
        seen: set[str] = set()
        while not _ENTRY_END.match(self.text, self.at):
            start = self.at
            entry = self.entry()
            if isinstance(entry, Named):
                problem = name_problem(entry.name, self.tensor, self.dims, seen)
                if problem is not None:
                    self.refuse(problem.what, problem.fix, start)
                seen.add(entry.name)
            place = len(entries)
            used = [level[place] for level in before or [] if place < len(level)]
            if entry != BROADCAST and any(earlier != BROADCAST for earlier in used):
                self.refuse(
                    f"machine dimension {place} is used by two levels",
                    "write * for it in all levels but one",
                    start,
                )
            entries.append(entry)
        if not entries:
            self.fail("an entry for each dimension of the machine", "as in `T xy -> xy0 M`")
        if before and len(entries) != len(before[0]):
            self.refuse(
                f"this level has {len(entries)} entries and the first {len(before[0])}",
                "each level has one entry for each dimension of the machine",
                begin,
            )
        return tuple(entries)

    def entry(self) -> MachineDim:
        char = self.text[self.at]
        if char == "*":
            self.at += 1
            return BROADCAST
        if char.isdigit() and char.isascii():
            self.at += 1
            return Fixed(int(char))
        if char == "[":
            return Fixed(self.bracketed())
        if not (char.isalpha() and char.isascii()):
            self.refuse(
                f"expected a dimension, a coordinate or `*`, found `{char}`",
                "an entry is a letter of the tensor, a digit, [12], or *",
                self.at,
            )
        self.at += 1
        if self.text[self.at : self.at + 1] != "%":
            return Named(char)
        self.at += 1
        if self.text[self.at : self.at + 1] != "[":
            return Named(char, 1)
        start = self.at
        block = self.bracketed()
        if block < 1:
            self.refuse("runs of 0 cannot be dealt out", f"write {char}%[4]", start + 1)
        return Named(char, block)

    def bracketed(self) -> int:
        match = _NUMBER.match(self.text, self.at + 1)
        if match is None:
            self.refuse("expected a number after `[`", "as in [12]", self.at + 1)
        if self.text[match.end() : match.end() + 1] != "]":
            self.refuse("expected `]` after the number", "as in [12]", match.end())
        self.at = match.end() + 1
        return int(match[0])
