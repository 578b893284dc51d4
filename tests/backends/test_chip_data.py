"""A chip's file: the round trip, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.backends import MODELS, chip_data, format_chip, generic, load_chip
from autoshard.errors import InputError

RECORD = "unit: bytes, probe: a matmul, compiler: libtpu 0.0.52, date: 2026-11-23"
HEADER = "chip: v9\ntitle: null\nis_probed: true\n"


def chip_file(folder: Path, text: str) -> Path:
    path = folder / "tpu-v9.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def problems_of(folder: Path, text: str) -> list[str]:
    path = chip_file(folder, text)
    with pytest.raises(InputError) as caught:
        load_chip(path)
    assert caught.value.where == f"chip data {path}"
    assert (
        caught.value.fix == "write each field of a policy as {value, unit, probe, compiler, date}"
    )
    count, *lines = caught.value.what.splitlines()
    assert count == f"{len(lines)} problem{'s' if len(lines) > 1 else ''}:"
    return [line.removeprefix("  - ") for line in lines]


@pytest.mark.parametrize("name", MODELS)
def test_a_chip_written_and_read_is_the_same_chip(name: str, tmp_path: Path) -> None:
    data = chip_data(name)
    path = tmp_path / f"{name}.yaml"
    path.write_text(format_chip(data), encoding="utf-8")
    assert load_chip(path) == data


@pytest.mark.parametrize("name", MODELS)
def test_every_number_says_what_shows_it(name: str) -> None:
    for path, record in chip_data(name).records.items():
        assert record.unit, path
        assert record.probe, path
        assert (record.compiler is None) == record.probe.startswith("none: "), path


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (f"memory: {{vmem: {{value: 1, {RECORD}}}}}", "`memory.vmem` is unknown; `memory` has "),
        (f"vmem: {{vmem_bytes: {{value: 1, {RECORD}}}}}", "`vmem` is unknown; expected chip, "),
        ("memory: 5", "`memory` is 5; expected a section with fields"),
        ("memory: {vmem_bytes: 5}", "`memory.vmem_bytes` is 5; expected {value, unit, "),
        ("memory: {vmem_bytes: {value: 5}}", "`memory.vmem_bytes` is {'value': 5}; expected {"),
        (
            f"memory: {{vmem_bytes: {{value: 1.5, {RECORD}}}}}",
            "`memory.vmem_bytes.value` is 1.5; expected a whole number",
        ),
        (
            f"memory: {{vmem_bytes: {{value: true, {RECORD}}}}}",
            "`memory.vmem_bytes.value` is True; expected a whole number",
        ),
        (
            f"memory: {{cse_reshards: {{value: 1, {RECORD}}}}}",
            "`memory.cse_reshards.value` is 1; expected true or false",
        ),
        (
            f"memory: {{tight_fragmentation_factor: {{value: null, {RECORD}}}}}",
            "`memory.tight_fragmentation_factor.value` is None; expected a number",
        ),
        (
            f"collectives: {{unwindowed_options: {{value: [[2, 2]], {RECORD}}}}}",
            "`collectives.unwindowed_options.value` is 2; expected text",
        ),
        (
            f"memory: {{vmem_bytes: {{value: 5, {RECORD.replace('2026-11-23', 'today')}}}}}",
            "`memory.vmem_bytes.date` is 'today'; expected a date such as 2026-11-22",
        ),
        (
            f"memory: {{vmem_bytes: {{value: 5, {RECORD.replace('a matmul', '1')}}}}}",
            "`memory.vmem_bytes.probe` is 1; expected text",
        ),
    ],
)
def test_what_is_wrong_in_a_file_is_named_with_its_place(
    text: str, problem: str, tmp_path: Path
) -> None:
    found = problems_of(tmp_path, HEADER + text)
    assert found[0].startswith(problem)
    assert all(one.startswith(problem) for one in found)


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    found = problems_of(tmp_path, "chip: v9\nmemory: {vmem: 1, vmem_bytes: 2}")
    assert [one.partition(" ")[0] for one in found] == [
        "`title`",
        "`is_probed`",
        "`memory.vmem`",
        "`memory.vmem_bytes`",
    ]


def test_a_key_given_twice_is_no_file(tmp_path: Path) -> None:
    path = chip_file(tmp_path, f"{HEADER}chip: v10\n")
    with pytest.raises(InputError, match="keys given twice: chip"):
        load_chip(path)


def test_a_file_that_is_not_there_is_told_by_name(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="No such file") as caught:
        load_chip(tmp_path / "tpu-v9.yaml")
    assert caught.value.where == f"chip data {tmp_path / 'tpu-v9.yaml'}"


def test_a_generic_model_needs_every_field_and_a_title(tmp_path: Path) -> None:
    record = f"memory: {{vmem_bytes: {{value: 5, {RECORD}}}}}"
    data = load_chip(chip_file(tmp_path, HEADER + record))
    with pytest.raises(InputError) as caught:
        generic("tpu", data)
    lines = caught.value.what.splitlines()
    assert "  - `memory.cse_reshards` is missing" in lines
    assert "  - `memory.vmem_bytes` is missing" not in lines
    assert lines[-1] == "  - `title` is null; expected how reports call the generic model"
