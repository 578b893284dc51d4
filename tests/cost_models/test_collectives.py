"""Alpha and beta of collectives, checked against the formulas of the literature."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models import (
    CostModelError,
    GroupDim,
    LinearCost,
    Link,
    LinkDim,
    all_gather_cost,
    all_reduce_cost,
    all_to_all_cost,
    permute_cost,
    reduce_scatter_cost,
    shift_cost,
)
from cost_models.links import AxisLink, DimPart, LinkKind, group_dims

CostFunction = Callable[[tuple[GroupDim, ...], float], LinearCost]
COSTS: tuple[CostFunction, ...] = (
    all_gather_cost,
    reduce_scatter_cost,
    all_reduce_cost,
    all_to_all_cost,
    permute_cost,
    shift_cost,
)
LINK = Link(bytes_per_second=1e9, efficiency=1.0, latency_seconds=1e-6, source="a round number")


def group(*dims: tuple[LinkKind, int]) -> tuple[GroupDim, ...]:
    """A group that spans whole physical dimensions of round bandwidth."""
    parts = tuple(
        DimPart(
            LinkDim(index, kind, size, LINK.usable_bytes_per_second, LINK.latency_seconds), 1, size
        )
        for index, (kind, size) in enumerate(dims)
        if size > 1
    )
    size = int(np.prod([part.size for part in parts]))
    return group_dims([(AxisLink(size, parts), 1, size)])


@pytest.mark.parametrize("cost", COSTS)
def test_one_device_costs_nothing(cost: CostFunction) -> None:
    assert cost(group(), 1.0).at(1e9) == 0.0


@pytest.mark.parametrize(
    ("dims", "nanoseconds_per_byte"),
    [
        ([("ring", 8)], 7 / 8 / 2),  # two links receive 7/8 of the result
        ([("line", 8)], 7 / 8),  # the end has one link
        ([("line", 2)], 1 / 2),
        ([("switch", 8)], 7 / 8),
        ([("network", 4)], 3 / 4),
        ([("ring", 4), ("ring", 4)], 15 / 16 / 4),  # four links at once
        ([("line", 2), ("line", 4)], 7 / 8 / 2),  # a corner has two links
        ([("network", 2), ("switch", 8)], 1 / 2 / 8 + 7 / 8),  # eight interfaces, then the switch
    ],
)
def test_an_all_gather_takes_what_the_slowest_device_must_receive(
    dims: list[tuple[LinkKind, int]], nanoseconds_per_byte: float
) -> None:
    cost = all_gather_cost(group(*dims))
    assert cost.seconds_per_byte * 1e9 == pytest.approx(nanoseconds_per_byte)


@pytest.mark.parametrize(
    ("dims", "steps"),
    [
        ([("ring", 8)], 4),
        ([("line", 8)], 7),
        ([("switch", 8)], 3),
        ([("switch", 6)], 3),
        ([("ring", 4), ("ring", 4)], 4),
        ([("network", 2), ("switch", 8)], 4),
    ],
)
def test_latency_counts_the_steps_to_the_farthest_device(
    dims: list[tuple[LinkKind, int]], steps: int
) -> None:
    launch = 1e-4
    for cost in (all_gather_cost, reduce_scatter_cost, all_to_all_cost):
        assert cost(group(*dims), launch).seconds == pytest.approx(launch + steps * 1e-6)
    assert all_reduce_cost(group(*dims), launch).seconds == pytest.approx(launch + 2 * steps * 1e-6)


@pytest.mark.parametrize(
    ("dims", "steps"),
    [
        ([("ring", 8)], 4),
        ([("line", 8)], 7),
        ([("switch", 8)], 1),
        ([("network", 2), ("switch", 8)], 2),
    ],
)
def test_a_permutation_through_a_switch_is_one_message(
    dims: list[tuple[LinkKind, int]], steps: int
) -> None:
    assert permute_cost(group(*dims), 1e-4).seconds == pytest.approx(1e-4 + steps * 1e-6)


@pytest.mark.parametrize(
    ("dims", "nanoseconds_per_byte"),
    [
        ([("ring", 8)], 1.0),  # 8 devices, two hops on average, two directions
        ([("line", 8)], 2.0),  # half the data of four devices crosses the middle
        ([("ring", 3)], 1 / 3),  # each way to one neighbour, a third of the operand
        ([("line", 3)], 2 / 3),  # an end's link carries two of nine pieces, three times
        ([("line", 2)], 0.5),
        ([("switch", 8)], 7 / 8),
        ([("ring", 4), ("ring", 16)], 2.0),  # the longer ring is the bottleneck
        ([("network", 2), ("switch", 8)], 1 / 2 + 7 / 8),
    ],
)
def test_an_all_to_all_is_bound_by_the_bisection(
    dims: list[tuple[LinkKind, int]], nanoseconds_per_byte: float
) -> None:
    cost = all_to_all_cost(group(*dims))
    assert cost.seconds_per_byte * 1e9 == pytest.approx(nanoseconds_per_byte)


@pytest.mark.parametrize(
    ("dims", "nanoseconds_per_byte"),
    [([("ring", 4)], 1.0), ([("ring", 16)], 2.0), ([("line", 2)], 1.0), ([("switch", 8)], 1.0)],
)
def test_a_permutation_sends_the_operand_over_at_least_one_link(
    dims: list[tuple[LinkKind, int]], nanoseconds_per_byte: float
) -> None:
    assert permute_cost(group(*dims)).seconds_per_byte * 1e9 == pytest.approx(nanoseconds_per_byte)


kinds = st.sampled_from(("ring", "line", "switch", "network"))
dim_lists = st.lists(st.tuples(kinds, st.integers(2, 16)), min_size=1, max_size=3)


@pytest.mark.parametrize(
    ("dims", "one_way", "both_ways"),
    [
        ((("ring", 8),), 1.0, 0.5),  # each device has a link in either direction
        ((("line", 8),), 1.0, 1.0),  # the message from end to end goes against the others
        ((("switch", 8),), 1.0, 1.0),  # all leaves through one port
    ],
)
def test_a_shift_uses_one_link_of_a_device_and_both_ways_two(
    dims: tuple[tuple[LinkKind, int], ...], one_way: float, both_ways: float
) -> None:
    link_seconds = 1 / LINK.usable_bytes_per_second
    found = [shift_cost(group(*dims), both_ways=way).seconds_per_byte for way in (False, True)]
    assert found == pytest.approx([one_way * link_seconds, both_ways * link_seconds])


@given(dims=dim_lists)
def test_a_shift_is_no_slower_than_any_permutation(dims: list[tuple[LinkKind, int]]) -> None:
    shift, any_one = shift_cost(group(*dims)), permute_cost(group(*dims))
    assert shift.seconds <= any_one.seconds
    assert shift.seconds_per_byte <= any_one.seconds_per_byte * (1 + 1e-9)


@given(dims=dim_lists, launch=st.floats(0, 1e-3))
def test_an_all_reduce_is_a_reduce_scatter_and_an_all_gather_launched_once(
    dims: list[tuple[LinkKind, int]], launch: float
) -> None:
    spans = group(*dims)
    both = reduce_scatter_cost(spans, launch).at(1e6) + all_gather_cost(spans, launch).at(1e6)
    assert all_reduce_cost(spans, launch).at(1e6) == pytest.approx(both - launch)


@given(kind=kinds, size=st.integers(2, 64), amount=st.floats(0, 1e12))
def test_gathering_the_same_bytes_from_one_more_device_is_never_cheaper(
    kind: LinkKind, size: int, amount: float
) -> None:
    fewer, more = group((kind, size)), group((kind, size + 1))
    assert all_gather_cost(fewer).at(amount) <= all_gather_cost(more).at(amount)


@given(dims=dim_lists, amount=st.floats(0, 1e12))
def test_no_all_gather_beats_all_links_of_a_device(
    dims: list[tuple[LinkKind, int]], amount: float
) -> None:
    spans = group(*dims)
    size = float(np.prod([dim.size for dim in spans]))
    received = amount * (1 - 1 / size)
    fastest = sum(dim.gather_bytes_per_second for dim in spans)
    assert all_gather_cost(spans).at(amount) >= received / fastest * (1 - 1e-9)


@given(dims=dim_lists)
def test_no_collective_is_negative_or_undefined(dims: list[tuple[LinkKind, int]]) -> None:
    for cost in COSTS:
        alpha, beta = cost(group(*dims), 1e-6)
        assert 0 < alpha < 1
        assert 0 < beta < 1


def test_amounts_may_be_arrays() -> None:
    cost = all_gather_cost(group(("ring", 8)))
    amounts = np.array([[0.0, 1e6], [1e9, 3.0]])
    expected = np.array([[cost.at(float(amount)) for amount in row] for row in amounts])
    np.testing.assert_allclose(cost.at(amounts), expected)


@pytest.mark.parametrize("amount", [-1.0, float("nan"), float("inf")])
def test_an_impossible_amount_is_refused(amount: float) -> None:
    cost = all_gather_cost(group(("ring", 8)))
    with pytest.raises(CostModelError, match="full_bytes is"):
        cost.at(amount)
    with pytest.raises(CostModelError, match="full_bytes is"):
        cost.at(np.array([1.0, amount]))
