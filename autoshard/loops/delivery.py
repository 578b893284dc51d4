"""Who sends what to whom, in rounds in which everybody sends and receives one piece at most."""

from __future__ import annotations

from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Generic, TypeVar

from autoshard.loops.holdings import Coordinates
from autoshard.loops.placed import ring_distance

Key = TypeVar("Key", bound=Hashable)


@dataclass(frozen=True, slots=True)
class Handover(Generic[Key]):
    """One piece from one processor to another.

    Args:
        source: Who sends.
        target: Who receives.
        key: Which piece.
        is_from_home: Whether the sender has it at home; otherwise it received it in a round before.
    """

    source: Coordinates
    target: Coordinates
    key: Key
    is_from_home: bool


def delivery_rounds(
    wants: Mapping[Coordinates, Sequence[Key]],
    holders: Mapping[Key, Sequence[Coordinates]],
    grid: tuple[int, ...],
) -> tuple[tuple[Handover[Key], ...], ...]:
    """Plan who gets which piece from whom.

    Every piece that a processor wants and does not hold reaches it exactly once. In each round as
    many are served as possible (a maximum matching of senders and receivers), and those served
    send on: one piece wanted by `n` processors takes the rounds of a binomial tree.

    Args:
        wants: The pieces each processor wants.
        holders: Who has each piece at home, one at least.
        grid: To prefer near senders.
    """
    missing = {
        target: [key for key in dict.fromkeys(keys) if target not in holders[key]]
        for target, keys in wants.items()
    }
    received: dict[Key, list[Coordinates]] = {}
    rounds: list[tuple[Handover[Key], ...]] = []
    while any(missing.values()):
        matched = _match(missing, holders, received, grid)
        done = []
        for target, (source, key) in matched.items():
            done.append(Handover(source, target, key, source in holders[key]))
        for handover in done:
            missing[handover.target].remove(handover.key)
            received.setdefault(handover.key, []).append(handover.target)
        rounds.append(tuple(done))
    return tuple(rounds)


def _match(
    missing: Mapping[Coordinates, Sequence[Key]],
    holders: Mapping[Key, Sequence[Coordinates]],
    received: Mapping[Key, Sequence[Coordinates]],
    grid: tuple[int, ...],
) -> dict[Coordinates, tuple[Coordinates, Key]]:
    """Receiver to sender and piece, as many as possible, by augmenting paths."""

    def offers(target: Coordinates) -> list[tuple[Coordinates, Key]]:
        found = [
            (source, key)
            for key in missing[target]
            for source in (*holders[key], *received.get(key, ()))
        ]

        def nearness(offer: tuple[Coordinates, Key]) -> tuple[int, Coordinates]:
            offset = tuple((s - t) % n for s, t, n in zip(offer[0], target, grid, strict=True))
            return ring_distance(offset, grid), offset

        return sorted(found, key=nearness)

    by_target = {target: offers(target) for target, keys in missing.items() if keys}
    taken: dict[Coordinates, Coordinates] = {}
    chosen: dict[Coordinates, tuple[Coordinates, Key]] = {}

    def serve(target: Coordinates, tried: set[Coordinates]) -> bool:
        for source, key in by_target[target]:
            if source in tried:
                continue
            tried.add(source)
            if source not in taken or serve(taken[source], tried):
                taken[source] = target
                chosen[target] = (source, key)
                return True
        return False

    for target in by_target:
        serve(target, set())
    return chosen
