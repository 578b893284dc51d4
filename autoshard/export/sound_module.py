"""Modules that came from elsewhere, looked at before MLIR's parser sees them in this process.

The parser ends the process where text is nested too deeply, and where bytecode is damaged in some
ways (jaxlib 0.10.2: messages that are not UTF-8, sizes that are not checked). Names in bytecode
may be no UTF-8, which Python cannot read.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np

from autoshard.errors import ExportError
from autoshard.mlir_modules import MLIR_MAGIC, Module

MOST_LEVELS = 500
"""Of brackets; a program of loops in loops has some thirty."""

MOST_SECONDS = 60.0

_QUOTED = re.compile(rb'"(?:[^"\\]|\\.)*"', re.DOTALL)
_ARROW = re.compile(rb"->")
_STEP = np.zeros(256, dtype=np.int64)
_STEP[list(b"([{<")] = 1
_STEP[list(b")]}>")] = -1
_NOT_TEXT = 3
_PARSE = f"""import sys
from autoshard.export.sound_module import is_text
from autoshard.mlir_modules import module_context, parse_module
with module_context():
    sys.exit(0 if is_text(parse_module(sys.stdin.buffer.read())) else {_NOT_TEXT})
"""
_ESCAPED = re.compile(r"\\\\|((?:\\[0-9A-F]{2})+)")
_FIX = "pass the whole module, as it was written"


def require_sound(module: str | bytes, name: str) -> None:
    """Refuse a module that would end this process when it is parsed.

    What is merely no module is left to the parser, which says why.

    Args:
        module: Text or bytecode.
        name: What to call it in errors.

    Raises:
        ExportError: It is nested too deeply, or bytecode that ends the process that parses it.
    """
    content = module.encode(errors="replace") if isinstance(module, str) else module
    if content.startswith(MLIR_MAGIC):
        _require_sound_bytecode(content, name)
        return
    levels = _levels(content)
    if levels > MOST_LEVELS:
        raise ExportError(
            f"the module does not parse: its brackets are nested {levels:,} levels deep, more than"
            f" {MOST_LEVELS}",
            where=name,
            fix=_FIX,
        )


def is_text(module: Module) -> bool:
    """Returns True if all names and strings of a module are UTF-8."""
    for found in _ESCAPED.finditer(module.operation.get_asm(large_elements_limit=1)):
        try:
            bytes.fromhex((found[1] or "").replace("\\", "")).decode()
        except UnicodeDecodeError:
            return False
    return True


def _levels(text: bytes) -> int:
    bare = np.frombuffer(_ARROW.sub(b"", _QUOTED.sub(b"", text)), dtype=np.uint8)
    return int(np.cumsum(_STEP[bare]).max(initial=0))


def _require_sound_bytecode(content: bytes, name: str) -> None:
    package = str(Path(__file__).resolve().parents[2])
    paths = [package, *filter(None, [os.environ.get("PYTHONPATH")])]
    try:
        done = subprocess.run(
            [sys.executable, "-P", "-c", _PARSE],
            input=content,
            capture_output=True,
            timeout=MOST_SECONDS,
            check=False,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), "JAX_PLATFORMS": "cpu"},
            start_new_session=True,  # an interrupt at the terminal is for this process
        )
    except subprocess.TimeoutExpired as error:
        raise ExportError(
            f"the module does not parse: no answer within {MOST_SECONDS:g} s",
            where=f"{name}: {len(content)} bytes of bytecode",
            fix=_FIX,
        ) from error
    if done.returncode == _NOT_TEXT:
        raise ExportError(
            "the module does not parse: a name in it is not UTF-8",
            where=f"{name}: {len(content)} bytes of bytecode",
            fix=_FIX,
        )
    if done.returncode < 0:
        raise ExportError(
            "the module does not parse: its bytecode is damaged, and the parser was ended by"
            f" {signal.Signals(-done.returncode).name}",
            where=f"{name}: {len(content)} bytes of bytecode",
            fix=_FIX,
        )
