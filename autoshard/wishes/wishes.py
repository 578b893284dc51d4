"""What the user asked of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True)
class AlikeWish:
    """Tensors that must end the same.

    Args:
        members: `(op, value)`: the op that makes a value, or the RESULT that hands one back.
        said: Who asks for it, for errors.
    """

    members: tuple[tuple[int, int], ...]
    said: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for, in the graph's terms.

    Args:
        arguments: Per argument, the sharding asked for, or None.
        results: Per result, likewise.
        alike: Pairs of (argument position, result position) that must end the same.
        values: Shardings for values anywhere, by value index.
        groups: What must end the same, beyond what the program says.
    """

    arguments: Sequence[Sharding | None]
    results: Sequence[Sharding | None]
    alike: Sequence[tuple[int, int]] = ()
    values: Mapping[int, Sharding] = field(default_factory=dict)
    groups: Sequence[AlikeWish] = ()

    def shardings(self) -> Iterator[Sharding]:
        """Every sharding the user wrote, on whatever mesh."""
        for sharding in (*self.arguments, *self.results, *self.values.values()):
            if sharding is not None:
                yield sharding
