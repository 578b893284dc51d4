"""How states are taken apart, and how many of them go to host memory."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.offload.asked import AskedState
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload_candidates import (
    StateCandidate,
    StateCandidates,
    notes_on_asked,
    taken_apart,
)
from autoshard.offload_search import StateSearch
from cost_models import get_hardware

MIB = 2**20


@pytest.mark.parametrize(
    ("shape", "pieces", "mib", "expected"),
    [
        ((32, 4096, 1024), (1, 1, 4), 256, (0, 32, 1)),
        ((32, 4096, 1024), (1, 1, 4), 64, (0, 8, 1)),
        ((32, 4096, 1024), (2, 1, 4), 64, (1, 8, 1)),
        ((4096, 1024), (2, 4), 64, (0, 8, 2)),
        ((512, 1024), (2, 4), 64, (0, 2, 2)),  # tiles of 128 rows: no smaller ones
        ((256, 1024), (2, 4), 64, (1, 2, 4)),
        ((4096, 1024), (None, 8), 64, None),
        ((4096, 1024), (1, 4), 640, (0, 32, 1)),
        ((24, 4096, 1024), (1, 1, 4), 64, (0, 8, 1)),
        ((7, 9), (1, 1), 64, None),
        ((), (), 1, None),
    ],
)
def test_states_are_taken_apart_where_they_are_whole_if_they_can(
    shape: tuple[int, ...],
    pieces: tuple[int | None, ...],
    mib: int,
    expected: tuple[int, int, int] | None,
) -> None:
    assert taken_apart(shape, pieces, mib * MIB) == expected


def search(asked: tuple[int, ...] = ()) -> StateSearch:
    unused: Any = None
    host = get_hardware("tpu-v5e").host
    assert host is not None
    return StateSearch(
        unused, unused, 0, host, {place: AskedState("offload", "offload") for place in asked}
    )


@given(st.lists(st.integers(1, 50), min_size=1, max_size=8, unique=True), st.integers(1, 300))
def test_as_few_bytes_as_suffice_go_to_the_host(sizes: list[int], missing: int) -> None:
    candidates = [StateCandidate(StreamedUpdate((n,), (n,), 0, 2), s) for n, s in enumerate(sizes)]
    chosen = [one.local_bytes for one in search()._enough(candidates, missing)]
    if sum(sizes) < missing:
        assert sorted(chosen) == sorted(sizes)
    else:
        assert sum(chosen) >= missing
        assert sum(chosen) - min(chosen) < missing  # none can be left out


def test_what_is_asked_goes_there_in_any_case() -> None:
    candidates = [StateCandidate(StreamedUpdate((n,), (n,), 0, 2), 10 + n) for n in range(3)]
    assert search((1,))._enough(candidates, -5) == [candidates[1]]
    assert search((0,))._enough(candidates, 15) == [candidates[0], candidates[2]]


@given(
    st.lists(st.integers(1, 50), min_size=1, max_size=5),
    st.lists(st.integers(1, 50), min_size=5, max_size=5),
    st.integers(-5, 400),
)
def test_parameters_follow_their_states(
    states: list[int], parameters: list[int], missing: int
) -> None:
    alone = [
        StateCandidate(StreamedUpdate((n + 9,), (n + 9,), 0, 2), s) for n, s in enumerate(states)
    ]
    both = [
        StateCandidate(StreamedUpdate((n, n + 9), (n, n + 9), 0, 2), s + p)
        for n, (s, p) in enumerate(zip(states, parameters, strict=False))
    ]
    chosen = search().chosen(StateCandidates(alone, both, {}), missing)
    sent = sum(one.local_bytes for one in chosen)
    assert sent >= min(missing, sum(one.local_bytes for one in both))
    if missing <= sum(states):
        assert all(one in alone for one in chosen)
    places = [place for one in chosen for place in one.update.arguments]
    assert len(places) == len({*places})
    asked = search((0,)).chosen(StateCandidates(alone, both, {}), 0)
    assert asked == [both[0]]


def test_a_note_tells_what_stays_on_the_device_and_why() -> None:
    names = [f"s[{place}]" for place in range(6)]
    asked = {place: AskedState("offload `s**`", "offload `s**`") for place in range(5)}
    refused = {5: "read", **dict.fromkeys(range(4), "too small")}
    assert notes_on_asked(asked, refused, names) == (
        "on the device, though host memory is asked for: `s[0]`, `s[1]`, `s[2]` and 1 more;"
        " too small",
    )
