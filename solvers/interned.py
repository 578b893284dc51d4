"""Equal arrays as one."""

from __future__ import annotations

from typing import Any

import numpy as np
import numpy.typing as npt

_SUMMED_FROM = 1024
"""Bytes: larger arrays are told apart by their sums, and by their entries where these are equal."""


class Interned:
    """One array of each content."""

    def __init__(self) -> None:
        self._small: dict[tuple[object, ...], npt.NDArray[Any]] = {}
        self._large: dict[tuple[object, ...], list[npt.NDArray[Any]]] = {}

    def of(self, array: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Returns the array kept for this type, shape and content; it is contiguous."""
        whole = np.ascontiguousarray(array)
        kind = whole.dtype.char, whole.shape
        if whole.nbytes < _SUMMED_FROM:
            return self._small.setdefault((*kind, whole.tobytes()), whole)
        alike = self._large.setdefault((*kind, whole.sum(axis=0).tobytes()), [])
        for one in alike:
            if one is whole or np.array_equal(one, whole):
                return one
        alike.append(whole)
        return whole
