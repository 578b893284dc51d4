"""`autoshard cache`: shows or removes kept plans."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path

import click

from autoshard.commands.command import Command, example, wide_stdout
from autoshard.plan_cache.entries import Entry, PlanCache
from autoshard.plan_cache.folder import cache_folder
from autoshard.report.quantities import format_bytes


@click.command(
    "cache",
    cls=Command,
    epilog=example("cache list", "cache clear --folder plans --days 30"),
)
@click.argument("action", type=click.Choice(["list", "clear"]))
@click.option(
    "--folder",
    type=click.Path(path_type=Path),
    help="The cache; that of AUTOSHARD_CACHE, else the platform's, if not given.",
)
@click.option(
    "--days",
    type=click.FloatRange(min=0),
    default=0.0,
    metavar="N",
    help="Clear only plans that were made more than so many days ago.",
)
def cache_command(action: str, folder: Path | None, days: float) -> None:
    """List kept plans, the newest first, or clear them; other files in the folder stay."""
    found = cache_folder(True if folder is None else folder)
    assert found is not None
    cache, out = PlanCache(found), wide_stdout()
    if action == "clear":
        click.echo(f"removed {_count(cache.clear(days))} from {cache.folder}", file=out)
        return
    entries = cache.entries()
    for entry in entries:
        made = time.strftime("%Y-%m-%d %H:%M", time.localtime(entry.made))
        size = format_bytes(entry.num_bytes)
        click.echo(f"{made}  {size:>10}  {entry.key[:12]}  {entry.function}", file=out)
    click.echo(f"{_count(entries)} in {cache.folder}", file=out)


def _count(entries: Sequence[Entry]) -> str:
    size = format_bytes(sum(entry.num_bytes for entry in entries))
    return f"{len(entries)} {'plan' if len(entries) == 1 else 'plans'} ({size})"
