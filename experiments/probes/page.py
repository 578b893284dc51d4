"""The table of what probes found on each chip, `experiments/results/probes.md`."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from autoshard.backends.probed import Probed
from experiments.probes.probe import Probe

_INTRO = """\
# What compilers were seen to do

Written by `python -m experiments.probes` from the records in `autoshard/backends/data/`. A row is a
number of the compiler model, found by compiling small programs for the chip. `?` is a probe that
did not tell: the record says why, and the model keeps its value. `-` is one that was not run.
"""


def format_page(probes: Sequence[Probe], by_chip: Mapping[str, Mapping[str, Probed]]) -> str:
    """The page as Markdown.

    Args:
        probes: Rows, in their order.
        by_chip: Records in each chip's own file.
    """
    shown = {
        chip: {probe.record: records[probe.record] for probe in probes if probe.record in records}
        for chip, records in by_chip.items()
    }
    ours = {
        chip: {name: made for name, made in records.items() if "experiments.probes." in made.probe}
        for chip, records in shown.items()
    }
    chips = [chip for chip, records in ours.items() if records]
    lines = [_INTRO, _row(["", *chips]), _row(["---"] * (len(chips) + 1))]
    lines += [_row(["compiler", *(_compilers(ours[chip]) for chip in chips)])]
    lines += [_row(["date", *(_dates(ours[chip]) for chip in chips)])]
    for probe in probes:
        cells = [_cell(ours[chip].get(probe.record)) for chip in chips]
        lines.append(_row([f"`{probe.record}` ({probe.unit})", *cells]))
    lines += ["", "Programs:", ""]
    lines += [f"* `{probe.record}`: {probe.text}" for probe in probes]
    return "\n".join(lines) + "\n"


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _compilers(records: Mapping[str, Probed]) -> str:
    return ", ".join(sorted({made.compiler for made in records.values() if made.compiler}))


def _dates(records: Mapping[str, Probed]) -> str:
    return ", ".join(sorted({str(made.date) for made in records.values()}))


def _cell(record: Probed | None) -> str:
    if record is None:
        return "-"
    return "?" if record.compiler is None else format_value(record.value)


def format_value(value: object) -> str:
    """A value as people read it: `yes`, `112 MiB` in bytes, names with commas."""
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, (frozenset, tuple)):
        parts = sorted(value) if isinstance(value, frozenset) else value
        return ", ".join(format_value(part) for part in parts) or "none"
    if isinstance(value, (int, float)):
        return "no limit" if math.isinf(value) else f"{value:,.0f}"
    return str(value)
