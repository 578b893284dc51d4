"""Compiled programs kept in a folder: what counts as the same, and what is not kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from autoshard.aot import kept_compiles
from autoshard.aot.compile_process import CompiledAhead, CompileFailure, CompileRequest
from autoshard.aot.kept_compiles import kept_or_compiled
from autoshard.aot.program import AheadProgram
from autoshard.aot.targets import parse_target
from autoshard.errors import InputError
from tests.aot.compilers import at_once

REQUEST = CompileRequest(
    target=parse_target("local"), platform="cpu", mesh_shape=(2,), device_order=None
)


def program(name: str = "main", location: str = "unknown", num_devices: int = 2) -> AheadProgram:
    text = f"module {{ func.func @{name}(%0: tensor<2xf32>) -> tensor<2xf32> {{"
    text += f" return %0 : tensor<2xf32> loc({location}) }} }}"
    return AheadProgram(
        module=text.encode(),
        num_devices=num_devices,
        free_inputs=(False,),
        free_outputs=(False,),
    )


@pytest.fixture
def compiles(monkeypatch: pytest.MonkeyPatch) -> list[AheadProgram]:
    """Every program that is really compiled; the compiler answers with their number."""
    seen: list[AheadProgram] = []

    def run(program: AheadProgram, _: CompileRequest) -> CompiledAhead:
        seen.append(program)
        return CompiledAhead(
            text=f"HloModule number_{len(seen)}",
            memory={"temp": len(seen)},
            memory_report="Memory Space: default (color=0)\nTotal bytes: 1\n" * 1000,
            device_kind="cpu",
            device_order="as numbered",
            versions={"jax": "0"},
            seconds=1.5,
        )

    monkeypatch.setattr(kept_compiles, "compiling", at_once(run))
    return seen


def test_a_program_that_is_kept_comes_back_as_it_was(
    compiles: list[AheadProgram], tmp_path: Path
) -> None:
    first = kept_or_compiled(program(), REQUEST, tmp_path / "new" / "folder")
    again = kept_or_compiled(program(), REQUEST, tmp_path / "new" / "folder")
    assert again == first
    assert len(compiles) == 1


def test_locations_and_limits_make_no_other_program(
    compiles: list[AheadProgram], tmp_path: Path
) -> None:
    kept_or_compiled(program(), REQUEST, tmp_path)
    kept_or_compiled(program(location='"a.py":3:4'), REQUEST, tmp_path)
    kept_or_compiled(program(), replace(REQUEST, timeout_seconds=1.0), tmp_path)
    assert len(compiles) == 1


@pytest.mark.parametrize(
    "changed",
    [
        {"target": parse_target("v5e:2x4")},
        {"mesh_shape": (1, 2)},
        {"device_order": (1, 0)},
        {"compiler_options": {"xla_flag": "1"}},
    ],
    ids=lambda changed: next(iter(changed)),
)
def test_another_machine_mesh_or_option_is_compiled_anew(
    compiles: list[AheadProgram], tmp_path: Path, changed: dict[str, Any]
) -> None:
    kept_or_compiled(program(), REQUEST, tmp_path)
    kept_or_compiled(program(), replace(REQUEST, **changed), tmp_path)
    assert len(compiles) == 2


def test_another_program_or_flag_is_compiled_anew(
    compiles: list[AheadProgram], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept_or_compiled(program(), REQUEST, tmp_path)
    kept_or_compiled(program("other"), REQUEST, tmp_path)
    monkeypatch.setenv("LIBTPU_INIT_ARGS", "--xla_dump_to=elsewhere")
    kept_or_compiled(program(), REQUEST, tmp_path)
    assert len(compiles) == 3


def test_without_a_folder_nothing_is_kept(compiles: list[AheadProgram]) -> None:
    kept_or_compiled(program(), REQUEST, None)
    kept_or_compiled(program(), REQUEST, None)
    assert len(compiles) == 2


def test_what_fails_is_not_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    failure = CompileFailure(kind="timed out", what="no answer within 1 s")
    monkeypatch.setattr(kept_compiles, "compiling", at_once(lambda *_: failure))
    assert kept_or_compiled(program(), REQUEST, tmp_path) == failure
    assert list(tmp_path.iterdir()) == []


def test_what_is_cut_short_or_something_else_is_compiled_anew(
    compiles: list[AheadProgram], tmp_path: Path
) -> None:
    kept_or_compiled(program(), REQUEST, tmp_path)
    (kept,) = tmp_path.iterdir()
    for content in (kept.read_bytes()[:-9], b"no gzip", b""):
        kept.write_bytes(content)
        kept_or_compiled(program(), REQUEST, tmp_path)
    assert len(compiles) == 4


def test_a_folder_that_is_a_file_says_so(compiles: list[AheadProgram], tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="cannot be kept") as caught:
        kept_or_compiled(program(), REQUEST, tmp_path / "file")
    assert "name a folder that you may write to" in str(caught.value)
    assert len(compiles) == 1
