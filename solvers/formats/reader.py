"""Takes numbers and members out of a JSON document; every refusal names the path inside it."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any, NoReturn

import numpy as np

from solvers.errors import FormatError
from solvers.formats.integer_lists import IntegerLists
from solvers.problem import FORBIDDEN, LARGEST_ALLOWED_COST, LARGEST_TOTAL_USAGE, IntArray

LARGEST = 2**63 - 1


class Reader:
    """Reads one document.

    Args:
        source: Where it is from, for messages.
        fix: What to tell who gave it.
    """

    def __init__(self, source: str, fix: str) -> None:
        self.source = source
        self.fix = fix

    def refuse(self, path: str, what: str) -> NoReturn:
        """Raises the error for a path inside the document."""
        raise FormatError(f"{path}: {what}" if path else what, where=self.source, fix=self.fix)

    def member(self, holder: object, path: str, key: str, kind: type[Any]) -> Any:
        """Returns ``holder[key]``, checked to be a dict or list."""
        inner = f"{path}.{key}" if path else key
        if not isinstance(holder, dict) or key not in holder:
            self.refuse(inner, "is missing")
        found = holder[key]
        if isinstance(found, IntegerLists) and kind is list:
            return found
        if not isinstance(found, kind):
            expected = "an object" if kind is dict else "a list"
            self.refuse(inner, f"is {kind_of(found)}, expected {expected}")
        return found

    def number(self, path: str, value: object) -> int:
        """Returns a non-negative 64-bit integer."""
        if type(value) is not int:  # A bool counts as one in Python but not in the format.
            self.refuse(path, f"is {kind_of(value)}, expected an integer")
        if not 0 <= value <= LARGEST:
            self.refuse(path, f"is {_short(value)}, expected 0 to {LARGEST}")
        return value

    def numbers(self, path: str, listed: object) -> IntArray:
        """Returns a list of non-negative 64-bit integers as an array."""
        if isinstance(listed, IntegerLists):
            if listed.ends is None:
                return listed.values
            listed = listed.listed()
        if not isinstance(listed, list):
            self.refuse(path, f"is {kind_of(listed)}, expected a list of integers")
        return self._array(path, [listed])

    def pairs(self, path: str, listed: Sequence[Any] | IntegerLists) -> IntArray:
        """Returns int64[entries, 2] from a list of pairs."""
        if isinstance(listed, IntegerLists):
            if listed.ends is not None and set(listed.lengths()) <= {2}:
                return listed.values.reshape(-1, 2)
            listed = listed.listed()
        self._check_lists(path, listed)
        if any(len(pair) != 2 for pair in listed):
            for i, pair in enumerate(listed):
                if len(pair) != 2:
                    self.refuse(f"{path}[{i}]", f"has {len(pair)} entries, expected 2")
        return self._array(path, listed, has_rows=True).reshape(-1, 2)

    def rows(
        self,
        path: str,
        listed: Sequence[Any] | IntegerLists,
        lengths: Sequence[int] | None = None,
    ) -> list[IntArray]:
        """Returns each list of integers as an array, equal ones as the same array.

        Args:
            path: Of the list of lists.
            listed: The list of lists.
            lengths: How long each must be; None for any length but 0.
        """
        if isinstance(listed, IntegerLists) and listed.ends is None:
            listed = listed.listed()
        if isinstance(listed, IntegerLists):
            found = listed.lengths()
        else:
            self._check_lists(path, listed)
            found = [len(row) for row in listed]
        if lengths is None and 0 in found:
            self.refuse(f"{path}[{found.index(0)}]", "is empty, expected at least one choice")
        if lengths is not None and found != list(lengths):
            for i, (has, expected) in enumerate(zip(found, lengths, strict=True)):
                if has != expected:
                    self.refuse(f"{path}[{i}]", f"has {has} entries, expected {expected}")
        if isinstance(listed, IntegerLists):
            rows = listed.rows()
        else:
            rows = _cut(self._array(path, listed, has_rows=True), found)
        row_by_content: dict[bytes, IntArray] = {}
        return [row_by_content.setdefault(row.tobytes(), row) for row in rows]

    def costs(self, path: str, rows: Sequence[IntArray]) -> list[IntArray]:
        """Returns costs with all that are not allowed set to `FORBIDDEN`; same rows stay the same.

        Refuses those too large to be costs and too small to mean "not allowed".
        """
        distinct = {id(row): row for row in rows}
        if not distinct:
            return []
        flat = np.concatenate(list(distinct.values()))
        if flat.size and int(flat.max()) >= LARGEST_ALLOWED_COST:
            if ((flat >= LARGEST_ALLOWED_COST) & (flat < FORBIDDEN)).any():
                self._refuse_between(path, rows)
            np.minimum(flat, FORBIDDEN, out=flat)
        cut = _cut(flat, [row.size for row in distinct.values()])
        costs = dict(zip(distinct, cut, strict=True))
        return [costs[id(row)] for row in rows]

    def check_total(self, path: str, rows: Sequence[IntArray]) -> None:
        """Refuses usages that could add up to more than 64 bits hold."""
        distinct = {id(row): row for row in rows}
        most = {key: int(row.max(initial=0)) for key, row in distinct.items()}
        total = sum(most[id(row)] for row in rows)
        if total >= LARGEST_TOTAL_USAGE:
            self.refuse(
                path,
                f"the largest ones add up to {total}, expected less than {LARGEST_TOTAL_USAGE}",
            )

    def check_intervals(self, path: str, intervals: IntArray) -> None:
        """Refuses intervals that stop before they start."""
        reversed_ones = np.flatnonzero(intervals[:, 0] > intervals[:, 1])
        if reversed_ones.size:
            i = int(reversed_ones[0])
            start, stop = intervals[i].tolist()
            self.refuse(f"{path}[{i}]", f"starts at {start}, stops at {stop}")

    def check_ends(self, path: str, ends: IntArray, num_nodes: int) -> None:
        """Refuses edges that join unknown nodes, or a node to itself."""
        unknown = np.argwhere(ends >= num_nodes)
        if unknown.size:
            e, place = unknown[0].tolist()
            self.refuse(
                f"{path}[{e}][{place}]",
                f"is node {int(ends[e, place])}, there are {num_nodes} nodes",
            )
        loops = np.flatnonzero(ends[:, 0] == ends[:, 1])
        if loops.size:
            e = int(loops[0])
            self.refuse(f"{path}[{e}]", f"joins node {int(ends[e, 0])} to itself")

    def _check_lists(self, path: str, listed: Sequence[object]) -> None:
        if set(map(type, listed)) <= {list}:
            return
        for i, row in enumerate(listed):
            if not isinstance(row, list):
                self.refuse(f"{path}[{i}]", f"is {kind_of(row)}, expected a list of integers")

    def _array(self, path: str, listed: Sequence[Any], *, has_rows: bool = False) -> IntArray:
        flat = list(chain.from_iterable(listed))
        if not flat:
            return np.empty(0, dtype=np.int64)
        if set(map(type, flat)) == {int}:
            try:
                array = np.array(flat, dtype=np.int64)
            except OverflowError:
                array = None
            if array is not None and int(array.min()) >= 0:
                return array
        for i, row in enumerate(listed):
            for k, value in enumerate(row):
                self.number(f"{path}[{i}][{k}]" if has_rows else f"{path}[{k}]", value)
        raise AssertionError("a number was refused as an array but not alone")

    def _refuse_between(self, path: str, rows: Sequence[IntArray]) -> NoReturn:
        """Refuses the first cost that is neither small enough nor large enough."""
        for i, row in enumerate(rows):
            for position in np.flatnonzero((row >= LARGEST_ALLOWED_COST) & (row < FORBIDDEN)):
                self.refuse(
                    f"{path}[{i}][{position}]",
                    f"is {row[position]}, expected less than 10**16, or 10**17 and up for not "
                    "allowed",
                )
        raise AssertionError("no such cost is in any row")


def _cut(flat: IntArray, lengths: Sequence[int]) -> list[IntArray]:
    """Cuts an array into pieces."""
    ends = np.cumsum(lengths, dtype=np.int64).tolist()
    return [flat[end - length : end] for end, length in zip(ends, lengths, strict=True)]


def kind_of(value: object) -> str:
    """Returns how a message calls a JSON value."""
    if value is None:
        return "null"
    if isinstance(value, (bool, int, float)):
        return _short(value)
    if isinstance(value, str):
        return "text"
    return "a list" if isinstance(value, (list, IntegerLists)) else "an object"


def _short(value: float) -> str:
    # Python refuses to print integers of more than 4300 digits.
    if isinstance(value, int) and value.bit_length() > 256:
        return f"an integer of {value.bit_length()} bits"
    return str(value)
