"""Files that hold StableHLO modules: read whole, written whole or not at all."""

from __future__ import annotations

from pathlib import Path

from autoshard.user_files import read_or_refuse, write_or_refuse

SUFFIXES = (".mlir", ".mlirbc", ".stablehlo")


def is_module_file(name: str) -> bool:
    """Whether a name is that of a module file and of no Python function."""
    return name.endswith(SUFFIXES)


def read_module_file(path: Path) -> bytes:
    """The content of a module file, text or bytecode.

    Raises:
        InputError: It cannot be read.
    """
    return read_or_refuse(path, "the module", "name a file that exists and that you may read")


def write_module_file(path: Path, content: str | bytes) -> None:
    """Write a module to a file; nothing half-written is left behind.

    Raises:
        InputError: It cannot be written.
    """
    data = content.encode() if isinstance(content, str) else content
    write_or_refuse(path, data, "the module")
