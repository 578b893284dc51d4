"""Long lists of integers in JSON text, read straight into arrays by a compiled loop.

A list that is the value of a member, and holds nothing but integers from 0 to 2**63 - 1, or nothing
but lists of these, is read here. All else is left to the `json` module, which also finds what is
wrong with it.
"""

from __future__ import annotations

import contextlib
import json
import secrets
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from solvers.kernels import compiled, compiled_part
from solvers.problem import IntArray

SHORTEST = 64
"""Bytes of text from which a list is read here."""

MOST_CONTAINERS = 4_000_000
"""Lists and objects that are read by the `json` module: some five million in a second."""

_MOST_LISTS = 64
_FIRST, _BEHIND, _VALUES, _ENDS, _IS_NESTED = range(5)
_QUOTE, _BACKSLASH, _COLON, _COMMA, _OPEN, _CLOSE = (ord(sign) for sign in '"\\:,[]')
_ZERO, _NINE = ord("0"), ord("9")
_LARGEST = np.uint64(2**63 - 1)
_TEN = np.uint64(10)


@dataclass(frozen=True, slots=True, eq=False)
class IntegerLists:
    """A list of integers, or of lists of integers.

    Args:
        values: int64[integers], none negative.
        ends: int64[lists]: where each inner list ends; None for a list of integers.
    """

    values: IntArray
    ends: IntArray | None

    def __len__(self) -> int:
        return len(self.values if self.ends is None else self.ends)

    def lengths(self) -> list[int]:
        """Returns how long the inner lists are; for a list of lists only."""
        assert self.ends is not None
        lengths: list[int] = np.diff(self.ends, prepend=0).tolist()
        return lengths

    def rows(self) -> list[IntArray]:
        """Returns the inner lists; for a list of lists only."""
        assert self.ends is not None
        ends = self.ends.tolist()
        starts = [0, *ends[:-1]]
        return [self.values[a:b] for a, b in zip(starts, ends, strict=True)]

    def listed(self) -> list[Any]:
        """Returns what `json.loads` would have."""
        if self.ends is None:
            listed: list[Any] = self.values.tolist()
            return listed
        return [row.tolist() for row in self.rows()]


