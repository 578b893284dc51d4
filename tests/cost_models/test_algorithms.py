"""Ways to run a collective: their formulas, and which one wins."""

from __future__ import annotations

import math
import typing

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import (
    Algorithm,
    GroupDim,
    LinearCost,
    LinkDim,
    all_gather_algorithms,
    all_reduce_algorithms,
    fastest,
    reduce_scatter_algorithms,
)
from cost_models.algorithms import lowest_lines
from cost_models.hardware import AlgorithmName
from cost_models.links import AxisLink, DimPart, LinkKind, group_dims

EVERY: tuple[AlgorithmName, ...] = typing.get_args(AlgorithmName)


def group(*dims: tuple[LinkKind, int], adds: float | None = None) -> tuple[GroupDim, ...]:
    """A group on whole dimensions: links of 1 GB/s and 1 us, a network of a quarter of that."""
    parts = tuple(
        DimPart(
            LinkDim(
                index,
                kind,
                size,
                0.25e9 if kind == "network" else 1e9,
                4e-6 if kind == "network" else 1e-6,
                adds if kind == "switch" else None,
            ),
            1,
            size,
        )
        for index, (kind, size) in enumerate(dims)
    )
    size = math.prod(part.size for part in parts)
    return group_dims([(AxisLink(size, parts), 1, size)])


def priced(algorithms: tuple[Algorithm, ...]) -> dict[str, tuple[float, float]]:
    """Microseconds and nanoseconds per byte, by name."""
    return {
        way.name: (round(way.cost.seconds * 1e6, 6), round(way.cost.seconds_per_byte * 1e9, 6))
        for way in algorithms
    }


def test_gathers_behind_a_switch() -> None:
    assert priced(all_gather_algorithms(group(("switch", 8)), 0.0, EVERY)) == {
        "levels": (3, 7 / 8),
        "ring": (7, 7 / 8),
    }


def test_sums_behind_a_switch_that_adds() -> None:
    assert priced(all_reduce_algorithms(group(("switch", 8), adds=0.5e9), 0.0, EVERY)) == {
        "levels": (6, 2 * 7 / 8),
        "ring": (14, 2 * 7 / 8),
        "tree": (6, 2),
        "doubling": (3, 3),
        "in-switch": (2, 2),
    }


def test_sums_across_nodes() -> None:
    # Four nodes of eight: each device's interface carries an eighth of what a node sends.
    dims = group(("network", 4), ("switch", 8), adds=1e9)
    assert priced(all_reduce_algorithms(dims, 0.0, EVERY)) == {
        "levels": (2 * (2 * 4 + 3), 2 * (7 / 8 + 3 / 4 * 4 / 8)),
        "ring": (2 * (4 * 4 + 27), 2 * 31 / 32),
        "tree": (2 * (2 * 4 + 3), 2),
        "doubling": (2 * 4 + 3, 2 * 4 + 3),
        "in-switch": (2 * 2 * 4 + 2, 1),
    }


def test_gathers_across_single_devices_of_nodes() -> None:
    assert priced(all_gather_algorithms(group(("network", 4)), 0.0, EVERY)) == {
        "levels": (8, 3),
        "ring": (12, 3),
    }


def test_a_torus_is_run_on_all_dimensions_at_once() -> None:
    for algorithms in (all_gather_algorithms, reduce_scatter_algorithms, all_reduce_algorithms):
        (way,) = algorithms(group(("ring", 4), ("line", 2)), 0.0, EVERY)
        assert way.name == "levels"


def test_only_what_the_library_has_is_offered() -> None:
    dims = group(("switch", 8))
    assert [way.name for way in all_reduce_algorithms(dims, 0.0, ("tree", "ring"))] == [
        "ring",
        "tree",
    ]
    assert [way.name for way in all_gather_algorithms(dims, 0.0, ("tree",))] == ["levels"]


