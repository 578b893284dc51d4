"""Lists in messages, cut short."""

from __future__ import annotations

from collections.abc import Sequence


def listed(texts: Sequence[str], most: int) -> str:
    """Returns `a, b and 3 more`: the first texts, and how many follow.

    Args:
        texts: All of them.
        most: That are shown.
    """
    shown, more = ", ".join(texts[:most]), len(texts) - most
    return f"{shown} and {more} more" if more > 0 else shown
