"""Adding a chip is one data file and one `replace(...)`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pytest

import autoshard.backends.known as known_models
from autoshard.backends import MODELS, Backend, backend_for, get_backend, load_chip, replace
from cost_models import get_hardware
from tests.planner.graphs import Program, plan

ROOMY = """
chip: v9
title: null
is_probed: false
memory:
  vmem_bytes: {value: 117440512, unit: bytes, probe: a chain of matmuls,
    compiler: libtpu 0.0.52, date: 2026-11-23}
  matmul_results_in_vmem: {value: true, unit: boolean, probe: a chain of matmuls,
    compiler: libtpu 0.0.52, date: 2026-11-23}
"""


@pytest.fixture
def chip(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Backend]:
    path = tmp_path / "tpu-v9.yaml"
    path.write_text(ROOMY, encoding="utf-8")
    added = replace(get_backend("tpu"), load_chip(path))
    monkeypatch.setattr(known_models, "MODELS", {**MODELS, "tpu-v9": lambda: added})
    yield added
    get_backend.cache_clear()


def test_a_chip_has_the_fields_of_its_file_and_all_others_of_what_it_replaces(
    chip: Backend,
) -> None:
    tpu = get_backend("tpu")
    assert (chip.name, chip.platform, chip.chip) == ("tpu-v9", "tpu", "v9")
    assert chip.memory == dataclasses.replace(
        tpu.memory, vmem_bytes=112 * 2**20, matmul_results_in_vmem=True
    )
    assert (chip.fusion, chip.layout) == (tpu.fusion, tpu.layout)
    assert (chip.collectives, chip.schedule) == (tpu.collectives, tpu.schedule)
    assert chip.records["memory.vmem_bytes"].probe == "a chain of matmuls"
    assert chip.records["memory.cse_reshards"] == tpu.records["memory.cse_reshards"]


def test_a_machine_that_names_the_chip_is_planned_with_it(chip: Backend) -> None:
    program = Program()
    x, w = program.argument(512, 512), program.argument(512, 512)
    graph = program.graph(program.sum(program.matmul(program.matmul(x, w), w)))
    old = dataclasses.replace(get_hardware("tpu-v5e"), name="tpu-v9", compiler=None)
    new = dataclasses.replace(old, compiler="tpu-v9")
    assert backend_for(new) is chip
    assert backend_for(new).describe(new.name) == "generic TPU, not probed for v9"
    before, after = (plan(graph, "x=4", hardware=one).account.memory for one in (old, new))
    assert after.peak_bytes < before.peak_bytes  # the first product lies in VMEM


def test_a_probed_chip_is_called_by_its_compiler(tmp_path: Path) -> None:
    path = tmp_path / "tpu-v9.yaml"
    path.write_text(ROOMY.replace("is_probed: false", "is_probed: true"), encoding="utf-8")
    chip = replace(get_backend("tpu"), load_chip(path))
    assert chip.describe("tpu-v9") == "libtpu 0.0.42, 0.0.52 for v9"
