"""What the user asked of a plan."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from autoshard.sharding import AxisRef, Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for, in the graph's terms.

    Args:
        arguments: Per argument, the sharding asked for, or None.
        results: Per result, likewise.
        alike: Pairs of (argument position, result position) that must end the same.
        values: Shardings for values anywhere, by value index.
    """

    arguments: Sequence[Sharding | None]
    results: Sequence[Sharding | None]
    alike: Sequence[tuple[int, int]] = ()
    values: Mapping[int, Sharding] = field(default_factory=dict)

    def refs(self) -> Iterator[AxisRef]:
        """Every axis reference the user wrote."""
        for sharding in (*self.arguments, *self.results, *self.values.values()):
            if sharding is not None:
                for dim in sharding.dims:
                    yield from dim.axes
                yield from sharding.replicated
