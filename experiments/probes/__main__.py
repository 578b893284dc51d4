"""Compiles the small programs that show the numbers of a compiler model, and records them.

    python -m experiments.probes --target v6e:2x4

The devices need not be there. With `--check` nothing is written, and a number that is no longer
what its record says fails by name.
"""

from __future__ import annotations

import datetime
import sys
import tempfile
import time
from pathlib import Path

import click

from autoshard import backends
from autoshard.aot.installed import check_installed
from autoshard.aot.targets import Target, parse_target
from autoshard.backends.chip_data import load_chip
from autoshard.errors import AutoshardError
from autoshard.files import write_file
from cost_models import get_hardware
from experiments.probes.bench import Bench, NotCompiledError
from experiments.probes.catalog import PROBES
from experiments.probes.page import format_page, format_value
from experiments.probes.probe import InconclusiveError, Probe
from experiments.probes.record import Finding, installed_compiler, recorded, write_records

DATA = Path(backends.__file__).parent / "data"
PAGE = Path(__file__).resolve().parent.parent / "results" / "probes.md"
_CHIPS = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x", "a100", "h100", "b200")


@click.command(help=__doc__)
@click.option("--target", help="Devices to compile for: v6e:2x4, 8xH100.")
@click.option("--only", multiple=True, help="Run this probe alone; repeatable.")
@click.option("--check", is_flag=True, help="Write nothing; fail where a record is not confirmed.")
@click.option("--list", "lists", is_flag=True, help="Name the probes and end.")
@click.option(
    "--keep-in", type=click.Path(path_type=Path), help="Keep compiled programs in this folder."
)
def main(
    target: str | None, only: tuple[str, ...], check: bool, lists: bool, keep_in: Path | None
) -> None:
    """Run the command."""
    if lists:
        for probe in PROBES:
            click.echo(f"{probe.record} ({', '.join(sorted(probe.platforms))}): {probe.text}")
        return
    if target is None:
        raise click.UsageError("say which devices: --target v6e:2x4, or --target 8xH100")
    try:
        devices = parse_target(target)
        check_installed(devices)
        probes = chosen_probes(devices, only)
        with tempfile.TemporaryDirectory() as folder:
            findings = find(Bench(target=devices, folder=keep_in or Path(folder)), probes)
        machine = get_hardware(devices.hardware)
        model = backends.backend_for(machine).name
        if check:
            sys.exit(compare(findings, model))
        write(findings, model, devices, is_complete=not only)
    except AutoshardError as error:
        click.echo(str(error), err=True)
        sys.exit(2)


def chosen_probes(target: Target, only: tuple[str, ...]) -> list[Probe]:
    """Probes that the target's compiler can be asked, or those of them that are named.

    Raises:
        click.UsageError: A name is none of them.
    """
    apt = [probe for probe in PROBES if target.platform in probe.platforms]
    unknown = set(only) - {probe.record for probe in apt}
    if not apt or unknown:
        raise click.UsageError(
            f"for {target.text} no probe is called {', '.join(sorted(unknown)) or 'anything'};"
            " --list names them"
        )
    return [probe for probe in apt if not only or probe.record in only]


def find(bench: Bench, probes: list[Probe]) -> list[Finding]:
    """Run probes, telling each as it ends."""
    found = []
    for probe in probes:
        start = time.monotonic()
        try:
            finding = Finding(probe=probe, value=probe.measure(bench))
        except (InconclusiveError, NotCompiledError) as error:
            finding = Finding(probe=probe, value=None, reason=str(error))
        told = f"inconclusive: {finding.reason}" if finding.reason else format_value(finding.value)
        click.echo(f"{probe.record}: {told} ({time.monotonic() - start:.0f} s)")
        found.append(finding)
    return found


def compare(findings: list[Finding], model: str) -> int:
    """Tell every number that is not as recorded; 1 where there is one, else 0."""
    known = backends.get_backend(model).records
    wrong = 0
    for finding in findings:
        name = finding.probe.record
        record = known[name]
        if record.compiler is None and finding.reason:
            continue  # was inconclusive before
        if finding.reason or finding.value != record.value:
            wrong = 1
            now = finding.reason or format_value(finding.value)
            click.echo(
                f"FAILED {name}: recorded {format_value(record.value)} by"
                f" {record.compiler or 'nobody'}, found {now}"
            )
    return wrong


def write(findings: list[Finding], model: str, target: Target, *, is_complete: bool) -> None:
    """Write the records of a chip, and the page of all chips."""
    backend = backends.get_backend(model)
    date = datetime.datetime.now(tz=datetime.UTC).date()
    made = recorded(findings, backend.records, installed_compiler(target.platform), date)
    path = DATA / f"{model}.yaml"
    write_records(path, made, is_complete=is_complete)
    for name, record in made.items():
        before = backend.records[name]
        if record.value != before.value:
            click.echo(
                f"changed {name}: {format_value(before.value)} ({before.compiler or 'assumed'})"
                f" -> {format_value(record.value)} ({record.compiler})"
            )
    by_chip = {chip: load_chip(DATA / f"{chip}.yaml").records for chip in _CHIPS}
    write_file(PAGE, format_page(PROBES, by_chip).encode())
    click.echo(f"written: {path.name}, {PAGE.name}")


if __name__ == "__main__":
    main()
