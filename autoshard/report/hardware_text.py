"""The known machines as a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, TextIO

from autoshard.report.layout import FoldingTable, print_on, table
from autoshard.report.quantities import format_bytes

if TYPE_CHECKING:
    from cost_models import Hardware

_PETA, _TERA = 1e15, 1e12


def print_hardware(machines: Iterable[Hardware], file: TextIO, width: int | None = None) -> None:
    """Print one line per machine: peak, memory and links of one JAX device."""
    print_on(_table(machines), file, width)


def _table(machines: Iterable[Hardware]) -> FoldingTable:
    columns = ("name", ">bfloat16", ">float32", ">memory", ">bandwidth", ">link", "links")
    return table(columns, [_row(machine) for machine in machines])


def _row(machine: Hardware) -> tuple[str, ...]:
    peaks = machine.compute.matmul
    if machine.torus is not None:
        link, links = machine.torus.link, f"{machine.torus.num_dims}-D torus"
    else:
        assert machine.switch is not None  # a machine has one or the other
        link, links = machine.switch.link, f"switch of {machine.switch.domain_size:,}"
    if machine.network is not None:
        links += ", network"
    return (
        machine.name,
        _format_flops(peaks.bfloat16),
        _format_flops(peaks.float32),
        format_bytes(machine.memory.capacity_bytes),
        f"{format_bytes(machine.memory.bytes_per_second)}/s",
        f"{format_bytes(link.bytes_per_second)}/s",
        links,
    )


def _format_flops(flops: float) -> str:
    if flops >= _PETA:
        return f"{flops / _PETA:.3g} PFLOP/s"
    return f"{flops / _TERA:.3g} TFLOP/s"
