"""Peaks, memory bandwidth and launch, fitted to measured times of ops."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from cost_models.errors import CostModelError
from cost_models.fit_quality import check_samples, checked_residuals
from cost_models.hardware import Hardware, PeakFlops, ScatteredAccess
from cost_models.measured import Kept, OpFit, OpSample
from cost_models.relative_fits import FloatArray, fit_nonnegative, fit_rate
from cost_models.roofline import dtype_family, memory_efficiency, op_seconds

OpKey = tuple[str, str]
"""Op class and dtype."""

_UNIT_BY_CLASS = {"matmul": "matmul", "elementwise": "vector"}
_SCATTERED = ("gather", "scatter", "sort")
_LEAST_FLOPS, _MOST_FLOPS = 1e6, 1e18
_REST = "; the rest: "
_LEAST_SHARE = 1e-6
_LEAST_BANDWIDTH, _MOST_BANDWIDTH = 1e6, 1e15


def fit_ops(
    base: Hardware, samples_by_key: Mapping[OpKey, Sequence[OpSample]], source: str
) -> tuple[Hardware, tuple[OpFit, ...], tuple[Kept, ...]]:
    """Fits what was measured: copies first, since all else also moves bytes and is launched.

    Args:
        base: Where numbers that were not measured are from.
        samples_by_key: Times by op class and dtype: "copy", "matmul", "elementwise" (with
            arithmetic enough to be bound by it), "gather", "scatter", "sort".
        source: Where the numbers are from.

    Returns:
        The machine, the fits, and what was not fitted.
    """
    machine = base
    fits: list[OpFit] = []
    kept: list[Kept] = []
    for key in sorted(samples_by_key, key=lambda key: key[0] != "copy"):
        numbers = _numbers(key)
        try:
            values = _fitted(machine, key, samples_by_key[key])
            machine_now = _with_numbers(machine, dict(zip(numbers, values, strict=True)))
            fit = _with_residuals(machine_now, key, numbers, samples_by_key[key])
        except CostModelError as error:
            kept.append(Kept(numbers=", ".join(numbers), reason=f"{error.what}; {error.fix}"))
        else:
            machine = machine_now
            fits.append(fit)
    found = {number for fit in fits for number in fit.numbers}
    machine, scaled = _with_scaled_peaks(base, machine, found)
    if found:
        machine = _with_sources(machine, source)
    return machine, tuple(fits), (*kept, *scaled)


def _numbers(key: OpKey) -> tuple[str, ...]:
    """Field paths of the numbers that an op of this class and dtype tells."""
    op_class, dtype = key
    if op_class == "copy":
        return ("compute.kernel_launch_seconds", "memory.bytes_per_second")
    if op_class in _SCATTERED:
        return (f"memory.scattered.{op_class}",)
    return (f"compute.{_UNIT_BY_CLASS[op_class]}.{dtype_family(dtype)}",)


def _fitted(machine: Hardware, key: OpKey, samples: Sequence[OpSample]) -> tuple[float, ...]:
    """Values of `_numbers(key)`, copies' already being the machine's."""
    where = f"{key[0]} of {key[1]}"
    check_samples(samples, where)
    if key[0] == "copy":
        return _launch_and_bandwidth(samples, where)
    launch = machine.compute.kernel_launch_seconds
    compute = _priced(machine, key, samples, moves=False) - launch
    memory = _priced(machine, key, samples, computes=False) - launch
    if key[0] in _SCATTERED:
        amounts, other = memory * memory_efficiency(machine, key[0]), compute
        low, high = _LEAST_SHARE, 1.0
    else:
        peaks: PeakFlops = getattr(machine.compute, _UNIT_BY_CLASS[key[0]])
        amounts, other = compute * peaks.of(dtype_family(key[1])), memory
        low, high = _LEAST_FLOPS, _MOST_FLOPS
    rate = fit_rate(amounts, other, launch, _seconds(samples), low=low, high=high)
    if key[0] not in _SCATTERED and not (amounts / rate > np.maximum(other, launch)).any():
        raise CostModelError(
            "no sample is bound by arithmetic, so the peak cannot be told",
            where=where,
            fix="measure larger sizes",
        )
    return (rate,)


def _launch_and_bandwidth(samples: Sequence[OpSample], where: str) -> tuple[float, float]:
    num_bytes = np.array([sample.bytes_accessed for sample in samples])
    columns = np.stack([np.ones(len(samples)), num_bytes], axis=1)
    launch, seconds_per_byte = fit_nonnegative(columns, _seconds(samples))
    if seconds_per_byte == 0:
        raise CostModelError(
            "the times do not grow with the bytes",
            where=where,
            fix="measure larger sizes, with nothing else running",
        )
    bandwidth = min(max(1 / float(seconds_per_byte), _LEAST_BANDWIDTH), _MOST_BANDWIDTH)
    return float(launch), bandwidth


def _priced(
    machine: Hardware,
    key: OpKey,
    samples: Sequence[OpSample],
    *,
    computes: bool = True,
    moves: bool = True,
) -> FloatArray:
    """float64[num_samples]: what the roofline says, without the arithmetic or the bytes if asked.

    An op that does nothing else is priced at its launch.
    """
    launch = machine.compute.kernel_launch_seconds
    prices = [
        op_seconds(
            machine,
            flops=sample.flops if computes else 0.0,
            bytes_accessed=sample.bytes_accessed if moves else 0.0,
            dtype=key[1],
            op_class=key[0],
            matmul_dims=sample.matmul_dims,
        )
        for sample in samples
    ]
    return np.asarray(np.maximum(np.array(prices, float), launch))


def _with_numbers(machine: Hardware, values: Mapping[str, float]) -> Hardware:
    """The machine with the numbers at those field paths."""
    if machine.memory.scattered is None and any("scattered" in path for path in values):
        shares = {name: memory_efficiency(machine, name) for name in _SCATTERED}
        machine = _replaced(machine, ["memory", "scattered"], ScatteredAccess(**shares))
    for path, value in values.items():
        machine = _replaced(machine, path.split("."), value)
    return machine


def _replaced(value: Any, path: list[str], new: object) -> Any:
    """A frozen value with something else at a path of attributes."""
    first, *rest = path
    inner = _replaced(getattr(value, first), rest, new) if rest else new
    return dataclasses.replace(value, **{first: inner})


def _with_residuals(
    machine: Hardware, key: OpKey, numbers: tuple[str, ...], samples: Sequence[OpSample]
) -> OpFit:
    prices = _priced(machine, key, samples)
    residuals = checked_residuals(prices, samples, f"{key[0]} of {key[1]}")
    return OpFit(
        op_class=key[0],
        dtype=key[1],
        numbers=numbers,
        residuals=residuals,
        samples=tuple(samples),
    )


def _with_scaled_peaks(
    base: Hardware, machine: Hardware, found: set[str]
) -> tuple[Hardware, tuple[Kept, ...]]:
    """Peaks of other dtypes, as far from the base's as the measured ones are on the median."""
    kept = []
    for unit in ("matmul", "vector"):
        before: PeakFlops = getattr(base.compute, unit)
        peaks: PeakFlops = getattr(machine.compute, unit)
        families = [field.name for field in dataclasses.fields(PeakFlops)]
        known = [name for name in families if f"compute.{unit}.{name}" in found]
        if not known:
            continue
        ratio = float(np.median([peaks.of(name) / before.of(name) for name in known]))
        others = {
            name: min(max(before.of(name) * ratio, _LEAST_FLOPS), _MOST_FLOPS)
            for name in families
            if name not in known
        }
        machine = _replaced(machine, ["compute", unit], dataclasses.replace(peaks, **others))
        if others:
            paths = ", ".join(f"compute.{unit}.{name}" for name in others)
            reason = f"not fitted; {ratio:.3g} times the base's, as those that were"
            kept.append(Kept(numbers=paths, reason=reason))
    return machine, tuple(kept)


def _with_sources(machine: Hardware, source: str) -> Hardware:
    for path in ("compute", "memory"):
        rest = getattr(machine, path).source.rpartition(_REST)[2]
        machine = _replaced(machine, [path, "source"], f"{source}{_REST}{rest}")
    return machine


def _seconds(samples: Sequence[OpSample]) -> FloatArray:
    return np.array([sample.seconds for sample in samples])
