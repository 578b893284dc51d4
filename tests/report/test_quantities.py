"""Numbers as text."""

from __future__ import annotations

import math

import pytest

from autoshard.report.quantities import (
    format_bytes,
    format_count,
    format_percent,
    format_ratio,
    format_seconds,
)


@pytest.mark.parametrize(
    ("num_bytes", "text"),
    [
        (0, "0 B"),
        (999, "999 B"),
        (1000, "1.00 kB"),
        (999_499, "999 kB"),
        (999_999, "1.00 MB"),
        (1_234_567, "1.23 MB"),
        (16 * 2**30, "17.2 GB"),
        (3.35e12, "3.35 TB"),
        (5e15, "5,000 TB"),
    ],
)
def test_bytes_have_decimal_units(num_bytes: float, text: str) -> None:
    assert format_bytes(num_bytes) == text


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 s"),
        (1.234, "1.23 s"),
        (0.0123, "12.3 ms"),
        (0.9999, "1.00 s"),
        (45.6e-6, "45.6 us"),
        (7e-9, "7.00 ns"),
        (3e-12, "0.003 ns"),
        (3600, "3,600 s"),
    ],
)
def test_seconds_have_the_unit_that_keeps_them_short(seconds: float, text: str) -> None:
    assert format_seconds(seconds) == text


@pytest.mark.parametrize(
    ("fraction", "text"),
    [
        (0, "0 %"),
        (1e-9, "< 0.01 %"),
        (0.0064, "0.64 %"),
        (0.192, "19.2 %"),
        (1, "100 %"),
        (math.inf, "unknown"),
    ],
)
def test_a_small_fraction_is_not_rounded_to_nothing(fraction: float, text: str) -> None:
    assert format_percent(fraction) == text


def test_counts_and_ratios() -> None:
    assert format_count(3.0) == "3"
    assert format_count(2.5) == "2.5"
    assert format_count(12_000.0) == "12,000"
    assert format_ratio(1.5) == "1.50x"
    assert format_ratio(math.inf) == "-"