def test_the_launch_is_paid_once() -> None:
    for algorithms in (all_gather_algorithms, all_reduce_algorithms):
        dims = group(("network", 2), ("switch", 4), adds=1e9)
        without, launched = algorithms(dims, 0.0, EVERY), algorithms(dims, 1e-3, EVERY)
        for before, after in zip(without, launched, strict=True):
            assert after.cost.seconds - before.cost.seconds == pytest.approx(1e-3)


def test_sums_go_from_doubling_over_the_tree_to_the_ring_as_they_grow() -> None:
    ways = all_reduce_algorithms(group(("switch", 16)), 0.0, ("ring", "tree", "doubling"))
    names = [fastest(ways, float(10**exponent)).name for exponent in range(8)]
    assert names[0] == "doubling"
    assert "tree" in names
    assert names[-1] == "ring"
    assert names == sorted(names, key=("doubling", "tree", "ring").index)


switched = st.tuples(st.integers(1, 8), st.integers(1, 16)).filter(lambda sizes: max(sizes) > 1)
amounts = st.floats(0, 1e12)


def switched_group(sizes: tuple[int, int], adds: float | None) -> tuple[GroupDim, ...]:
    kinds: tuple[LinkKind, LinkKind] = ("network", "switch")
    return group(
        *[(kind, size) for kind, size in zip(kinds, sizes, strict=True) if size > 1], adds=adds
    )


@given(sizes=switched, adds=st.none() | st.floats(0.4e9, 1e9), amount=amounts)
def test_a_sum_is_never_dearer_than_its_two_halves(
    sizes: tuple[int, int], adds: float | None, amount: float
) -> None:
    dims = switched_group(sizes, adds)
    halves = reduce_scatter_algorithms(dims, 1e-6, EVERY), all_gather_algorithms(dims, 1e-6, EVERY)
    together = fastest(all_reduce_algorithms(dims, 1e-6, EVERY), amount).cost.at(amount)
    apart = sum(fastest(ways, amount).cost.at(amount) for ways in halves)
    assert together <= apart * (1 + 1e-12)


@given(sizes=switched, adds=st.none() | st.floats(0.4e9, 1e9), amount=amounts, more=amounts)
def test_more_bytes_never_take_less_time(
    sizes: tuple[int, int], adds: float | None, amount: float, more: float
) -> None:
    for ways in (all_gather_algorithms, all_reduce_algorithms):
        found = ways(switched_group(sizes, adds), 1e-6, EVERY)
        less_time = fastest(found, amount).cost.at(amount)
        assert less_time <= fastest(found, amount + more).cost.at(amount + more)


@given(size=st.integers(2, 63), adds=st.none() | st.floats(0.4e9, 1e9), amount=amounts)
def test_one_more_device_behind_the_switch_is_never_cheaper(
    size: int, adds: float | None, amount: float
) -> None:
    for ways in (all_gather_algorithms, all_reduce_algorithms):
        fewer = fastest(ways(group(("switch", size), adds=adds), 0.0, EVERY), amount)
        more = fastest(ways(group(("switch", size + 1), adds=adds), 0.0, EVERY), amount)
        assert fewer.cost.at(amount) <= more.cost.at(amount) * (1 + 1e-12)


lines = st.builds(LinearCost, st.floats(0, 1), st.floats(0, 1))


@given(costs=st.lists(lines, min_size=1, max_size=6), amount=st.floats(0, 1e6))
def test_the_lowest_lines_are_as_low_as_all_of_them(costs: list[LinearCost], amount: float) -> None:
    kept = lowest_lines(tuple(costs))
    assert set(kept) <= set(costs)
    least = min(cost.at(amount) for cost in costs)
    assert min(cost.at(amount) for cost in kept) == pytest.approx(least, rel=1e-9, abs=1e-12)


def test_a_line_that_never_wins_is_dropped() -> None:
    few, many = LinearCost(1.0, 3.0), LinearCost(3.0, 1.0)
    assert lowest_lines((many, LinearCost(2.5, 2.5), few)) == (few, many)
    assert lowest_lines((few, few, LinearCost(2.0, 3.0))) == (few,)
