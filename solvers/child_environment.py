"""The environment of processes that run modules of this package."""

from __future__ import annotations

import os
from pathlib import Path


def child_environment() -> dict[str, str]:
    """This process's environment, in which children find the package wherever it lies."""
    package = str(Path(__file__).resolve().parent.parent)
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    return {**os.environ, "PYTHONPATH": os.pathsep.join(paths)}
