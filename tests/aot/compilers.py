"""Compilers that answer at once."""

from __future__ import annotations

from collections.abc import Callable

from autoshard.aot.compile_process import CompiledAhead, CompileFailure, CompileRequest, Underway
from autoshard.aot.program import AheadProgram

Outcome = CompiledAhead | CompileFailure


def at_once(
    run: Callable[[AheadProgram, CompileRequest], Outcome],
) -> Callable[[AheadProgram, CompileRequest], Underway[Outcome]]:
    """In the place of `compiling`: a compiler that has answered before it yields."""

    def compiling(program: AheadProgram, request: CompileRequest) -> Underway[Outcome]:
        found = run(program, request)
        yield
        return found

    return compiling
