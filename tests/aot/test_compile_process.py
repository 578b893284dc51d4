"""A compiler in a process of its own: what it answers, and how its death is told."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest

import autoshard
from autoshard.aot import child
from autoshard.aot.compile_process import (
    CompiledAhead,
    CompileFailure,
    CompileRequest,
    run_compiler,
)
from autoshard.aot.program import AheadProgram, Lowerer, ShardedProgram
from autoshard.aot.targets import parse_target


def lowered(mesh: str = "data=2,model=4") -> AheadProgram:
    def scaled(w: jax.Array, x: jax.Array) -> Any:
        return jnp.tanh(x @ w)

    float32 = jnp.float32
    plan = autoshard.optimize(
        scaled,
        jax.ShapeDtypeStruct((64, 32), float32),
        jax.ShapeDtypeStruct((32, 64), float32),
        mesh=mesh,
        hardware="cpu-host",
        baselines=False,
    )
    assert plan.traced is not None
    constraints = plan.constraints
    return Lowerer(ShardedProgram.of(plan.data, plan.traced), "cpu").lower(constraints)


def request(*, timeout_seconds: float = 120.0, **options: str) -> CompileRequest:
    return CompileRequest(
        target=parse_target("local"),
        platform="cpu",
        mesh_shape=(2, 4),
        device_order=None,
        compiler_options=options,
        timeout_seconds=timeout_seconds,
    )


def test_a_program_comes_back_as_hlo_with_its_memory() -> None:
    found = run_compiler(lowered(), request())
    assert isinstance(found, CompiledAhead)
    assert found.text.startswith("HloModule")
    assert "num_partitions=8" in found.text
    assert set(found.memory) == set(child.MEMORY_FIELDS)
    assert not found.bytes_by_space(), "a compiler for hosts writes no report"
    assert found.allocated_bytes == found.kept_bytes + found.memory["temp"]
    assert found.versions["jax"] == jax.__version__


def test_a_compiler_for_tpus_gets_no_flags_of_other_devices(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """libtpu ends its process at a flag that it does not know."""
    given: dict[str, str] = {}

    def started(*_: object, env: dict[str, str], **__: object) -> None:
        given.update(env)
        raise FileNotFoundError

    monkeypatch.setattr(subprocess, "Popen", started)
    monkeypatch.setenv("XLA_FLAGS", "--xla_cpu_no_such=1 --xla_dump_to=here --xla_gpu_no_such=1")
    with pytest.raises(FileNotFoundError):
        run_compiler(lowered(), replace(request(), target=parse_target("v5e:2x4"), platform="tpu"))
    assert given["XLA_FLAGS"] == "--xla_dump_to=here"


def test_an_unknown_flag_is_the_compilers_refusal() -> None:
    found = run_compiler(lowered(), request(xla_no_such_flag="1"))
    assert isinstance(found, CompileFailure)
    assert found.kind == "refused"
    assert "xla_no_such_flag" in found.what


def test_a_compiler_that_takes_too_long_is_ended() -> None:
    found = run_compiler(lowered(), request(timeout_seconds=0.05))
    assert isinstance(found, CompileFailure)
    assert (found.kind, found.what) == ("timed out", "no answer within 0.05 s")


@pytest.mark.parametrize(
    ("death", "what"),
    [
        ("os.kill(os.getpid(), signal.SIGSEGV)", "its process was ended by SIGSEGV"),
        ("os._exit(3)", "its process ended with exit code 3"),
    ],
)
def test_a_crash_is_told_with_its_signal_and_last_words(
    death: str, what: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    script = tmp_path / "dies.py"
    script.write_text(
        "import os, signal, sys\n"
        "print('WARNING: All log messages before absl::InitializeLog()', file=sys.stderr)\n"
        "print('F1122 propagation.cc:12] Check failed: n > 0', file=sys.stderr, flush=True)\n"
        f"{death}\n"
    )
    monkeypatch.setattr(child, "__file__", str(script))
    program = AheadProgram(module=b"", num_devices=8, free_inputs=(), free_outputs=())
    found = run_compiler(program, request())
    assert isinstance(found, CompileFailure)
    assert (found.kind, found.what) == ("crashed", what)
    assert found.last_lines == ("F1122 propagation.cc:12] Check failed: n > 0",)


def test_a_compiler_that_nobody_waits_for_ends(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / child.REQUEST)  # nobody ever writes to it
    done = subprocess.run(
        [sys.executable, "-P", child.__file__, str(tmp_path)],
        stdin=subprocess.DEVNULL,
        env={**os.environ, "JAX_PLATFORMS": "cpu"},
        timeout=120,
        check=False,
    )
    assert done.returncode == 1
    assert not (tmp_path / child.ANSWER).exists()


class Unreadable:
    """A compiled program that jaxlib is too old to read."""

    def hlo_modules(self) -> list[Any]:
        raise ValueError("async-update instruction should have 1 operands")


def test_a_program_that_jaxlib_cannot_read_is_read_from_the_compilers_dump(tmp_path: Path) -> None:
    (tmp_path / "module_0000.jit_f.after_codegen.txt").write_text("HloModule jit_f")
    (tmp_path / "module_0000.jit_f.after_optimizations.txt").write_text("HloModule not_this")
    assert child._text_of(Unreadable(), tmp_path) == "HloModule jit_f"


def test_without_a_dump_the_compilers_release_is_told_to_be_too_new(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="cannot read the program: async-update instruction"):
        child._text_of(Unreadable(), tmp_path)
