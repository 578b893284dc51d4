from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from solvers.interned import Interned

SIZES = pytest.mark.parametrize("size", [2, 40], ids=["small", "large"])


@given(seeds=st.lists(st.integers(0, 3), min_size=2, max_size=6), size=st.sampled_from([2, 40]))
def test_arrays_become_one_exactly_where_they_are_equal(seeds: list[int], size: int) -> None:
    interned = Interned()
    arrays = [np.random.default_rng(seed).integers(0, 10**17, (size, size)) for seed in seeds]
    kept = [interned.of(array) for array in arrays]
    for array, one in zip(arrays, kept, strict=True):
        assert np.array_equal(array, one)
    same = [[a == b for b in seeds] for a in seeds]
    assert [[a is b for b in kept] for a in kept] == same


@SIZES
def test_arrays_of_equal_sums_stay_two(size: int) -> None:
    interned, array = Interned(), np.arange(size * size, dtype=np.int64).reshape(size, size)
    assert interned.of(array) is array
    turned = np.ascontiguousarray(array[::-1])
    assert interned.of(turned) is turned
    assert interned.of(array.copy()) is array


@SIZES
def test_equal_entries_of_another_type_or_shape_stay_two(size: int) -> None:
    interned, array = Interned(), np.zeros((size, size), dtype=np.int64)
    assert interned.of(array) is array
    others = (array.astype(bool), array.astype(np.float64), array.reshape(-1, 1), array.ravel())
    assert len({id(interned.of(other)) for other in (array, *others)}) == 5


def test_a_turned_view_becomes_the_equal_contiguous_array() -> None:
    interned, array = Interned(), np.arange(1600, dtype=np.int64).reshape(40, 40)
    turned = interned.of(np.ascontiguousarray(array.T))
    assert interned.of(array.T) is turned
    assert turned.flags.c_contiguous
