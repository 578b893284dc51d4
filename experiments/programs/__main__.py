"""`python -m experiments.programs`: plan and run programs of other packages, and write a table.

Each runs in a process of its own, on eight CPU devices. A program whose package is absent is a row
that says so.
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

ROW = "row: "
PAGE = Path(__file__).parents[1] / "results" / "programs.md"
SECONDS = 600
HEADER = """# Programs of other packages

Made by `python -m experiments.programs` on {date}, from commit {commit}: {num} programs.
Packages: {packages}.

They are planned as they are for 8 CPU devices (`data=2,model=4`, `cpu-host`, default options) and
run there. *planned in*: processor seconds, the search for constraints included. *equal*: results of
the planned step beside those of `jax.jit`, by the largest relative error of a result. *by hand /
ours*: predicted step of the best plan by hand over ours; below 1 a plan by hand is faster.

| program | accepted | equal | planned in | constraints | by hand / ours | note |
|---|---|---|---|---|---|---|
"""


def programs() -> dict[str, Callable[[], Any]]:
    from experiments.programs import models, science
    from experiments.programs.program import Program

    return {
        name: make
        for module in (models, science)
        for name, make in vars(module).items()
        if callable(make)
        and getattr(make, "__annotations__", {}) == {"return": "Program"}
        and make is not Program
    }


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(prog="python -m experiments.programs", description=__doc__)
    parser.add_argument("names", nargs="*", help="of programs; all if none is given")
    parser.add_argument("--one", help="run this program here and print its row as JSON")
    parser.add_argument("-o", "--output", type=Path, default=PAGE)
    options = parser.parse_args(arguments)
    if options.one:
        from experiments.programs.planned import row_of

        print(ROW + json.dumps(row_of(programs()[options.one])))
        return
    names = options.names or list(programs())
    rows = {name: _in_own_process(name) for name in names}
    options.output.write_text(_page(rows), encoding="utf-8")
    print(options.output)


def _in_own_process(name: str) -> dict[str, Any]:
    flags = os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
    environment = {**os.environ, "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}
    command = [sys.executable, "-m", "experiments.programs", "--one", name]
    print(name, end=" ", flush=True)
    try:
        done = subprocess.run(
            command, env=environment, capture_output=True, text=True, timeout=SECONDS, check=False
        )
    except subprocess.TimeoutExpired:
        return {"note": f"no answer in {SECONDS} s"}
    lines = done.stdout.splitlines()
    found = next((line for line in lines if line.startswith(ROW)), None)
    last = (done.stderr.strip().splitlines() or ["no output"])[-1]
    row = json.loads(found.removeprefix(ROW)) if found else {"note": f"crashed: {last}"}
    print(row, flush=True)
    return row


def _page(rows: dict[str, dict[str, Any]]) -> str:
    used = (
        "jax flax dm-haiku equinox optax jraph numpyro exponax diffrax mctx jax-md gymnax distrax"
        " blackjax lineax optimistix"
    ).split()
    found = []
    for package in used:
        try:
            found.append(f"{package} {importlib.metadata.version(package)}")
        except importlib.metadata.PackageNotFoundError:
            continue
    lines = [_line(name, row) for name, row in rows.items()]
    commit = subprocess.run(
        ["git", "describe", "--always", "--dirty"], capture_output=True, text=True, check=False
    ).stdout.strip()
    date = datetime.date.today().isoformat()
    head = HEADER.format(num=len(rows), packages=", ".join(found), commit=commit, date=date)
    return head + "\n".join(lines) + "\n"


def _line(name: str, row: dict[str, Any]) -> str:
    cells = (
        name.replace("_", " "),
        "yes" if row.get("accepted") else "no",
        f"{'yes' if row['equal'] else '**no**'} ({row['error']:.0e})" if "equal" in row else "-",
        f"{row['seconds']:.1f} s" if "seconds" in row else "-",
        str(row.get("constraints", "-")),
        f"{row['ratio']:.2f} ({row['by_hand']})" if row.get("ratio") else "-",
        row.get("note", ""),
    )
    return f"| {' | '.join(cells)} |"


if __name__ == "__main__":
    main()
