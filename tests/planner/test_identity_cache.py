"""Results by the identity of what they are computed from."""

from __future__ import annotations

from autoshard.identity_cache import IdentityCache


def test_equal_objects_are_told_apart_and_each_result_is_computed_once() -> None:
    cache: IdentityCache[int] = IdentityCache()
    runs: list[int] = []

    def compute() -> int:
        runs.append(0)
        return len(runs)

    first, second = [1], [1]
    assert [cache.get(compute, one) for one in (first, second, first)] == [1, 2, 1]
    assert cache.get(compute, first, key="other") == 3


def test_a_result_of_none_is_known_too() -> None:
    cache: IdentityCache[None] = IdentityCache()
    runs: list[int] = []
    for _ in range(2):
        cache.get(lambda: runs.append(0), runs)
    assert len(runs) == 1
