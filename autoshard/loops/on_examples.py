"""An op that runs on each device's examples, because the compiler does not partition it."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class OnExamples:
    """An equation of one operand that runs inside a `shard_map`.

    Args:
        operand: Its sharding; dimensions that are computed along are whole.
        results: Likewise, of each result.
    """

    operand: Sharding
    results: tuple[Sharding, ...]
