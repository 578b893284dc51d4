"""Result tables: a Markdown page with the commit, versions, machine and date they came from."""

from __future__ import annotations

import datetime
import importlib.metadata
import os
import platform
import subprocess
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

RESULTS = Path(__file__).resolve().parent / "results"


def provenance() -> dict[str, str]:
    """Commit, date, machine and versions of what was measured."""
    commit = _git("describe", "--always")
    # Rows that a run appends while it goes on do not change what is measured.
    if _git("status", "--porcelain", "--untracked-files=no", "--", ".", ":!experiments/results"):
        commit += "-dirty"
    return {
        "commit": commit or "unknown",
        "date": datetime.date.today().isoformat(),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores",
        "python": platform.python_version(),
        "versions": ", ".join(_versions()),
    }


def _git(*arguments: str) -> str:
    root = Path(__file__).resolve().parent.parent
    done = subprocess.run(
        ["git", *arguments], cwd=root, capture_output=True, text=True, check=False
    )
    return done.stdout.strip()


def _versions() -> Iterator[str]:
    for name in ("jax", "jaxlib", "ortools"):
        yield f"{name} {importlib.metadata.version(name)}"
    try:
        yield f"pytoulbar2 {importlib.metadata.version('pytoulbar2')}"
    except importlib.metadata.PackageNotFoundError:
        yield "without pytoulbar2"


_AT_START = provenance()  # a long measurement is of the code it began with


def markdown_table(rows: Sequence[Mapping[str, Any]]) -> str:
    """Rows with the same keys as a Markdown table."""
    if not rows:
        return "(no rows)\n"
    names = list(rows[0])
    lines = ["| " + " | ".join(names) + " |", "| " + " | ".join("---" for _ in names) + " |"]
    lines += ["| " + " | ".join(str(row.get(name, "")) for name in names) + " |" for row in rows]
    return "\n".join(lines) + "\n"


def write_page(name: str, title: str, text: str) -> Path:
    """Write `experiments/results/NAME.md` whole or not at all."""
    RESULTS.mkdir(exist_ok=True)
    path = RESULTS / f"{name}.md"
    facts = "\n".join(f"* {key}: {value}" for key, value in _AT_START.items())
    temporary = path.with_suffix(".tmp")
    temporary.write_text(f"# {title}\n\n{facts}\n\n{text}")
    temporary.replace(path)
    return path
