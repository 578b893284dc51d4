"""The first plan as a notebook: the cells of its page."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[1]
PAGE = ROOT / "docs" / "tutorials" / "first-plan.md"
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```\n", re.DOTALL | re.MULTILINE)
_LINK = re.compile(r"\[([^\]]+)\]\([^)]+\)")
START = """\
# In Colab, first upload a checkout, and: %pip install -q ./autoshard
import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")  # eight devices, made from the host's CPU
os.environ["XLA_FLAGS"] = "--xla_force_host_platform_device_count=8"
"""
SHOWN = "plan  # the page of the report: search it, open the modules, draw the shardings"


def first_plan_notebook() -> str:
    """The tutorial's text and code as cells; what it prints is left to the notebook."""
    text = PAGE.read_text(encoding="utf-8")
    cells: list[dict[str, Any]] = []
    place = 0
    for block in _BLOCK.finditer(text):
        _add_text(cells, text[place : block.start()])
        place = block.end()
        if block[1] == "bash":
            cells.append(_code(START))
        elif block[1] == "python":
            cells.append(_code(block[2]))
            if "plan.report()" in block[2]:
                cells.append(_code(SHOWN))
    _add_text(cells, text[place:])
    for number, cell in enumerate(cells):
        cell["id"] = f"cell-{number}"
    kernel = {"display_name": "Python 3", "language": "python", "name": "python3"}
    book = {
        "cells": cells,
        "metadata": {"kernelspec": kernel, "language_info": {"name": "python"}},
        "nbformat": 4,
        "nbformat_minor": 5,
    }
    return json.dumps(book, indent=1, ensure_ascii=False) + "\n"


def _add_text(cells: list[dict[str, Any]], text: str) -> None:
    plain = _LINK.sub(r"\1", text).strip()
    if plain:
        cells.append({"cell_type": "markdown", "metadata": {}, "source": _lines(plain)})


def _code(text: str) -> dict[str, Any]:
    return {
        "cell_type": "code",
        "execution_count": None,
        "metadata": {},
        "outputs": [],
        "source": _lines(text.strip()),
    }


def _lines(text: str) -> list[str]:
    return text.splitlines(keepends=True)
