"""Memory in use at every row, in blocks: long intervals cost a few additions, peaks are at hand."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

from solvers.kernels import compiled
from solvers.problem import IntArray
from solvers.scalable.layout import FlatMemory

BLOCK = 64
"""Rows a block holds: near the square root of the usual interval."""


class Profile(NamedTuple):
    """Use at row r is ``held[r] + added[r // BLOCK]``.

    Args:
        held: int64[blocks * BLOCK].
        added: int64[blocks]: what every row of the block holds besides.
        most: int64[blocks]: the highest use in the block, `added` included.
    """

    held: IntArray
    added: IntArray
    most: IntArray


@compiled
def add_to_profile(profile: Profile, first: int, stop: int, amount: int) -> int:
    """Adds to all rows from `first` up to `stop`; returns the highest use in the blocks touched."""
    block = first // BLOCK
    last = (stop - 1) // BLOCK
    peak = 0
    while block <= last:
        start_row = block * BLOCK
        stop_row = start_row + BLOCK
        if first <= start_row and stop >= stop_row:
            profile.added[block] += amount
            profile.most[block] += amount
        else:
            for row in range(max(first, start_row), min(stop, stop_row)):
                profile.held[row] += amount
            most = profile.held[start_row]
            for row in range(start_row, stop_row):
                most = max(most, profile.held[row])
            profile.most[block] = most + profile.added[block]
        peak = max(peak, profile.most[block])
        block += 1
    return peak


@compiled
def peak_of(profile: Profile) -> int:
    """Returns the highest use at any row."""
    peak = 0
    for most in profile.most:
        peak = max(peak, most)
    return peak


def use_by_row(memory: FlatMemory, num_choices: IntArray, choices: IntArray) -> IntArray:
    """Returns int64[rows]: bytes in use."""
    change = np.zeros(memory.num_rows + 1, dtype=np.int64)
    add_changes(memory, num_choices, choices, change)
    use: IntArray = np.cumsum(change)[:-1]
    return use


@compiled
def add_changes(
    memory: FlatMemory, num_choices: IntArray, choices: IntArray, change: IntArray
) -> None:
    """Adds what choices hold where it begins, and takes it off where it ends.

    Args:
        memory: The terms.
        num_choices: int64[nodes].
        choices: int64[nodes].
        change: int64[rows + 1]; updated.
    """
    for node in range(len(choices)):
        for term in range(memory.term_start[node], memory.term_start[node + 1]):
            far = memory.far[term]
            at = memory.usage_start[term] + choices[node]
            if far >= 0:
                if far > node:
                    continue  # counted at the other end
                at += choices[far] * num_choices[node]
            change[memory.first_row[term]] += memory.usages[at]
            change[memory.stop_row[term]] -= memory.usages[at]


def profile_of(memory: FlatMemory, num_choices: IntArray, choices: IntArray) -> Profile:
    """Returns what choices hold."""
    num_blocks = max(1, -(-memory.num_rows // BLOCK))
    held = np.zeros(num_blocks * BLOCK, dtype=np.int64)
    held[: memory.num_rows] = use_by_row(memory, num_choices, choices)
    return Profile(
        held, np.zeros(num_blocks, dtype=np.int64), held.reshape(num_blocks, BLOCK).max(axis=1)
    )
