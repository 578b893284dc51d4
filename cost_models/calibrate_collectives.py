"""Latency and bandwidth of collectives, fitted to their measured times."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence

import numpy as np

from cost_models.errors import CostModelError
from cost_models.fit_quality import check_samples, checked_residuals
from cost_models.hardware import Hardware, Link
from cost_models.links import GroupDim
from cost_models.measured import (
    CollectiveFit,
    CollectiveKind,
    CollectiveSample,
    Kept,
    Residuals,
)
from cost_models.measured_cost import COST_BY_KIND, collective_units, fitted_cost
from cost_models.relative_fits import FloatArray, fit_nonnegative
from cost_models.topology import place_mesh

_NO_RESIDUALS = Residuals(median_error=0.0, max_error=0.0, r_squared=1.0)


def fit_collectives(
    base: Hardware,
    samples_by_kind: Mapping[CollectiveKind, Sequence[CollectiveSample]],
    num_devices: int,
    source: str,
) -> tuple[Hardware, tuple[CollectiveFit, ...], tuple[Kept, ...]]:
    """Fits every kind that was measured; the links are set by the first that makes sense.

    They become as fast as makes the textbook's price of that kind right for many bytes on all
    the devices: that is the price of kinds that were not fitted.

    Args:
        base: The machine whose links the devices have.
        samples_by_kind: Times, all groups of the devices at work at once.
        num_devices: That were measured.
        source: Where the numbers are from, for the links.

    Returns:
        The machine with its links and launch as measured, the fits, and what was not fitted.

    """
    fits: list[CollectiveFit] = []
    kept: list[Kept] = []
    for kind in [kind for kind in COST_BY_KIND if kind in samples_by_kind]:
        try:
            fits.append(fit_collective(base, kind, samples_by_kind[kind], num_devices))
        except CostModelError as error:
            kept.append(Kept(numbers=kind, reason=f"{error.what}; {error.fix}"))
    if not fits:
        links = Kept(numbers="links", reason="no collective was fitted")
        return base, (), (*kept, links)
    first = fits[0]
    units = collective_units(first.kind, measured_group(base, num_devices, num_devices))
    factor = first.bytes_factor + first.local_seconds_per_byte / units.seconds_per_byte
    machine = _with_links(base, factor, first.step_seconds, source)
    machine = dataclasses.replace(machine, collective_launch_seconds=first.launch_seconds)
    relative = (dataclasses.replace(fit, bytes_factor=fit.bytes_factor / factor) for fit in fits)
    return machine, tuple(relative), tuple(kept)


def fit_collective(
    base: Hardware,
    kind: CollectiveKind,
    samples: Sequence[CollectiveSample],
    num_devices: int,
) -> CollectiveFit:
    """Launch, step, share of the links' bandwidth and local work of one kind of collective.

    Args:
        base: The machine whose links the devices have.
        kind: Of collective.
        samples: Times, all groups of the devices at work at once.
        num_devices: That were measured.

    Returns:
        The fit; its `bytes_factor` is relative to the links of `base`.

    Raises:
        CostModelError: There are too few samples, they are too noisy, or they do not grow with
            the bytes; so many devices are more than a node or slice of the base.
    """
    where = f"{kind} on {num_devices} devices"
    check_samples(samples, where)
    dims = [measured_group(base, num_devices, sample.num_devices) for sample in samples]
    num_bytes = np.array([sample.full_bytes for sample in samples], float)
    seconds = _seconds(samples)
    launch, step, factor, local = fit_nonnegative(_columns(kind, dims, num_bytes), seconds)
    if factor == local == 0:
        raise CostModelError(
            "the times do not grow with the bytes",
            where=where,
            fix="measure larger sizes, with nothing else running",
        )
    fit = CollectiveFit(
        kind=kind,
        launch_seconds=float(launch),
        step_seconds=float(step),
        bytes_factor=float(factor),
        local_seconds_per_byte=float(local),
        residuals=_NO_RESIDUALS,
        samples=tuple(samples),
    )
    prices = [
        fitted_cost(fit, group).at(float(size)) for group, size in zip(dims, num_bytes, strict=True)
    ]
    return dataclasses.replace(fit, residuals=checked_residuals(np.array(prices), samples, where))


def _columns(
    kind: CollectiveKind, dims: Sequence[tuple[GroupDim, ...]], num_bytes: FloatArray
) -> FloatArray:
    """float64[num_samples, 4]: launch, steps, links and local work, each once.

    What cannot be told apart is not tried: where all groups take as many steps, all is launch,
    and where the links take as long for a byte in each, all is links.
    """
    units = [collective_units(kind, group) for group in dims]
    steps = np.array([unit.num_steps for unit in units])
    per_byte = np.array([unit.seconds_per_byte for unit in units])
    columns = np.stack([np.ones(len(units)), steps, per_byte * num_bytes, num_bytes], axis=1)
    if np.ptp(steps) == 0:
        columns[:, 1] = 0.0
    if np.ptp(per_byte) <= 1e-9 * per_byte.max():
        columns[:, 3] = 0.0
    return columns


def measured_group(base: Hardware, num_devices: int, group_size: int) -> tuple[GroupDim, ...]:
    """The links of a group whose devices are next to one another, all groups at work at once.

    Raises:
        CostModelError: So many devices are more than a node or slice of the base.
    """
    layout = place_mesh(base, (num_devices // group_size, group_size))
    if any(dim.kind == "network" for dim in layout.dims):
        raise CostModelError(
            f'{num_devices} devices are more than one node or slice of "{base.name}" has',
            where=f'{num_devices} devices of hardware "{base.name}"',
            fix="give a base with larger nodes, or measure fewer devices",
        )
    return layout.group(((1, 1, group_size),))


def _seconds(samples: Sequence[CollectiveSample]) -> FloatArray:
    """float64[num_samples]: the measured times."""
    return np.array([sample.seconds for sample in samples])


def _with_links(base: Hardware, factor: float, step_seconds: float, source: str) -> Hardware:
    """The machine with links so much slower, whose latency is that of a step."""

    def measured(link: Link) -> Link:
        usable = link.usable_bytes_per_second / factor
        share = usable / link.bytes_per_second
        if not 1e-3 <= share <= 1:
            link = dataclasses.replace(link, bytes_per_second=usable)
            share = 1.0
        return dataclasses.replace(
            link, efficiency=share, latency_seconds=step_seconds, source=source
        )

    if base.switch is not None:
        switch = dataclasses.replace(base.switch, link=measured(base.switch.link))
        return dataclasses.replace(base, switch=switch)
    torus = base.torus
    assert torus is not None
    chip_link = measured(torus.chip_link) if torus.chip_link is not None else None
    torus = dataclasses.replace(torus, link=measured(torus.link), chip_link=chip_link)
    return dataclasses.replace(base, torus=torus)
