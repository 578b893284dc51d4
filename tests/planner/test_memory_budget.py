"""What a memory budget may be."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.build_plan import budget_notes
from autoshard.errors import InputError
from autoshard.planning.memory_budget import parse_memory_budget

DEVICE = 80 * 2**30


@pytest.mark.parametrize(
    ("budget", "num_bytes"),
    [
        (None, None),
        ("auto", DEVICE),
        (16_000_000_000, 16_000_000_000),
        (1, 1),
        (2.5e9, 2_500_000_000),
        (0.5, DEVICE // 2),
        (1.0, DEVICE),
        ("0.5", DEVICE // 2),
        ("16GiB", 16 * 2**30),
        ("16 GB", 16 * 10**9),
        (" 1.5 MiB ", 3 * 2**19),
        ("64kb", 64_000),
        ("2tib", 2 * 2**40),
        ("4096", 4096),
        ("12B", 12),
    ],
)
def test_budgets_are_read_as_bytes(budget: str | float | None, num_bytes: int | None) -> None:
    assert parse_memory_budget(budget, DEVICE) == num_bytes


@pytest.mark.parametrize(
    "budget",
    ["", "GiB", "16 QiB", "-1GiB", "lots", "1e9", 0, -1, 0.0, float("nan"), float("inf"), True],
)
def test_anything_else_is_refused(budget: str | float) -> None:
    with pytest.raises(InputError) as caught:
        parse_memory_budget(budget, DEVICE)
    assert str(caught.value) == (
        f"memory budget {budget!r} is not an amount of memory above zero\n"
        "  where: memory_budget\n"
        '  fix: write bytes (16_000_000_000), a unit ("16GiB", "16GB"), a fraction of the device'
        ' (0.9), "auto" for all of it, or None for no limit'
    )


@pytest.mark.parametrize("budget", ["16", " 80 ", 1.5])
def test_a_few_bytes_without_a_unit_are_refused(budget: str | float) -> None:
    """`--memory 16` was planned for half a minute, and then did not fit 16 bytes."""
    with pytest.raises(InputError) as caught:
        parse_memory_budget(budget, DEVICE)
    assert str(caught.value) == (
        f"memory budget {budget!r} has no unit, and so many bytes hold no program\n"
        "  where: memory_budget\n"
        f'  fix: write the unit, as in "{str(budget).strip()}GiB"; a fraction of the device is at'
        " most 1"
    )


@given(st.integers(1, 2**53))
def test_a_number_of_bytes_is_taken_to_the_byte(num_bytes: int) -> None:
    assert parse_memory_budget(num_bytes, DEVICE) == num_bytes
    assert parse_memory_budget(f"{num_bytes}B", DEVICE) == num_bytes


@given(st.floats(1e-6, 1.0))
def test_a_fraction_is_within_the_device(fraction: float) -> None:
    found = parse_memory_budget(fraction, DEVICE)
    assert found is not None
    assert 0 < found <= DEVICE


def test_a_peak_that_compiling_may_bring_over_the_budget_is_told() -> None:
    (told,) = budget_notes(1_000_000, 643_000)
    assert told == (
        "the predicted peak is within 55% and 4,096 bytes of the memory budget, as far as compiled"
        " programs lie around predictions: plan.verify tells what this one takes, plan.refine keeps"
        " to the budget as compiled"
    )
    assert not [*budget_notes(1_001_000, 643_000), *budget_notes(None, 900_000)]


def test_small_buffers_may_bring_a_small_program_over_its_budget() -> None:
    assert [*budget_notes(4096, 900)]
