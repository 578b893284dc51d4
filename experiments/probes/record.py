"""Writing what probes found into the data files of the compiler models."""

from __future__ import annotations

import dataclasses
import datetime
import importlib.metadata
import types
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from autoshard.backends.chip_data import POLICIES, ChipData, format_chip, load_chip
from autoshard.backends.probed import Probed
from autoshard.errors import InputError
from autoshard.files import write_file
from experiments.probes.probe import Probe

_COMPILERS = {"tpu": ("libtpu", "libtpu"), "cuda": ("CUDA plugin", "jax-cuda13-plugin")}


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What a probe found.

    Args:
        probe: The probe.
        value: As the policy holds it; None where the probe was inconclusive.
        reason: Why it was; "" where it was not.
    """

    probe: Probe
    value: object
    reason: str = ""


def installed_compiler(platform: str) -> str:
    """The compiler of a platform as records name it: `libtpu 0.0.52`."""
    name, package = _COMPILERS[platform]
    return f"{name} {importlib.metadata.version(package)}"


def recorded(
    findings: Sequence[Finding],
    known: Mapping[str, Probed],
    compiler: str,
    date: datetime.date,
) -> dict[str, Probed]:
    """Findings as records; an inconclusive one keeps the known value and says that it is assumed.

    Args:
        findings: Of one chip.
        known: Records of the chip's model so far, with those of the generic one.
        compiler: That was asked.
        date: Of the compiles.
    """
    made = {}
    for finding in findings:
        name = finding.probe.record
        if finding.reason:
            text = f"none: inconclusive with {compiler}: {finding.reason}; {finding.probe.text}"
            made[name] = dataclasses.replace(known[name], probe=text, compiler=None, date=date)
        else:
            made[name] = Probed(
                value=finding.value,
                unit=finding.probe.unit,
                probe=finding.probe.text,
                compiler=compiler,
                date=date,
            )
    return made


def write_records(path: Path, records: Mapping[str, Probed], *, is_complete: bool) -> None:
    """Put records into a chip's file; other records and the header stay.

    Args:
        path: The chip's file, which is there.
        records: By `policy.field`.
        is_complete: All probes of the platform ran, so that the chip counts as probed.

    Raises:
        InputError: A name is of no policy, or the file cannot be read or written; it stays as it
            was.
    """
    data = load_chip(path)
    merged = {**data.records, **records}
    unknown = [name for name in merged if name not in known_names()]
    if unknown:
        raise InputError(
            f"no policy has {', '.join(unknown)}",
            where=f"records for {path.name}",
            fix=f"name the record of a probe one of {', '.join(known_names())}",
        )
    changed: ChipData = dataclasses.replace(
        data,
        is_probed=data.is_probed or is_complete,
        records=types.MappingProxyType(merged),
    )
    content = format_chip(changed)
    try:
        write_file(path, content.encode())
    except OSError as error:
        raise InputError(
            f"the records cannot be written: {error.strerror}",
            where=f"chip data {path}",
            fix="run the probes where the repository can be written to",
        ) from error


def known_names() -> tuple[str, ...]:
    """Every `policy.field`."""
    return tuple(
        f"{section}.{field.name}"
        for section, policy in POLICIES.items()
        for field in dataclasses.fields(policy)
    )
