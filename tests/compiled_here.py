"""Plans are verified without the process that usually compiles: it imports JAX for half a second.

`tests/aot` tests that process. A compile here is the same function, on the devices of these tests.
"""

from __future__ import annotations

import tempfile
from pathlib import Path

import jax
import pytest

from autoshard.aot import child, compile_process
from autoshard.aot.compile_process import CompiledAhead, CompileFailure, CompileRequest, Underway
from autoshard.aot.program import AheadProgram


def compiling(
    program: AheadProgram, request: CompileRequest
) -> Underway[CompiledAhead | CompileFailure]:
    """Compile in this process; for other devices than its own in another one, as usual."""
    if request.target.platform or program.num_devices > jax.device_count():
        return (yield from compile_process.compiling(program, request))
    yield
    with tempfile.TemporaryDirectory() as name:
        asked = compile_process._as_json(program, request)
        answer = child.compile_program(program.module, asked, Path(name))
        text = (Path(name) / child.COMPILED).read_text()
    return CompiledAhead(text=text, seconds=1.0, **answer)


@pytest.fixture
def compiled_here(monkeypatch: pytest.MonkeyPatch) -> None:
    """Compiles of the test are made in its process."""
    monkeypatch.setattr("autoshard.aot.kept_compiles.compiling", compiling)
