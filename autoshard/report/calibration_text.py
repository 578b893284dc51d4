"""What a calibration found, as tables."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, TextIO

from rich.console import Group

from autoshard.report.layout import FoldingTable, heading, plain, print_on, section, table
from autoshard.report.quantities import format_bytes, format_percent, format_seconds
from cost_models import place_mesh
from cost_models.measured_cost import fitted_cost

if TYPE_CHECKING:
    from cost_models import Hardware
    from cost_models.measured import CollectiveFit, Measured, OpFit, Residuals

_RESIDUAL_COLUMNS = (">samples", ">median error", ">largest", ">R²")


def print_calibration(machine: Hardware, file: TextIO, width: int | None = None) -> None:
    """Print what was measured on a calibrated machine, and how well the numbers fit.

    Raises:
        ValueError: The machine was not calibrated.
    """
    if machine.measured is None:
        raise ValueError(f"{machine.name} was not calibrated")
    print_on(_report(machine, machine.measured), file, width)


def _report(machine: Hardware, measured: Measured) -> Group:
    parts = [
        plain(
            f"{machine.name}: {measured.num_devices} x {measured.device_kind}, {measured.host}, "
            f"{measured.versions}, {measured.date}"
        )
    ]
    body: list[object] = list(parts)
    if measured.collectives:
        body.append(section(heading("Collectives"), _collectives(machine, measured)))
    if measured.ops:
        body.append(section(heading("Ops"), _ops(machine, measured)))
    if measured.kept:
        rows = [(kept.numbers, kept.reason) for kept in measured.kept]
        title = heading("Kept", f"as {measured.base} has them")
        body.append(section(title, table(("numbers", "why"), rows)))
    return Group(*body)  # type: ignore[arg-type]


def _collectives(machine: Hardware, measured: Measured) -> FoldingTable:
    columns = ("collective", ">launch", ">step", ">bandwidth", *_RESIDUAL_COLUMNS)
    return table(columns, [_collective_row(machine, fit) for fit in measured.collectives])


def _collective_row(machine: Hardware, fit: CollectiveFit) -> tuple[str, ...]:
    assert machine.measured is not None
    layout = place_mesh(machine, (machine.measured.num_devices,))
    whole = fitted_cost(fit, layout.group(((0, 1, machine.measured.num_devices),)))
    return (
        fit.kind,
        format_seconds(fit.launch_seconds),
        format_seconds(fit.step_seconds),
        f"{format_bytes(1 / whole.seconds_per_byte)}/s",
        *_residual_cells(fit.residuals, len(fit.samples)),
    )


def _ops(machine: Hardware, measured: Measured) -> FoldingTable:
    columns = ("op", "numbers", *_RESIDUAL_COLUMNS)
    return table(columns, [_op_row(machine, fit) for fit in measured.ops])


def _op_row(machine: Hardware, fit: OpFit) -> tuple[str, ...]:
    return (
        f"{fit.op_class} {fit.dtype}",
        ", ".join(_numbers(machine, fit)),
        *_residual_cells(fit.residuals, len(fit.samples)),
    )


def _numbers(machine: Hardware, fit: OpFit) -> Iterator[str]:
    for path in fit.numbers:
        value: object = machine
        for name in path.split("."):
            value = getattr(value, name)
        assert isinstance(value, (int, float))
        if path.startswith("memory.scattered."):
            yield f"{format_percent(value)} of the bandwidth"
        elif path.endswith("bytes_per_second"):
            yield f"{format_bytes(value)}/s"
        elif path.endswith("seconds"):
            yield f"launch {format_seconds(value)}"
        else:
            yield f"{value / 1e9:,.4g} GFLOP/s"


def _residual_cells(residuals: Residuals, num_samples: int) -> tuple[str, ...]:
    return (
        f"{num_samples}",
        format_percent(residuals.median_error),
        format_percent(residuals.max_error),
        f"{residuals.r_squared:.3f}",
    )
