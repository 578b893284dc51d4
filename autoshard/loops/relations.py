"""How the variables of a loop nest make up one another: divided, split, rotated."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias


@dataclass(frozen=True, slots=True)
class Divide:
    """`variable = outer * inner_extent + inner`, in a given number of parts; see `divide`."""

    variable: str
    outer: str
    inner: str
    parts: int
    inner_extent: int

    def __str__(self) -> str:
        return f"divide({self.variable}, {self.outer}, {self.inner}, {self.parts})"

    def value(self, of: Mapping[str, Any]) -> Any:
        return of[self.outer] * self.inner_extent + of[self.inner]


@dataclass(frozen=True, slots=True)
class Split:
    """`variable = outer * size + inner`, in parts of a given size; see `split`."""

    variable: str
    outer: str
    inner: str
    size: int
    parts: int

    def __str__(self) -> str:
        return f"split({self.variable}, {self.outer}, {self.inner}, {self.size})"

    @property
    def inner_extent(self) -> int:
        return self.size

    def value(self, of: Mapping[str, Any]) -> Any:
        return of[self.outer] * self.size + of[self.inner]


@dataclass(frozen=True, slots=True)
class Rotate:
    """`variable = (result + sum of over) mod extent`.

    With `mirrored`, a loop of two turns, the second of them runs backwards: there
    `variable = (sum of over - result) mod extent`.
    """

    variable: str
    over: tuple[str, ...]
    result: str
    extent: int
    mirrored: str | None = None

    def __str__(self) -> str:
        text = f"rotate({self.variable}, {{{', '.join(self.over)}}}, {self.result}"
        return text + (f", mirrored={self.mirrored})" if self.mirrored else ")")

    def value(self, of: Mapping[str, Any]) -> Any:
        step = of[self.result]
        if self.mirrored is not None:
            step = step * (1 - 2 * of[self.mirrored])
        return (step + sum(of[name] for name in self.over)) % self.extent


Relation: TypeAlias = Divide | Split | Rotate
