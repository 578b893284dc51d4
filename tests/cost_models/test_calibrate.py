"""Calibration: known machines are found again, prices reproduce samples, bad fits are refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cost_models import (
    AlphaBetaModel,
    AxisPart,
    CostModelError,
    Hardware,
    format_hardware,
    get_hardware,
    load_hardware,
    op_seconds,
    parse_hardware,
    save_hardware,
)
from cost_models.calibrate import calibrate_hardware
from cost_models.calibrate_collectives import fit_collective
from cost_models.measured import (
    COLLECTIVE_KINDS,
    CollectiveFit,
    CollectiveKind,
    CollectiveSample,
    Kept,
    Measured,
)
from tests.cost_models.synthetic import (
    collective_samples,
    measurements_of,
    price_of,
    switched,
)

H100 = get_hardware("h100")
kinds = pytest.mark.parametrize("kind", COLLECTIVE_KINDS)


def link_speed(machine: Hardware) -> float:
    assert machine.switch is not None
    return machine.switch.link.usable_bytes_per_second


def link_latency(machine: Hardware) -> float:
    assert machine.switch is not None
    return machine.switch.link.latency_seconds


def measured_with(fit: CollectiveFit) -> Measured:
    """The section of a machine on which only that was measured."""
    assert MINE.measured is not None
    return dataclasses.replace(MINE.measured, collectives=(fit,))


# --- laws --------------------------------------------------------------------------------------


@kinds
@settings(max_examples=20, deadline=None)
@given(
    bytes_per_second=st.floats(1e9, 1e12),
    latency_seconds=st.floats(1e-6, 1e-4),
    launch_seconds=st.floats(1e-6, 1e-3),
)
def test_a_known_machine_is_found_again_from_its_times(
    kind: CollectiveKind, bytes_per_second: float, latency_seconds: float, launch_seconds: float
) -> None:
    known = switched(
        bytes_per_second=bytes_per_second,
        latency_seconds=latency_seconds,
        launch_seconds=launch_seconds,
    )
    fit = fit_collective(H100, kind, collective_samples(known, kind), 8)
    assert fit.residuals.max_error < 1e-4
    if kind == "collective-permute":  # one message on a switch: launch and step are one
        assert fit.launch_seconds == pytest.approx(launch_seconds + latency_seconds, rel=1e-3)
    else:
        assert fit.launch_seconds == pytest.approx(launch_seconds, rel=0.01, abs=1e-8)
        assert fit.step_seconds == pytest.approx(latency_seconds, rel=0.01, abs=1e-8)


@settings(max_examples=20, deadline=None)
@given(
    bytes_per_second=st.floats(1e9, 1e12),
    noise=st.lists(st.floats(0.95, 1.05), min_size=12, max_size=12),
)
def test_noise_moves_the_prices_little(bytes_per_second: float, noise: list[float]) -> None:
    known = switched(bytes_per_second=bytes_per_second)
    samples = collective_samples(known, "all-gather", factors=tuple(noise))
    fit = fit_collective(known, "all-gather", samples, 8)
    machine = dataclasses.replace(known, measured=measured_with(fit))
    for sample in samples:
        true = price_of(known, "all-gather", sample.full_bytes, sample.num_devices)
        price = price_of(machine, "all-gather", sample.full_bytes, sample.num_devices)
        assert price == pytest.approx(true, rel=0.2)
    assert fit.residuals.median_error < 0.1


def test_two_samples_of_twelve_may_be_tens_of_times_too_long() -> None:
    known = switched()
    factors = (1.0, 1.0, 1.0, 30.0, 1.0, 1.0, 1.0, 1.0, 20.0, 1.0, 1.0, 1.0)
    samples = collective_samples(known, "all-reduce", factors=factors)
    fit = fit_collective(known, "all-reduce", samples, 8)
    machine = dataclasses.replace(known, measured=measured_with(fit))
    large = price_of(machine, "all-reduce", 2**24, 8)
    assert large == pytest.approx(price_of(known, "all-reduce", 2**24, 8), rel=0.1)
    assert fit.residuals.median_error < 0.05
    assert fit.residuals.max_error > 0.9


# --- the whole machine -------------------------------------------------------------------------


def calibrated(known: Hardware) -> Hardware:
    return calibrate_hardware(H100, measurements_of(known), name="mine")


MINE = calibrated(switched(bytes_per_second=200e9, latency_seconds=5e-6))


def test_every_number_of_a_known_machine_is_found_again() -> None:
    known = switched(bytes_per_second=200e9, latency_seconds=5e-6, launch_seconds=2e-5)
    machine = calibrated(known)
    assert link_speed(machine) == pytest.approx(200e9, rel=1e-3)
    assert link_latency(machine) == pytest.approx(5e-6, rel=1e-3)
    assert machine.collective_launch_seconds == pytest.approx(2e-5, rel=1e-3)
    assert machine.memory.bytes_per_second == pytest.approx(3.35e12, rel=1e-3)
    assert machine.compute.kernel_launch_seconds == pytest.approx(3e-6, rel=1e-3)
    assert machine.compute.matmul.float32 == pytest.approx(494.5e12, rel=1e-3)
    assert machine.compute.vector.float32 == pytest.approx(67e12, rel=1e-3)
    scattered = machine.memory.scattered
    assert scattered is not None
    shares = (scattered.gather, scattered.scatter, scattered.sort)
    assert shares == pytest.approx((0.5, 0.25, 0.25), rel=1e-3)


@kinds
def test_prices_of_a_machine_read_from_its_file_reproduce_its_samples(
    kind: CollectiveKind, tmp_path: Path
) -> None:
    known = switched(bytes_per_second=200e9, latency_seconds=5e-6)
    wobbly = dataclasses.replace(
        measurements_of(known),
        collectives={kind: collective_samples(known, kind, factors=(1.0, 1.2, 0.9, 1.05, 0.8))},
    )
    save_hardware(calibrate_hardware(H100, wobbly, name="mine"), tmp_path / "mine.yaml")
    machine = load_hardware(tmp_path / "mine.yaml")
    assert machine.measured is not None
    fit = machine.measured.collective(kind)
    assert fit is not None
    errors = [
        abs(price_of(machine, kind, sample.full_bytes, sample.num_devices) / sample.seconds - 1)
        for sample in fit.samples
    ]
    assert max(errors) == pytest.approx(fit.residuals.max_error)
    assert fit.residuals.max_error < 0.35


def test_prices_of_ops_reproduce_their_samples_within_the_residuals() -> None:
    machine = calibrated(switched())
    assert machine.measured is not None
    assert len(machine.measured.ops) == 6
    for fit in machine.measured.ops:
        for sample in fit.samples:
            price = op_seconds(
                machine,
                flops=sample.flops,
                bytes_accessed=sample.bytes_accessed,
                dtype=fit.dtype,
                op_class=fit.op_class,
                matmul_dims=sample.matmul_dims,
            )
            error = abs(max(price, 1e-15) - sample.seconds) / sample.seconds
            assert error <= fit.residuals.max_error + 1e-9


def test_a_calibrated_machine_written_and_read_is_the_same_machine() -> None:
    machine = calibrated(switched())
    text = format_hardware(machine)
    assert parse_hardware(text) == machine
    assert "- {num_devices: 8, full_bytes: 4096, seconds:" in text


def test_a_machine_can_be_calibrated_again_from_its_own_file() -> None:
    known = switched(bytes_per_second=100e9)
    again = calibrate_hardware(calibrated(switched()), measurements_of(known), name="mine")
    assert link_speed(again) == pytest.approx(100e9, rel=1e-3)
    assert again.memory.source.count("; the rest: ") == 1


def test_peaks_that_were_not_measured_are_scaled_like_those_that_were() -> None:
    known = dataclasses.replace(
        switched(),
        compute=dataclasses.replace(
            H100.compute, matmul=dataclasses.replace(H100.compute.matmul, float32=494.5e12 / 2)
        ),
    )
    machine = calibrated(known)
    assert machine.compute.matmul.float32 == pytest.approx(494.5e12 / 2, rel=0.01)
    assert machine.compute.matmul.bfloat16 == pytest.approx(989e12 / 2, rel=0.01)
    assert machine.measured is not None
    (kept,) = [kept for kept in machine.measured.kept if "matmul" in kept.numbers]
    assert kept == Kept(
        numbers="compute.matmul.float64, compute.matmul.bfloat16, compute.matmul.float16, "
        "compute.matmul.float8, compute.matmul.int8",
        reason="not fitted; 0.5 times the base's, as those that were",
    )


def test_one_device_measures_ops_and_keeps_the_links() -> None:
    measurements = dataclasses.replace(
        measurements_of(switched()), num_devices=1, collectives={}, capacity_bytes=70_000_000_000
    )
    machine = calibrate_hardware(H100, measurements, name="mine")
    assert machine.switch == H100.switch
    assert machine.network == H100.network
    assert machine.memory.capacity_bytes == 70_000_000_000
    assert machine.measured is not None
    assert machine.measured.collectives == ()


@kinds
@settings(max_examples=20, deadline=None)
@given(nodes=st.sampled_from([2, 4, 16]), full_bytes=st.floats(0, 1e10))
def test_groups_across_nodes_pay_the_network_as_the_textbook_has_it(
    kind: CollectiveKind, nodes: int, full_bytes: float
) -> None:
    known = switched(bytes_per_second=200e9, latency_seconds=5e-6)
    prices = [
        AlphaBetaModel(machine, {"all": 8 * nodes}).algorithms(
            kind, (AxisPart("all", 1, 8 * nodes),)
        )
        for machine in (MINE, known)
    ]
    ((_, measured),), ((_, textbook),) = prices
    assert measured.at(full_bytes) == pytest.approx(textbook.at(full_bytes), rel=1e-6)


@kinds
@given(first=st.floats(0, 1e12), second=st.floats(0, 1e12))
def test_more_bytes_never_take_less_time_on_a_measured_machine(
    kind: CollectiveKind, first: float, second: float
) -> None:
    few, many = sorted((first, second))
    assert price_of(MINE, kind, few, 4) <= price_of(MINE, kind, many, 4)


# --- refusals ----------------------------------------------------------------------------------


def refusal(samples: tuple[CollectiveSample, ...]) -> str:
    with pytest.raises(CostModelError) as caught:
        fit_collective(H100, "all-gather", samples, 8)
    return str(caught.value)


def test_too_few_samples_are_refused() -> None:
    assert refusal(collective_samples(switched(), "all-gather")[:2]) == (
        "2 samples; expected at least 3\n  where: all-gather on 8 devices\n  fix: give more seconds"
    )


def test_times_that_do_not_grow_with_the_bytes_are_refused() -> None:
    samples = collective_samples(switched(), "all-gather")
    flat = tuple(
        dataclasses.replace(sample, seconds=1e-3 / (1 + index))
        for index, sample in enumerate(samples)
    )
    assert refusal(flat) == (
        "the times do not grow with the bytes\n"
        "  where: all-gather on 8 devices\n"
        "  fix: measure larger sizes, with nothing else running"
    )


def wild_samples(spread: float) -> tuple[CollectiveSample, ...]:
    factors = (1.0, 40.0, 1.0, 0.02, 30.0, 0.03, 25.0)
    return collective_samples(switched(), "all-gather", factors=factors, spread=spread)


def test_noisy_times_are_refused_with_what_to_do() -> None:
    message = refusal(wild_samples(spread=0.4))
    assert message.startswith("too noisy: half of the prices are off by more than ")
    assert message.endswith(
        "%, and repeats differ by 40%\n"
        "  where: all-gather on 8 devices\n"
        "  fix: end other programs, or give more seconds"
    )


def test_steady_times_that_follow_no_formula_are_refused_as_such() -> None:
    message = refusal(wild_samples(spread=0.01))
    assert message.startswith("the times do not follow the formula: half of the prices are off by ")
    assert "though repeats differ by 1% only" in message


def test_prices_no_better_than_one_for_all_sizes_are_refused() -> None:
    samples = tuple(
        dataclasses.replace(sample, seconds=seconds)
        for sample, seconds in zip(
            collective_samples(switched(), "all-gather"), (1e-4, 1e-4, 1e-3) * 4, strict=True
        )
    )
    assert "no better than one for all sizes" in refusal(samples)


def test_a_kind_that_cannot_be_fitted_keeps_the_textbook_price_and_says_why() -> None:
    measurements = measurements_of(switched())
    bad = {**measurements.collectives, "all-to-all": wild_samples(spread=0.4)}
    machine = calibrate_hardware(
        H100, dataclasses.replace(measurements, collectives=bad), name="mine"
    )
    assert machine.measured is not None
    assert machine.measured.collective("all-to-all") is None
    (kept,) = [kept for kept in machine.measured.kept if kept.numbers == "all-to-all"]
    assert kept.reason.startswith("too noisy: ")
    assert price_of(machine, "all-to-all", 2**20, 8) == pytest.approx(
        price_of(switched(), "all-to-all", 2**20, 8), rel=0.01
    )


def test_a_base_of_another_backend_is_refused() -> None:
    with pytest.raises(CostModelError) as caught:
        calibrate_hardware(get_hardware("tpu-v5e"), measurements_of(switched()), name="mine")
    assert str(caught.value) == (
        'the base "tpu-v5e" is a tpu machine, and the devices are gpu\n'
        "  where: 8 x Known 1\n"
        "  fix: give a base of backend gpu"
    )


def test_more_devices_than_a_node_has_are_refused() -> None:
    assert H100.switch is not None
    small = dataclasses.replace(H100, switch=dataclasses.replace(H100.switch, domain_size=4))
    with pytest.raises(CostModelError) as caught:
        calibrate_hardware(small, measurements_of(switched()), name="mine")
    assert str(caught.value) == (
        '8 devices are more than one node or slice of "h100" has\n'
        '  where: 8 devices of hardware "h100"\n'
        "  fix: give a base with larger nodes, or measure fewer devices"
    )


def test_measurements_without_samples_are_no_machine() -> None:
    empty = dataclasses.replace(measurements_of(switched()), collectives={}, ops={})
    with pytest.raises(CostModelError) as caught:
        calibrate_hardware(H100, empty, name="mine")
    assert str(caught.value) == (
        "nothing could be fitted:\n"
        "  - links: no collective was fitted\n"
        "  where: 8 x Known 1\n"
        "  fix: measure longer, with nothing else running"
    )


# --- the section of the file -------------------------------------------------------------------


def test_a_wrong_date_and_a_kind_given_twice_are_named() -> None:
    text = format_hardware(calibrated(switched()))
    text = text.replace("'2026-11-22'", "yesterday").replace(
        "kind: reduce-scatter", "kind: all-gather"
    )
    with pytest.raises(CostModelError) as caught:
        parse_hardware(text)
    assert caught.value.what == (
        "2 problems in the hardware description:\n"
        '  - `measured.date` is "yesterday"; expected a date such as 2026-11-22\n'
        '  - `measured.collectives` has "all-gather" twice; expected each kind once'
    )
