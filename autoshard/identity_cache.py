"""Results by the identity of what they are computed from."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Generic, TypeVar

Result = TypeVar("Result")


class IdentityCache(Generic[Result]):
    """Results of one computation.

    Equal layers share their candidates, tables and arrays: these are told apart by identity, and
    kept as long as the cache is.
    """

    __slots__ = ("_known",)

    def __init__(self) -> None:
        self._known: dict[Hashable, tuple[tuple[object, ...], Result]] = {}

    def get(self, compute: Callable[[], Result], *objects: object, key: Hashable = None) -> Result:
        """The result for these objects and a key, computed where it is not known."""
        place = (key, *map(id, objects))
        found = self._known.get(place)
        if found is None:
            found = self._known[place] = objects, compute()
        return found[1]
