"""Measuring on host devices: what runs, what is repeated, and that a machine comes out.

No test asks how long anything took.
"""

from __future__ import annotations

import re
from functools import partial

import jax
import pytest

import autoshard
from autoshard.apply.measuring import (
    HOST_SIZES,
    CollectiveProbe,
    FamilyTimes,
    OpProbe,
    Probe,
    ProbeSizes,
    family_name,
    find_devices,
    measure_families,
    plan_probes,
    work_of,
)
from autoshard.apply.measuring.programs import program_of
from autoshard.apply.measuring.timing import time_in_rounds, timing_of
from autoshard.calibration import known_machine
from cost_models import AlphaBetaModel, AxisPart, Hardware

TINY = ProbeSizes(
    collective_bytes=(1024, 2**20, 2**16),
    copy_elements=(64, 2**18, 2**14, 2**16),
    arithmetic_elements=(2**14, 2**12, 2**10),
    matmul_dims=((128, 128, 128), (16, 16, 16), (64, 64, 64)),
    rows=((1024, 16), (64, 16), (256, 16)),
    sort_elements=(2**12, 2**8, 2**10),
    rough_flops_per_second=1e10,
    rough_bytes_per_second=1e9,
)
COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")
DEVICES = tuple(jax.devices())


@pytest.fixture(scope="module")
def machine() -> Hardware:
    """One short run on eight devices."""
    return autoshard.calibrate(devices=8, seconds=8.0, sizes=TINY)


# --- programs ----------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_a_program_repeats_its_collective_in_the_groups_asked_for(kind: str) -> None:
    program = program_of(CollectiveProbe(kind, 4, 4096), DEVICES, TINY)
    found = re.findall(rf"= .* {kind}\(.*", program.compiled.as_text())
    assert len(found) == 1
    neighbours = (
        "source_target_pairs={{0,1},{1,2},{2,3},{3,0},{4,5},{5,6},{6,7},{7,4}}"
        if kind == "collective-permute"
        else "replica_groups={{0,1,2,3},{4,5,6,7}}"
    )
    assert neighbours in found[0]
    assert program.repeats >= 4


@pytest.mark.parametrize("kind", COLLECTIVES)
def test_the_larger_side_of_a_collective_has_the_bytes_asked_for(kind: str) -> None:
    operand, result = program_of(CollectiveProbe(kind, 4, 4096), DEVICES, TINY).run()
    assert max(operand.nbytes, result.nbytes) == 8 * 4096


@pytest.mark.parametrize(
    "probe",
    [
        OpProbe("copy", "float32", (64,)),
        OpProbe("elementwise", "bfloat16", (64,)),
        OpProbe("matmul", "float32", (8, 4, 2)),
        OpProbe("matmul", "int8", (8, 4, 2)),
        OpProbe("gather", "float32", (16, 4)),
        OpProbe("scatter", "float32", (16, 4)),
        OpProbe("sort", "float32", (64,)),
    ],
    ids=lambda probe: f"{probe.op_class}-{probe.dtype}",
)
def test_every_op_runs_again_and_again(probe: OpProbe) -> None:
    program = program_of(probe, DEVICES, TINY)
    before = program.run()
    after = program.run()
    assert [array.shape for array in before] == [array.shape for array in after]


def test_no_program_copies_its_operand() -> None:
    for kind in COLLECTIVES:
        program = program_of(CollectiveProbe(kind, 8, 4096), DEVICES, TINY)
        copies = re.findall(r"= f32\[\d+\]\S* copy\(", program.compiled.as_text())
        assert copies == [], kind


