"""Random distributions for property tests."""

from __future__ import annotations

from hypothesis import strategies as st

from autoshard.loops import BROADCAST, Distribution, Fixed, Named
from autoshard.loops.distribution import MachineDim

BLOCKS = st.sampled_from([None, None, 1, 2])


@st.composite
def distributions(
    draw: st.DrawFn, *, is_sayable: bool = False, has_levels: bool = True
) -> Distribution:
    """Any distribution of few dimensions; with `is_sayable`, one that a sharding can say."""
    dims = tuple("xyz"[: draw(st.integers(0, 3))])
    rank = draw(st.integers(1, 3))
    depth = draw(st.integers(1, 2)) if has_levels else 1
    kinds = ["name", "copy"] if is_sayable else ["name", "copy", "fix"]
    used: set[int] = set()
    levels = []
    for _ in range(depth):
        level: list[MachineDim] = []
        names = list(draw(st.permutations(dims)))
        for place in range(rank):
            kind = draw(st.sampled_from(kinds))
            if place in used or kind == "copy" or (kind == "name" and not names):
                level.append(BROADCAST)
                continue
            used.add(place)
            if kind == "fix":
                level.append(Fixed(draw(st.integers(0, 1))))
            else:
                level.append(Named(names.pop(), None if is_sayable else draw(BLOCKS)))
        levels.append(tuple(level))
    return Distribution("T", dims, tuple(levels))
