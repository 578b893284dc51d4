"""The call that measures a machine: what the devices take, fitted, as a `Hardware`."""

from __future__ import annotations

import datetime
import typing
from collections.abc import Callable, Iterable
from pathlib import Path

from autoshard.apply.measuring import (
    ACCELERATOR_SIZES,
    HOST_SIZES,
    CollectiveProbe,
    DeviceFacts,
    FamilyTimes,
    OpProbe,
    ProbeSizes,
    describe_devices,
    family_name,
    find_devices,
    measure_families,
    plan_probes,
    work_of,
)
from autoshard.errors import InputError
from cost_models import CostModelError, Hardware, get_hardware, load_hardware
from cost_models.calibrate import Measurements, calibrate_hardware, check_base
from cost_models.hardware import Backend
from cost_models.measured import CollectiveKind, CollectiveSample, Kept, OpSample

Progress = Callable[[str, float], None]
"""Told what was measured last, and how many seconds have passed."""

_MACHINE_BY_KIND = (
    ("cpu", "cpu-host"),
    ("a100-sxm4-40gb", "a100-40gb"),
    ("a100", "a100-80gb"),
    ("h100", "h100"),
    ("h200", "h200"),
    ("gb200", "gb200"),
    ("b200", "b200"),
    ("v5 lite", "tpu-v5e"),
    ("v5e", "tpu-v5e"),
    ("v5p", "tpu-v5p"),
    ("v5", "tpu-v5p"),
    ("v6", "tpu-v6e"),
    ("v4", "tpu-v4"),
    ("7x", "tpu7x"),
)


def calibrate(
    *,
    devices: int | None = None,
    base: str | Path | Hardware | None = None,
    seconds: float = 60.0,
    name: str | None = None,
    progress: Progress | None = None,
    sizes: ProbeSizes | None = None,
) -> Hardware:
    """Measures collectives, products, copies and scattered accesses on the devices present.

    All devices work at once, as in a sharded program. Numbers that cannot be measured or fitted
    are those of the base; `measured.kept` of the result names them.

    Args:
        devices: How many to measure, the first ones; None for all. With one there are no
            collectives.
        base: Where other numbers are from, and how the devices are linked: a known machine, a
            YAML file or a `Hardware`. None: what the devices are called.
        seconds: About how long to take; with less, less is measured.
        name: Of the machine; None: that of the base with `-measured`.
        progress: Called after each kind of op.
        sizes: How large the probes are; None: what suits the devices.

    Returns:
        The machine, with `measured` saying what was measured and how well it fits.
        `cost_models.save_hardware` writes it to a file; `hardware=` takes either.

    Raises:
        InputError: There are fewer devices, no base for them is known or it is no base for them,
            or nothing could be measured.
    """
    if not isinstance(seconds, (int, float)) or not 0 < seconds < float("inf"):
        raise InputError(
            f"expected a number of seconds above 0, found {seconds!r}",
            where="argument `seconds`",
            fix="give 60, or 10 for a first look",
        )
    found = find_devices(devices)
    facts = describe_devices(found)
    if sizes is None:
        sizes = HOST_SIZES if facts.backend == "cpu" else ACCELERATOR_SIZES
    try:
        machine = _base(base, facts)
        check_base(machine, facts.backend, facts.num_devices, facts.kind)
        measured = measure_families(
            plan_probes(sizes, len(found)),
            found,
            sizes,
            seconds=float(seconds),
            progress=_telling(progress),
        )
        return calibrate_hardware(
            machine,
            _measurements(facts, measured),
            name=name or f"{machine.name.removesuffix('-measured')}-measured",
        )
    except CostModelError as error:
        raise InputError(error.what, where=error.where, fix=error.fix) from error


def _telling(progress: Progress | None) -> Callable[[FamilyTimes, float], None] | None:
    if progress is None:
        return None
    return lambda times, passed: progress(
        f"{family_name(times.family)}: {len(times.timings)} of {len(times.family)} sizes", passed
    )


def _base(given: str | Path | Hardware | None, facts: DeviceFacts) -> Hardware:
    if isinstance(given, Hardware):
        return given
    if isinstance(given, Path) or (given is not None and given.endswith((".yaml", ".yml"))):
        return load_hardware(given)
    if given is not None:
        return get_hardware(given)
    return get_hardware(known_machine(facts.kind))


def known_machine(device_kind: str) -> str:
    """The known machine whose devices JAX calls so.

    Raises:
        InputError: There is none.
    """
    for part, known in _MACHINE_BY_KIND:
        if part in device_kind.lower():
            return known
    raise InputError(
        f'no known machine has devices called "{device_kind}"',
        where="argument `base`",
        fix="name the known machine that is most like it, or the YAML file of your own",
    )


def _measurements(facts: DeviceFacts, measured: Iterable[FamilyTimes]) -> Measurements:
    collectives: dict[CollectiveKind, tuple[CollectiveSample, ...]] = {}
    ops: dict[tuple[str, str], tuple[OpSample, ...]] = {}
    skipped = []
    for times in measured:
        first = times.family[0]
        if not times.timings:
            reason = times.problem or "too short to be told from the start of a program"
            skipped.append(Kept(numbers=family_name(times.family), reason=reason))
            continue
        if isinstance(first, CollectiveProbe):
            kind = typing.cast("CollectiveKind", first.kind)
            collectives[kind] = tuple(_collective_samples(times))
        else:
            ops[first.op_class, first.dtype] = tuple(_op_samples(times))
    return Measurements(
        date=datetime.date.today().isoformat(),
        backend=typing.cast("Backend", facts.backend),
        platform=facts.platform,
        device_kind=facts.kind,
        num_devices=facts.num_devices,
        host=facts.host,
        versions=facts.versions,
        capacity_bytes=facts.capacity_bytes,
        collectives=collectives,
        ops=ops,
        skipped=tuple(skipped),
    )


def _collective_samples(times: FamilyTimes) -> Iterable[CollectiveSample]:
    for probe, timing in times.timings:
        assert isinstance(probe, CollectiveProbe)
        yield CollectiveSample(
            num_devices=probe.group_size,
            full_bytes=probe.full_bytes,
            seconds=timing.seconds,
            spread=timing.spread,
        )


def _op_samples(times: FamilyTimes) -> Iterable[OpSample]:
    for probe, timing in times.timings:
        assert isinstance(probe, OpProbe)
        flops, num_bytes = work_of(probe)
        m_n_k = probe.dims if probe.op_class == "matmul" else None
        yield OpSample(
            flops=flops,
            bytes_accessed=num_bytes,
            matmul_dims=typing.cast("tuple[int, int, int] | None", m_n_k),
            seconds=timing.seconds,
            spread=timing.spread,
        )