def test_work_is_counted_as_the_planner_counts_it() -> None:
    assert work_of(OpProbe("matmul", "float32", (2, 3, 5))) == (60.0, 4.0 * (10 + 15 + 6))
    assert work_of(OpProbe("matmul", "int8", (2, 3, 5))) == (60.0, 10.0 + 15 + 4 * 6)
    assert work_of(OpProbe("copy", "float32", (10,))) == (0.0, 80.0)
    assert work_of(OpProbe("elementwise", "bfloat16", (10,))) == (1280.0, 40.0)
    assert work_of(OpProbe("gather", "float32", (10, 2))) == (0.0, 80.0 + 40)
    assert work_of(OpProbe("scatter", "float32", (10, 2))) == (0.0, 240.0 + 40)


# --- what is measured --------------------------------------------------------------------------


def test_collectives_are_measured_in_every_group_that_divides_the_devices() -> None:
    families = {family_name(family): family for family in plan_probes(HOST_SIZES, 8)}
    groups = {
        probe.group_size for probe in families["all-gather"] if isinstance(probe, CollectiveProbe)
    }
    assert groups == {2, 4, 8}
    assert set(COLLECTIVES) < set(families)


def test_one_device_has_no_collectives() -> None:
    families = plan_probes(HOST_SIZES, 1)
    assert not any(isinstance(probe, CollectiveProbe) for family in families for probe in family)


def test_bytes_are_whole_elements_for_every_device_of_a_group() -> None:
    for family in plan_probes(HOST_SIZES, 6):
        for probe in family:
            if isinstance(probe, CollectiveProbe):
                assert probe.full_bytes % (4 * probe.group_size) == 0


def test_what_there_is_no_time_for_is_told() -> None:
    families: list[tuple[Probe, ...]] = [plan_probes(TINY, 8)[0]]
    told: list[FamilyTimes] = []
    (times,) = measure_families(
        families, DEVICES, TINY, seconds=1e-9, progress=lambda done, _: told.append(done)
    )
    assert times.timings == ()
    assert times.problem == "no time for 4 of 4 sizes"
    assert told == [times]


def test_an_op_that_the_devices_cannot_do_is_told_and_the_others_go_on() -> None:
    bad, good = OpProbe("copy", "no-such-type", (64,)), OpProbe("copy", "float32", (2**20,))
    (times,) = measure_families([(bad, good)], DEVICES, TINY, seconds=10.0)
    assert [probe for probe, _ in times.timings] == [good]
    assert "no-such-type" in times.problem


# --- timing ------------------------------------------------------------------------------------


def test_a_timing_is_the_median_without_the_start_of_the_program() -> None:
    taken = [0.011, 0.009, 0.010, 0.050, 0.010]
    timing = timing_of(taken, overhead=[0.002, 0.009, 0.001], repeats=4)
    assert timing is not None
    assert (timing.seconds, timing.spread) == pytest.approx((0.002, 0.125))


def test_a_program_that_takes_no_longer_than_an_empty_one_tells_nothing() -> None:
    assert timing_of([0.0021, 0.002, 0.0022], overhead=[0.002], repeats=4) is None


def test_programs_take_turns() -> None:
    told: list[str] = []
    runs = [partial(told.append, name) for name in ("a", "b")]
    taken = time_in_rounds(runs, until=0.0)
    assert told == ["a", "b"] * 3
    assert [len(each) for each in taken] == [3, 3]


# --- the whole ---------------------------------------------------------------------------------


def test_a_short_run_makes_a_machine_with_provenance(machine: Hardware) -> None:
    measured = machine.measured
    assert measured is not None
    assert (machine.name, machine.backend) == ("cpu-host-measured", "cpu")
    assert (measured.base, measured.platform, measured.num_devices) == ("cpu-host", "cpu", 8)
    assert measured.versions.startswith(f"jax {jax.__version__}, jaxlib ")
    kept = {kept.numbers for kept in measured.kept}
    assert "memory.capacity_bytes" in kept
    assert measured.collectives or measured.ops


