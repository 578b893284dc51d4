"""The `autoshard calibrate` command: measures this machine and writes its table."""

from __future__ import annotations

import os
from pathlib import Path

import click

from autoshard.calibration import calibrate
from autoshard.commands.command import Command, Seconds, example, wide_stdout, width_option
from autoshard.report.calibration_text import print_calibration
from autoshard.user_files import refuse_unwritable
from cost_models import save_hardware

_HOST_DEVICES = "--xla_force_host_platform_device_count"


@click.command(
    "calibrate",
    cls=Command,
    epilog=example("calibrate --devices 8 --out my-machine.yaml --seconds 60"),
)
@click.option(
    "--devices",
    type=click.IntRange(min=1),
    metavar="COUNT",
    help="How many devices to measure; all, if not given. A host is split into so many.",
)
@click.option(
    "--out",
    type=click.Path(path_type=Path, dir_okay=False),
    default="my-machine.yaml",
    show_default=True,
    help="The file to write; none is written when anything fails.",
)
@click.option(
    "--base",
    metavar="MACHINE",
    help="A known machine, or a YAML file: where numbers that cannot be measured are from. The "
    "one that the devices are called after, if not given.",
)
@click.option(
    "--seconds",
    type=Seconds(),
    default=60.0,
    show_default=True,
    help="About how long to measure; in less time, less is measured.",
)
@click.option("--name", help="Of the machine; that of the file, if not given.")
@width_option
def calibrate_command(
    devices: int | None,
    out: Path,
    base: str | None,
    seconds: float,
    name: str | None,
    width: int | None,
) -> None:
    """Measure collectives, products, copies and gathers on the devices of this machine.

    What was measured is fitted and written, with samples and residuals, to a file that --hardware
    takes. End other programs first. Progress goes to the standard error output.
    """
    refuse_unwritable(out, "--out")
    if devices is not None:
        _split_host(devices)
    machine = calibrate(
        devices=devices,
        base=base,
        seconds=seconds,
        name=name or out.stem,
        progress=lambda text, passed: click.echo(f"{passed:7.1f} s  {text}", err=True),
    )
    save_hardware(machine, out)
    print_calibration(machine, wide_stdout(), width)
    click.echo(f"wrote {out}: use it with --hardware {out}")


def _split_host(count: int) -> None:
    """Has JAX make so many CPU devices when it starts, unless the environment says how many."""
    flags = os.environ.get("XLA_FLAGS", "")
    if _HOST_DEVICES not in flags:
        os.environ["XLA_FLAGS"] = f"{flags} {_HOST_DEVICES}={count}".strip()
