"""Finding the largest size for which a compiler does something, in few compiles."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence


def largest(
    least: int, most: int, holding: Callable[[Sequence[int]], Collection[int]], *, at_once: int = 6
) -> int | None:
    """The largest size that holds, where every smaller one from `least` on does too.

    Each round asks about several sizes, as one compiled program can hold all of them.

    Args:
        least: Smallest size asked for.
        most: Largest.
        holding: Those that hold of sizes in rising order.
        at_once: Sizes asked for in one round, two or more.

    Returns:
        None where not even `least` holds.

    Raises:
        ValueError: A size holds and a smaller one does not.
    """
    holds, fails = least - 1, most + 1
    while fails - holds > 1:
        asked = _spread(holds, fails, at_once)
        if holds < least:
            asked = sorted({least, *asked[1:]})
        found = set(holding(asked))
        kept = [size for size in asked if size in found]
        if kept != asked[: len(kept)]:
            raise ValueError(f"of {asked} only {kept} hold: there is no largest one below")
        holds = kept[-1] if kept else holds
        fails = asked[len(kept)] if len(kept) < len(asked) else fails
        if holds < least:
            return None
    return holds


def _spread(below: int, above: int, count: int) -> list[int]:
    """Sizes strictly between two, evenly."""
    width = above - below
    if width - 1 <= count:
        return list(range(below + 1, above))
    return sorted({below + width * part // (count + 1) for part in range(1, count + 1)})