def test_prices_of_the_machine_are_as_near_to_its_samples_as_it_says(machine: Hardware) -> None:
    measured = machine.measured
    assert measured is not None
    for fit in measured.collectives:
        for sample in fit.samples:
            size = sample.num_devices
            model = AlphaBetaModel(machine, {"other": 8 // size, "group": size})
            price = {
                "all-gather": model.all_gather_seconds,
                "reduce-scatter": model.all_reduce_seconds,
                "all-reduce": model.all_reduce_seconds,
                "all-to-all": model.all_to_all_seconds,
                "collective-permute": model.permute_seconds,
            }[fit.kind](float(sample.full_bytes), (AxisPart("group", 1, size),))
            if fit.kind != "reduce-scatter":  # priced as what a host's compiler makes of it
                error = abs(price - sample.seconds) / sample.seconds
                assert error <= fit.residuals.max_error + 1e-9


# --- refusals ----------------------------------------------------------------------------------


def test_more_devices_than_there_are_is_refused() -> None:
    with pytest.raises(autoshard.InputError) as caught:
        find_devices(9)
    assert str(caught.value) == (
        "9 devices are asked for and this machine has 8\n"
        "  where: jax.devices() of platform cpu\n"
        "  fix: give 8 or fewer, or set XLA_FLAGS=--xla_force_host_platform_device_count=9"
    )


@pytest.mark.parametrize("count", [0, -1, 2.5, True])
def test_a_number_of_devices_that_is_none_is_refused(count: int) -> None:
    with pytest.raises(autoshard.InputError) as caught:
        autoshard.calibrate(devices=count)
    assert str(caught.value) == (
        f"expected a number of devices from 1 up, found {count!r}\n"
        "  where: argument `devices`\n"
        "  fix: give a number up to 8"
    )


@pytest.mark.parametrize("seconds", [0, -1.0, float("inf"), float("nan"), "60"])
def test_seconds_that_are_none_are_refused(seconds: float) -> None:
    with pytest.raises(autoshard.InputError) as caught:
        autoshard.calibrate(seconds=seconds)
    assert str(caught.value) == (
        f"expected a number of seconds above 0, found {seconds!r}\n"
        "  where: argument `seconds`\n"
        "  fix: give 60, or 10 for a first look"
    )


def test_a_base_of_another_kind_is_refused_before_anything_is_measured() -> None:
    with pytest.raises(autoshard.InputError) as caught:
        autoshard.calibrate(base="h100", seconds=1e9)
    assert str(caught.value) == (
        'the base "h100" is a gpu machine, and the devices are cpu\n'
        "  where: 8 x cpu\n"
        "  fix: give a base of backend cpu"
    )


def test_an_unknown_base_is_refused_with_the_names_that_come_close() -> None:
    with pytest.raises(autoshard.InputError, match='no hardware is named "cpu-hosts"'):
        autoshard.calibrate(base="cpu-hosts")


@pytest.mark.parametrize(
    ("device_kind", "name"),
    [
        ("cpu", "cpu-host"),
        ("NVIDIA A100-SXM4-40GB", "a100-40gb"),
        ("NVIDIA A100-SXM4-80GB", "a100-80gb"),
        ("NVIDIA H100 80GB HBM3", "h100"),
        ("NVIDIA B200", "b200"),
        ("NVIDIA GB200", "gb200"),
        ("TPU v4", "tpu-v4"),
        ("TPU v5 lite", "tpu-v5e"),
        ("TPU v5", "tpu-v5p"),
        ("TPU v6 lite", "tpu-v6e"),
        ("TPU7x", "tpu7x"),
    ],
)
def test_the_base_is_the_known_machine_that_the_devices_are_called_after(
    device_kind: str, name: str
) -> None:
    assert known_machine(device_kind) == name


def test_devices_of_an_unknown_kind_need_a_base() -> None:
    with pytest.raises(autoshard.InputError) as caught:
        known_machine("Radeon")
    assert str(caught.value) == (
        'no known machine has devices called "Radeon"\n'
        "  where: argument `base`\n"
        "  fix: name the known machine that is most like it, or the YAML file of your own"
    )
