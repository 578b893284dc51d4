"""The version of autoshard, in one place, and those of what it runs on."""

from __future__ import annotations

import importlib.metadata

VERSION = "0.1.0"


def installed_version(name: str) -> str | None:
    """The version of a package as installed; None where it is not."""
    try:
        return importlib.metadata.version(name)
    except importlib.metadata.PackageNotFoundError:
        return None
