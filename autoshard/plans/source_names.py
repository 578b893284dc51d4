"""Source lines without the folders that every reader knows: `train.py:12`, not its whole path."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace

from autoshard.plans.plan import PlanData

_PATH = re.compile(r"((?:/|[A-Za-z]:[/\\])[^\s:]+)(?=:\d+)")
_SEPARATOR = re.compile(r"[/\\]")


class SourceNames:
    """Shortens the absolute paths in a plan's texts to the least that tells its files apart.

    Args:
        texts: Every text a source line may stand in: `dot_general at /home/me/train.py:12 (loss)`.
    """

    def __init__(self, texts: Iterable[str]) -> None:
        paths = sorted({path for text in texts for path in _PATH.findall(text)})
        parts_by_path = {path: _SEPARATOR.split(path) for path in paths}
        self._short_by_path = {
            path: _shortest(path, parts, [p for other, p in parts_by_path.items() if other != path])
            for path, parts in parts_by_path.items()
        }

    def shorten(self, text: str) -> str:
        return _PATH.sub(lambda match: self._short_by_path.get(match[1], match[1]), text)


def with_short_sources(plan: PlanData) -> PlanData:
    """The same plan with every source line shortened."""
    memory = plan.memory
    texts = {op.source for op in plan.ops} | {collective.op for collective in plan.collectives}
    texts |= {live.source for live in memory.live_at_peak} | {memory.peak_where, *plan.notes}
    texts |= {held.source for held in memory.held}
    texts |= {asked.where for found in plan.rounds for asked in found.asked}
    texts |= {line.source for line in plan.listing} | {term.text for term in plan.asked}
    texts |= {one.source for one in plan.products}
    found = plan.residuals
    texts |= {one.source for one in found.residuals} if found else set()
    shorten = SourceNames(texts).shorten
    return replace(
        plan,
        ops=tuple(replace(op, source=shorten(op.source)) for op in plan.ops),
        collectives=tuple(replace(c, op=shorten(c.op)) for c in plan.collectives),
        memory=replace(
            memory,
            peak_where=shorten(memory.peak_where),
            live_at_peak=tuple(
                replace(live, source=shorten(live.source)) for live in memory.live_at_peak
            ),
            held=tuple(replace(held, source=shorten(held.source)) for held in memory.held),
        ),
        notes=tuple(map(shorten, plan.notes)),
        rounds=tuple(
            replace(
                found,
                asked=tuple(replace(one, where=shorten(one.where)) for one in found.asked),
            )
            for found in plan.rounds
        ),
        listing=tuple(replace(line, source=shorten(line.source)) for line in plan.listing),
        asked=tuple(replace(term, text=shorten(term.text)) for term in plan.asked),
        products=tuple(replace(one, source=shorten(one.source)) for one in plan.products),
        residuals=found
        and replace(
            found,
            residuals=tuple(replace(one, source=shorten(one.source)) for one in found.residuals),
        ),
    )


def _shortest(path: str, parts: list[str], others: list[list[str]]) -> str:
    for count in range(1, len(parts)):
        if all(other[-count:] != parts[-count:] for other in others):
            return "/".join(parts[-count:])
    return path
