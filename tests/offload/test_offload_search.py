"""How states are taken apart, and how many of them go to host memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.constraints import Offload
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload_search import StateSearch, _Candidate, _taken_apart
from cost_models import get_hardware

MIB = 2**20


@pytest.mark.parametrize(
    ("shape", "cut", "mib", "expected"),
    [
        ((32, 4096, 1024), (False, False, True), 256, (0, 32)),
        ((32, 4096, 1024), (False, False, True), 64, (0, 8)),
        ((32, 4096, 1024), (True, False, True), 64, (1, 8)),
        ((4096, 1024), (True, True), 64, None),
        ((4096, 1024), (False, True), 640, (0, 32)),  # tiles of 128 rows: no smaller ones
        ((24, 4096, 1024), (False, False, True), 64, (0, 8)),
        ((7, 9), (False, False), 64, None),
        ((), (), 1, None),
    ],
)
def test_states_are_taken_apart_where_they_are_whole(
    shape: tuple[int, ...], cut: tuple[bool, ...], mib: int, expected: tuple[int, int] | None
) -> None:
    assert _taken_apart(shape, cut, mib * MIB) == expected


def search(asked: tuple[int, ...] = ()) -> StateSearch:
    unused: Any = None
    host = get_hardware("tpu-v5e").host
    assert host is not None
    return StateSearch(unused, unused, 0, host, {place: Offload("s['a']") for place in asked})


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True), st.integers(1, 300))
def test_as_few_bytes_as_suffice_go_to_the_host(sizes: list[int], missing: int) -> None:
    candidates = [_Candidate(StreamedUpdate((n,), (n,), 0, 2), s) for n, s in enumerate(sizes)]
    chosen = [one.local_bytes for one in search()._enough(candidates, missing)]
    if sum(sizes) < missing:
        assert sorted(chosen) == sorted(sizes)
    else:
        assert sum(chosen) >= missing
        assert sum(chosen) - min(chosen) < missing  # none can be left out


def test_what_is_asked_goes_there_in_any_case() -> None:
    candidates = [_Candidate(StreamedUpdate((n,), (n,), 0, 2), 10 + n) for n in range(3)]
    assert search((1,))._enough(candidates, -5) == [candidates[1]]
    assert search((0,))._enough(candidates, 15) == [candidates[0], candidates[2]]
