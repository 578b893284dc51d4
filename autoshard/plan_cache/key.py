"""The key of a plan: one text for all that it follows from."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import importlib.util
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from autoshard.files import read_file
from autoshard.version import installed_version

_PACKAGES = ("autoshard", "cost_models", "solvers")
_SUFFIXES = (".py", ".yaml")
_ENGINES = ("jax", "jaxlib", "numpy", "scipy", "ortools", "pulp", "highspy", "pytoulbar2")


def plan_key(asked: Mapping[str, Any]) -> str:
    """Returns 64 hexadecimal digits, equal for equal requests to equal code.

    Args:
        asked: All that a plan follows from but for the code of autoshard and its libraries.
    """
    versions = [installed_version(name) for name in _ENGINES]
    return digest({"asked": asked, "code": _code(), "versions": versions})


def digest(value: Any) -> str:
    """Returns 64 hexadecimal digits of a value of mappings, sequences, dataclasses and numbers."""
    text = json.dumps(_plain(value), sort_keys=True)
    return hashlib.sha256(text.encode()).hexdigest()


def _plain(value: Any) -> Any:
    """A value as JSON has it; objects that JSON has not are their `repr`."""
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        fields = {f.name: _plain(getattr(value, f.name)) for f in dataclasses.fields(value)}
        return [type(value).__name__, fields]
    if isinstance(value, Mapping):
        return sorted(([_plain(k), _plain(v)] for k, v in value.items()), key=repr)
    if isinstance(value, (list, tuple)):
        return [_plain(member) for member in value]
    return value if value is None or isinstance(value, (bool, int, str)) else repr(value)


@functools.cache
def _code() -> str:
    """Digest of the code and data of autoshard: a plan of other code is another plan."""
    found = hashlib.sha256()
    for package in _PACKAGES:
        spec = importlib.util.find_spec(package)
        assert spec is not None
        for folder in map(Path, spec.submodule_search_locations or ()):
            for path in sorted(folder.rglob("*")):
                if path.suffix in _SUFFIXES:
                    content = read_file(path)
                    name = path.relative_to(folder).as_posix()
                    found.update(f"{package}/{name} {len(content)} ".encode())
                    found.update(content)
    return found.hexdigest()
