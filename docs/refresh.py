"""Writes the parts of the documentation that are printed by programs.

    python docs/refresh.py

* the table of known machines in `docs/reference/hardware.md`, from `cost_models.CATALOG`;
* every public name in `docs/reference/names.md`, from the packages' `__all__`;
* the API reference in `docs/reference/api.md`, from docstrings;
* the notebook `docs/tutorials/first_plan.ipynb`, from the page of the first plan;
* the first lines of the demo's report in `README.md`, from the plan that the demo makes.

Tests hold all but the last to the letter, and that to its structure, as its figures change with
every better price.
"""

from __future__ import annotations

import importlib
import inspect
import os
import sys
from collections.abc import Callable
from enum import Enum
from pathlib import Path
from types import ModuleType
from typing import Any

os.environ["XLA_FLAGS"] = os.environ.get("XLA_FLAGS", "--xla_force_host_platform_device_count=8")
sys.path.insert(0, str(Path(__file__).resolve().parents[1]))

import autoshard
from autoshard.report.quantities import format_bytes
from cost_models import CATALOG, Hardware
from docs.docstring_page import api_reference
from docs.notebook import first_plan_notebook
from experiments.workloads import get_workload

ROOT = Path(__file__).resolve().parents[1]
NOTEBOOK = ROOT / "docs" / "tutorials" / "first_plan.ipynb"


def hardware_table() -> str:
    """The known machines as a Markdown table."""
    columns = ("name", "`bfloat16`", "`float32`", "memory", "bandwidth", "link", "links")
    rows = [
        columns,
        ("---", *["---:"] * 5, "---"),
        *(_hardware_row(machine) for machine in CATALOG),
    ]
    return "".join(f"| {' | '.join(row)} |\n" for row in rows)


def _hardware_row(machine: Hardware) -> tuple[str, ...]:
    peaks, memory = machine.compute.matmul, machine.memory
    if machine.torus is not None:
        link, links = machine.torus.link, f"{machine.torus.num_dims}-D torus"
    elif machine.switch is not None:
        link, links = machine.switch.link, f"switch of {machine.switch.domain_size:,}"
    else:
        raise ValueError(f"{machine.name} has no links")
    return (
        f"`{machine.name}`",
        f"{peaks.bfloat16 / 1e12:,.4g} TFLOP/s",
        f"{peaks.float32 / 1e12:,.4g} TFLOP/s",
        format_bytes(memory.capacity_bytes),
        f"{format_bytes(memory.bytes_per_second)}/s",
        f"{format_bytes(link.bytes_per_second)}/s",
        links + (", network" if machine.network is not None else ""),
    )


def public_names() -> str:
    """A table for each package: its public names, as they are called and what they are for."""
    return "\n".join(_names_table(importlib.import_module(name)) for name in PACKAGES)


def _names_table(package: ModuleType) -> str:
    rows = [_name_row(name, getattr(package, name)) for name in package.__all__]
    return (
        f"## `{package.__name__}`\n\n{inspect.getdoc(package).partition(chr(10))[0]}\n\n"
        "| name | |\n|---|---|\n" + "".join(rows)
    )


def _name_row(name: str, value: Any) -> str:
    """A class or function with its parameters and first line, a constant or type with its value."""
    if not (inspect.isclass(value) or inspect.isroutine(value)):
        return f"| `{name}` | {_constant(value)} |\n"
    says = (inspect.getdoc(value) or "").partition("\n")[0].replace("|", "\\|")
    return f"| `{name}{_parameters(value) if _is_for_callers(value) else ''}` | {says} |\n"


def _is_for_callers(value: Any) -> bool:
    """Whether users call it, and not only catch, name or implement it."""
    if not inspect.isclass(value):
        return True
    return not (issubclass(value, (BaseException, Enum)) or getattr(value, "_is_protocol", False))


def _parameters(value: Callable[..., Any]) -> str:
    """`(first, second=, *, third=)`: names alone, those with a default marked."""
    names: list[str] = []
    for parameter in inspect.signature(value).parameters.values():
        stars = {parameter.VAR_POSITIONAL: "*", parameter.VAR_KEYWORD: "**"}.get(parameter.kind, "")
        if parameter.kind is parameter.KEYWORD_ONLY and not any(n.startswith("*") for n in names):
            names.append("*")
        has_default = parameter.default is not parameter.empty
        names.append(f"{stars}{parameter.name}{'=' if has_default else ''}")
    return f"({', '.join(names)})"


def _constant(value: Any) -> str:
    text = repr(value)
    return f"`{text}`" if len(text) < 100 else f"a `{type(value).__name__}`"


def demo_report() -> str:
    """The report of the demo's plan, up to its baselines, as a fenced block."""
    gpt = get_workload("gpt")
    plan = autoshard.optimize(
        gpt.step, gpt.state, gpt.batch, mesh="data=2,model=4", hardware="cpu-host", donate_argnums=0
    )
    head, _, _ = plan.report().partition("\nArguments ")
    return f"```\n{head.rstrip()}\n...\n```\n"


PACKAGES = (
    "autoshard",
    "autoshard.sharding",
    "autoshard.schedules",
    "autoshard.loops",
    "solvers",
    "solvers.formats",
    "cost_models",
)
"""Whose names are public, in the order of the page."""


SECTIONS: tuple[tuple[str, str, Callable[[], str]], ...] = (
    ("docs/reference/hardware.md", "hardware table", hardware_table),
    ("docs/reference/names.md", "public names", public_names),
    ("docs/reference/api.md", "API reference", api_reference),
    ("README.md", "demo report", demo_report),
)
"""Page, marker of the section, and what makes it."""


def refresh() -> None:
    """Rewrite every section."""
    for name, marker, make in SECTIONS:
        page = ROOT / name
        before, opening, rest = page.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")
        _, closing, after = rest.partition("<!-- end -->")
        if not opening or not closing:
            raise SystemExit(f"{name} has no section between <!-- {marker} --> and <!-- end -->")
        page.write_text(before + opening + make() + closing + after, encoding="utf-8")
    NOTEBOOK.write_text(first_plan_notebook(), encoding="utf-8")


if __name__ == "__main__":
    refresh()
