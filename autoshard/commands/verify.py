"""The `autoshard verify` command."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from autoshard.collectives import HardwarePrices
from autoshard.commands.command import Command, Seconds, example, wide_stdout, width_option
from autoshard.commands.saved_plan import MACHINE_OPTION, machine_of, with_program
from autoshard.errors import InputError
from autoshard.plans.plan_json import load_plan_data
from autoshard.report.verification_text import print_verification, signed_percent
from autoshard.user_files import refuse_unwritable, write_or_refuse
from autoshard.verification.verification import Verification

EXIT_DIFFERENT = 1


@click.command(
    "verify",
    cls=Command,
    epilog=example(
        "verify plan.json train:train_step",
        "verify plan.json train:train_step --topology v5e:2x4 --fail-above 50%",
    ),
)
@click.argument("plan", type=click.Path(path_type=Path))
@click.argument("target", required=False, metavar="[MODULE:FUNCTION]")
@click.option(
    "--topology",
    default="local",
    show_default=True,
    help="Devices to compile for, present or not: v5e:4x4, 2x v5e:4x4, 8xH100, 2x8xB200, local.",
)
@click.option(
    "--windowed-einsum",
    is_flag=True,
    help="Let the compiler make windowed einsums of matmuls and their collectives.",
)
@click.option(
    "--compiler-option",
    "compiler_options",
    multiple=True,
    metavar="NAME=VALUE",
    help="A flag of the compiler; may be given again.",
)
@click.option(
    "--timeout",
    type=Seconds(),
    default=600.0,
    show_default=True,
    help="Seconds for one compile.",
)
@click.option(
    "--tries",
    type=click.IntRange(min=0),
    default=12,
    show_default=True,
    help="Compiles to look for constraints that compile in, where all of them crash the compiler.",
)
@click.option(
    "--keep-in",
    type=click.Path(path_type=Path, file_okay=False),
    help="A folder for compiled programs; one that lies there is not compiled again.",
)
@click.option(
    "--fail-above",
    metavar="PERCENT",
    help="Exit code 1 where bytes or peak memory differ by more: 5%.",
)
@click.option(
    "--json",
    "json_out",
    type=click.Path(path_type=Path),
    help="Write every figure to this file too.",
)
@MACHINE_OPTION
@width_option
def verify_command(
    plan: Path,
    target: str | None,
    topology: str,
    windowed_einsum: bool,
    compiler_options: tuple[str, ...],
    timeout: float,
    tries: int,
    keep_in: Path | None,
    fail_above: str | None,
    json_out: Path | None,
    hardware: Path | None,
    width: int | None,
) -> None:
    """Compile a saved plan for devices that need not be present, and compare.

    Collectives, bytes and peak memory are shown as planned and as compiled; for TPUs the time that
    the compiler estimates too. The program is traced again: from MODULE:FUNCTION, or from the
    module file that the plan was made from.

    Exit code 0: it compiles (and differs by no more than --fail-above); 1: it does not, or differs
    by more; 2: an error.
    """
    limit = None if fail_above is None else _fraction(fail_above)
    flags = dict(map(_flag, compiler_options))
    if json_out is not None:
        refuse_unwritable(json_out, "--json")
    data = load_plan_data(plan)
    known = with_program(data, plan, target, "verify PLAN TARGET")
    if hardware is not None:
        known.prices = HardwarePrices.of(machine_of(data, plan, hardware), data.mesh)
    found = known.verify(
        topology,
        windowed_einsum=windowed_einsum,
        compiler_options=flags,
        timeout_seconds=timeout,
        max_tries=tries,
        keep_in=keep_in,
    )
    if json_out is not None:
        write_or_refuse(json_out, found.to_json().encode(), "the figures")
    print_verification(found, wide_stdout(), width)
    sys.exit(_exit_code(found, limit))


def _exit_code(found: Verification, limit: float | None) -> int:
    if not found.is_compiled:
        return EXIT_DIFFERENT
    if limit is None or found.largest_difference <= limit:
        return 0
    click.echo(
        f"error: bytes differ by {signed_percent(found.bytes_difference)}, memory by"
        f" {signed_percent(found.memory_difference)}; at most {100 * limit:g} % was asked for",
        err=True,
    )
    return EXIT_DIFFERENT


def _fraction(text: str) -> float:
    number = text.strip()
    try:
        found = float(number.removesuffix("%")) / 100
    except ValueError:
        found = -1.0
    if not 0 <= found < float("inf"):
        raise InputError(
            f'expected a percentage, found "{text}"',
            where="--fail-above",
            fix="write it as in 5%",
        )
    return found


def _flag(text: str) -> tuple[str, str]:
    name, equals, value = text.partition("=")
    if not equals or not name.strip():
        raise InputError(
            f'expected NAME=VALUE, found "{text}"',
            where="--compiler-option",
            fix="write it as in xla_tpu_enable_windowed_einsum_for_all_gather=false",
        )
    return name.strip(), value.strip()