def loads(text: bytes) -> Any:
    """Loads a JSON document with long lists of integers as `IntegerLists`.

    Raises:
        ValueError: It is not JSON, or has more than `MOST_CONTAINERS` lists and objects beside the
            long lists.
        RecursionError: It is nested too deeply.
    """
    raw = np.frombuffer(text, dtype=np.uint8)
    values = np.empty(len(text) // 2 + 1, dtype=np.int64)  # what is not written takes no memory
    ends = np.empty(len(text) // 2 + 1, dtype=np.int64)
    places = np.zeros((_MOST_LISTS, 5), dtype=np.int64)
    count = _find_lists(raw, values, ends, places)
    first_value = first_end = 0
    lists: list[IntegerLists] = []
    pieces: list[bytes] = []
    at = 0
    for place in places[:count].tolist():
        pieces.append(text[at : place[_FIRST]])
        at = place[_BEHIND]
        own_ends = ends[first_end : place[_ENDS]] if place[_IS_NESTED] else None
        lists.append(IntegerLists(values[first_value : place[_VALUES]], own_ends))
        first_value, first_end = place[_VALUES], place[_ENDS]
    pieces.append(text[at:])
    if sum(piece.count(b"[") + piece.count(b"{") for piece in pieces) > MOST_CONTAINERS:
        raise ValueError(f"more than {MOST_CONTAINERS:,} lists and objects that no problem has")
    if lists:
        with contextlib.suppress(ValueError):
            return _joined(pieces, lists)
    return json.loads(text)  # where it is no JSON, the place named is that in the text


def _joined(pieces: list[bytes], lists: list[IntegerLists]) -> Any:
    """Loads what is around the lists, with a mark no text in it holds where each of them was."""
    mark = secrets.token_hex(8)
    while any(mark.encode() in piece for piece in pieces):
        mark = secrets.token_hex(8)
    by_mark = {f"{mark} {k}": listed for k, listed in enumerate(lists)}
    around = pieces[0]
    for name, piece in zip(by_mark, pieces[1:], strict=True):
        around += b'"%s"%s' % (name.encode(), piece)

    def member(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        return {
            key: by_mark.get(value, value) if isinstance(value, str) else value
            for key, value in pairs
        }

    return json.loads(around, object_pairs_hook=member)


@compiled_part
def _behind_space(raw: npt.NDArray[np.uint8], at: int) -> int:
    """Returns the first place from `at` on that holds no white space."""
    while at < len(raw) and (raw[at] == 32 or 9 <= raw[at] <= 10 or raw[at] == 13):
        at += 1
    return at


@compiled_part
def _read_integers(
    raw: npt.NDArray[np.uint8], at: int, values: IntArray, count: int
) -> tuple[int, int]:
    """Reads a list of integers.

    Args:
        raw: uint8[bytes]: the text.
        at: Place behind the opening bracket.
        values: Filled from `count` on.
        count: Integers read before.

    Returns:
        Place behind the closing bracket, -1 where there is anything else; integers read by then.
    """
    at = _behind_space(raw, at)
    if at < len(raw) and raw[at] == _CLOSE:
        return at + 1, count
    while at < len(raw):
        first = at
        value = np.uint64(0)
        while at < len(raw) and _ZERO <= raw[at] <= _NINE:
            value = value * _TEN + np.uint64(raw[at] - _ZERO)
            at += 1
        num_digits = at - first
        if not 1 <= num_digits <= 19 or value > _LARGEST:
            return -1, count
        if num_digits > 1 and raw[first] == _ZERO:
            return -1, count
        values[count] = np.int64(value)
        count += 1
        at = _behind_space(raw, at)
        if at >= len(raw):
            return -1, count
        if raw[at] == _CLOSE:
            return at + 1, count
        if raw[at] != _COMMA:
            return -1, count
        at = _behind_space(raw, at + 1)
    return -1, count


@compiled_part
def _read_lists(
    raw: npt.NDArray[np.uint8],
    at: int,
    values: IntArray,
    count: int,
    ends: IntArray,
    num_ends: int,
    first_value: int,
) -> tuple[int, int, int]:
    """Reads a list of lists of integers from its first inner list on.

    Args:
        raw: uint8[bytes]: the text.
        at: Place of the first inner list's bracket.
        values: Filled from `count` on.
        count: Integers read before.
        ends: Filled from `num_ends` on.
        num_ends: Inner lists read before.
        first_value: What the ends count from.

    Returns:
        Place behind the closing bracket, -1 where there is anything else; integers and inner lists
        read by then.
    """
    while at < len(raw) and raw[at] == _OPEN:
        at, count = _read_integers(raw, at + 1, values, count)
        if at < 0:
            return -1, count, num_ends
        ends[num_ends] = count - first_value
        num_ends += 1
        at = _behind_space(raw, at)
        if at < len(raw) and raw[at] == _CLOSE:
            return at + 1, count, num_ends
        if at >= len(raw) or raw[at] != _COMMA:
            return -1, count, num_ends
        at = _behind_space(raw, at + 1)
    return -1, count, num_ends


@compiled
def _find_lists(
    raw: npt.NDArray[np.uint8], values: IntArray, ends: IntArray, places: IntArray
) -> int:
    """Reads the long lists of integers that are values of members.

    Args:
        raw: uint8[bytes]: the text.
        values: int64[bytes // 2 + 1]: filled with the integers, list after list.
        ends: int64[bytes // 2 + 1]: filled with the ends of inner lists, from each list's start.
        places: int64[lists, 5]: filled with the place of each list, the place behind it, integers
            and ends read by then, and whether it holds lists.

    Returns:
        How many lists were read.
    """
    count = num_ends = num_lists = 0
    is_in_text = is_value = False
    at = 0
    while at < len(raw) and num_lists < len(places):
        byte = raw[at]
        if is_in_text:
            if byte == _BACKSLASH:
                at += 1
            elif byte == _QUOTE:
                is_in_text = False
            at += 1
            continue
        if byte == _OPEN and is_value:
            inner = _behind_space(raw, at + 1)
            is_nested = inner < len(raw) and raw[inner] == _OPEN
            after_values, after_ends = count, num_ends
            if is_nested:
                behind, after_values, after_ends = _read_lists(
                    raw, inner, values, count, ends, num_ends, count
                )
            else:
                behind, after_values = _read_integers(raw, inner, values, count)
            if behind >= at + SHORTEST:
                places[num_lists, _FIRST], places[num_lists, _BEHIND] = at, behind
                places[num_lists, _VALUES], places[num_lists, _ENDS] = after_values, after_ends
                places[num_lists, _IS_NESTED] = is_nested
                count, num_ends, num_lists = after_values, after_ends, num_lists + 1
                at = behind
                continue
        is_in_text = byte == _QUOTE
        if byte == _COLON:
            is_value = True
        elif not (byte == 32 or 9 <= byte <= 10 or byte == 13):
            is_value = False
        at += 1
    return num_lists
