"""Fits by relative error: what went in comes out, whatever the units and a few bad samples."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cost_models.relative_fits import fit_nonnegative, fit_rate

BYTES = np.array([4096.0, 65536.0, 2.0**20, 2.0**22, 2.0**24, 2.0**26])
COLUMNS = np.stack([np.ones(6), BYTES], axis=1)

latencies = st.floats(1e-7, 1e-3)
bandwidths = st.floats(1e8, 1e12)


def seconds(latency: float, bandwidth: float) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.asarray(latency + BYTES / bandwidth)


@given(latencies, bandwidths)
def test_times_without_noise_give_back_latency_and_bandwidth(
    latency: float, bandwidth: float
) -> None:
    taken = seconds(latency, bandwidth)
    prices = COLUMNS @ fit_nonnegative(COLUMNS, taken)
    assert prices == pytest.approx(taken, rel=1e-6)


@given(latencies, bandwidths, st.floats(1e-3, 1e3))
def test_a_faster_clock_scales_the_fit(latency: float, bandwidth: float, scale: float) -> None:
    taken = seconds(latency, bandwidth) * np.array([1.0, 1.1, 0.9, 1.05, 0.97, 1.0])
    once, scaled = fit_nonnegative(COLUMNS, taken), fit_nonnegative(COLUMNS, taken * scale)
    assert COLUMNS @ scaled == pytest.approx(COLUMNS @ once * scale, rel=1e-5)


@given(latencies, bandwidths, st.lists(st.floats(0.95, 1.05), min_size=6, max_size=6))
def test_small_noise_moves_no_price_far(
    latency: float, bandwidth: float, noise: list[float]
) -> None:
    taken = seconds(latency, bandwidth)
    prices = COLUMNS @ fit_nonnegative(COLUMNS, taken * np.array(noise))
    assert prices == pytest.approx(taken, rel=0.2)


@given(st.floats(1e-6, 1e-4), st.floats(1e9, 1e11), st.integers(0, 11), st.floats(3.0, 50.0))
def test_one_time_of_twelve_may_be_far_off(
    latency: float, bandwidth: float, index: int, factor: float
) -> None:
    taken = np.tile(seconds(latency, bandwidth), 2)
    bad = taken.copy()
    bad[index] *= factor
    columns = np.tile(COLUMNS, (2, 1))
    assert columns @ fit_nonnegative(columns, bad) == pytest.approx(taken, rel=0.1)


@given(st.lists(st.floats(1e-9, 1.0), min_size=6, max_size=6))
def test_no_coefficient_is_negative(taken: list[float]) -> None:
    assert (fit_nonnegative(COLUMNS, np.array(taken)) >= 0).all()


@given(st.floats(1e9, 1e15), st.floats(0, 1e-5))
def test_a_rate_is_found_again(rate: float, launch: float) -> None:
    amounts = np.array([1e9, 1e10, 1e11, 1e12])
    taken = launch + np.maximum(amounts / rate, 1e-9)
    found = fit_rate(amounts, np.full(4, 1e-9), launch, taken, low=1e6, high=1e18)
    assert found == pytest.approx(rate, rel=0.02)
