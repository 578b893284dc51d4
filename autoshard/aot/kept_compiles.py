"""Compiled programs kept in a folder, so that no program is compiled twice for one machine."""

from __future__ import annotations

import dataclasses
import gzip
import hashlib
import json
import os
from pathlib import Path

from autoshard.aot.compile_process import (
    CompiledAhead,
    CompileFailure,
    CompileRequest,
    Underway,
    compiling,
    finished,
)
from autoshard.aot.program import AheadProgram
from autoshard.errors import InputError
from autoshard.files import read_file, write_file
from autoshard.mlir_modules import module_context, module_text, parse_module
from autoshard.plans.json_records import RecordReader
from autoshard.version import installed_version

_FLAGS = ("XLA_FLAGS", "LIBTPU_INIT_ARGS")
_COMPILERS = ("jax", "jaxlib", "libtpu", "jax-cuda13-plugin", "jax-cuda13-pjrt", "nvidia-cuda-nvcc")


def kept_or_compiled(
    program: AheadProgram, request: CompileRequest, folder: Path | None
) -> CompiledAhead | CompileFailure:
    """What the compiler once made of the same program for the same machine, or makes now.

    Programs are the same if their text without locations is; so the names of ops in what is kept
    may be those of an earlier text, but for the paths of equations in them. Only what compiled is
    kept.

    Args:
        program: To compile.
        request: For what and how.
        folder: Where compiled programs are kept; None keeps none.

    Raises:
        InputError: The folder cannot be written to.
    """
    return finished(kept_or_compiling(program, request, folder))


def kept_or_compiling(
    program: AheadProgram, request: CompileRequest, folder: Path | None
) -> Underway[CompiledAhead | CompileFailure]:
    """The same, underway once this yields."""
    if folder is None:
        return (yield from compiling(program, request))
    path = folder / f"{_key(program, request)}.json.gz"
    kept = read_kept(path)
    if kept is not None:
        return kept
    outcome = yield from compiling(program, request)
    if isinstance(outcome, CompiledAhead):
        write_kept(path, outcome)
    return outcome


def _key(program: AheadProgram, request: CompileRequest) -> str:
    """The same for the same text, machine, options and compilers; 64 hexadecimal digits."""
    with module_context():
        text = module_text(parse_module(program.module))
    asked = {
        "program": text,
        "free": [program.free_inputs, program.free_outputs],
        "request": dataclasses.asdict(dataclasses.replace(request, timeout_seconds=0.0)),
        "flags": [os.environ.get(name) for name in _FLAGS],
        "versions": [installed_version(name) for name in _COMPILERS],
    }
    if program.names_equations:  # what is kept without them has other names
        asked["names"] = "equations"
    return hashlib.sha256(json.dumps(asked, sort_keys=True, default=str).encode()).hexdigest()


def read_kept(path: Path) -> CompiledAhead | None:
    """None where nothing is kept, or what is kept cannot be read."""
    try:
        read = json.loads(read_file(path))
    except (OSError, ValueError, RecursionError):
        return None
    return RecordReader().record(CompiledAhead, read)


def write_kept(path: Path, compiled: CompiledAhead) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_file(path, gzip.compress(json.dumps(dataclasses.asdict(compiled)).encode()))
    except OSError as error:
        raise InputError(
            f"the compiled program cannot be kept: {error.strerror}",
            where=f'keep_in="{path.parent}"',
            fix="name a folder that you may write to",
        ) from error
