"""A machine in a YAML file: the round trip, and every way to get it wrong."""

from __future__ import annotations

from pathlib import Path

import pytest

from cost_models import (
    CATALOG,
    CostModelError,
    Hardware,
    format_hardware,
    get_hardware,
    load_hardware,
    parse_hardware,
    save_hardware,
)


@pytest.mark.parametrize("hardware", CATALOG, ids=lambda hardware: hardware.name)
def test_a_machine_written_and_read_is_the_same_machine(hardware: Hardware, tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    save_hardware(hardware, path)
    assert load_hardware(path) == hardware
    assert parse_hardware(format_hardware(hardware)) == hardware
    assert [entry.name for entry in tmp_path.iterdir()] == ["machine.yaml"]


def h100_with(*replacements: tuple[str, str]) -> str:
    text = format_hardware(get_hardware("h100"))
    for old, new in replacements:
        assert old in text
        text = text.replace(old, new, 1)
    return text


def problems_of(text: str) -> list[str]:
    with pytest.raises(CostModelError) as caught:
        parse_hardware(text)
    count, *lines = caught.value.what.splitlines()
    noun = "problem" if len(lines) == 1 else "problems"
    assert count == f"{len(lines)} {noun} in the hardware description:"
    return [line.removeprefix("  - ") for line in lines]


@pytest.mark.parametrize(
    ("old", "new", "problem"),
    [
        (
            "3350000000000.0",
            "3.35 TB/s",
            "`memory.bytes_per_second` is '3.35 TB/s'; expected bytes per second, "
            "so write 3350000000000.0",
        ),
        (
            "450000000000.0",
            "400 Gbps",
            "`switch.link.bytes_per_second` is '400 Gbps'; expected bytes per second, "
            "so write 50000000000.0",
        ),
        (
            "450000000000.0",
            "400 GBps",
            "`switch.link.bytes_per_second` is '400 GBps'; expected bytes per second, "
            "so write 400000000000.0",
        ),
        (
            "80000000000",
            "80 GiB",
            "`memory.capacity_bytes` is '80 GiB'; expected bytes, so write 85899345920",
        ),
        (
            "80000000000",
            "80",
            "`memory.capacity_bytes` is 80; expected bytes between 1e+06 and 1e+15, "
            "such as 16_000_000_000",
        ),
        (
            "989000000000000.0",
            "989 TFLOPS",
            "`compute.matmul.bfloat16` is '989 TFLOPS'; expected FLOP per second, "
            "so write 989000000000000.0",
        ),
        (
            "collective_launch_seconds: 8.0e-06",
            "collective_launch_seconds: 8 us",
            "`collective_launch_seconds` is '8 us'; expected seconds, so write 8.0e-06",
        ),
        (
            "450000000000.0",
            "90 GB",
            "`switch.link.bytes_per_second` is '90 GB'; expected bytes per second, "
            "not bytes, such as 819.0e+9",
        ),
        (
            "3350000000000.0",
            "3350 GHz",
            "`memory.bytes_per_second` is '3350 GHz'; expected bytes per second, "
            "not cycles per second, such as 819.0e+9",
        ),
        (
            "clock_hertz: 1830000000.0",
            "clock_hertz: 1.83 GHz",
            "`compute.clock_hertz` is '1.83 GHz'; expected cycles per second, "
            "so write 1830000000.0",
        ),
        (
            "efficiency: 0.82",
            "efficiency: 82%",
            "`switch.link.efficiency` is '82%'; expected a fraction of the peak, so write 0.82",
        ),
        (
            "num_slices: null",
            "num_slices: two",
            "`num_slices` is 'two'; expected a whole number, such as 8",
        ),
        (
            "- tree",
            "- trees",
            "`algorithms[1]` is 'trees'; expected one of levels, ring, tree, doubling, in-switch",
        ),
        (
            "efficiency: 0.82",
            "efficiency: 82",
            "`switch.link.efficiency` is 82; expected a fraction of the peak between 0.001 and 1, "
            "such as 0.9",
        ),
        ("backend: gpu", "backend: npu", "`backend` is 'npu'; expected one of cpu, tpu, gpu"),
        (
            "has_reduce_scatter: true",
            "has_reduce_scatter: 1",
            "`has_reduce_scatter` is 1; expected true or false",
        ),
        ("name: h100", "name:", "`name` is None; expected text"),
        (
            "- 16\n  - 16\n  - 16",
            "- 16",
            "`compute.matmul_tile` is [16]; expected a list of 3",
        ),
        (
            "domain_size: 8",
            "domain_size: 8.5",
            "`switch.domain_size` is 8.5; expected a whole number",
        ),
        (
            "domain_size: 8",
            "domain_size: true",
            "`switch.domain_size` is True; expected a whole number, such as 8",
        ),
        (
            "torus: null",
            "torus: 3",
            "`torus` is 3; expected a section with fields",
        ),
    ],
)
def test_a_wrong_field_is_named_with_what_to_write(old: str, new: str, problem: str) -> None:
    assert problems_of(h100_with((old, new))) == [problem]


def test_every_wrong_field_is_told_at_once() -> None:
    text = h100_with(
        ("3350000000000.0", "3350"), ("domain_size", "domain_sise"), ("backend: gpu\n", "")
    )
    assert problems_of(text) == [
        "`backend` is missing",
        "`memory.bytes_per_second` is 3350; expected bytes per second between 1e+06 and 1e+15, "
        "such as 819.0e+9",
        "`switch.domain_sise` is not a field; `switch` has link, domain_size, "
        "reduction_efficiency, source",
        "`switch.domain_size` is missing; expected a whole number, such as 8",
    ]


def test_fields_that_contradict_one_another_are_told_as_well() -> None:
    assert problems_of(h100_with(("reserved_bytes: 0", "reserved_bytes: 90000000000"))) == [
        "`memory.reserved_bytes` is 90000000000; expected less than `memory.capacity_bytes`, "
        "80000000000"
    ]


def test_what_has_a_default_may_be_left_out() -> None:
    text = h100_with(
        ("  clock_hertz: 1830000000.0\n", ""),
        ("num_slices: null\n", ""),
        ("  reduction_efficiency: 0.61\n", ""),
        ("algorithms:\n- ring\n- tree\n- in-switch\n", ""),
    )
    hardware = parse_hardware(text)
    assert hardware.switch is not None
    assert (hardware.compute.clock_hertz, hardware.num_slices) == (None, None)
    assert hardware.switch.reduction_efficiency is None
    assert hardware.algorithms == ("levels",)


def test_an_exponent_without_its_sign_is_read_as_a_number() -> None:
    assert parse_hardware(h100_with(("3350000000000.0", "3.35e12"))) == get_hardware("h100")


@pytest.mark.parametrize("text", ["", "- 1\n- 2\n", "h100"])
def test_text_that_is_no_section_is_no_machine(text: str) -> None:
    (problem,) = problems_of(text)
    assert problem.endswith("expected a section with fields")


@pytest.mark.parametrize("text", ["name: [", "name: a\nname: b\n", "name: !!python/name:os.abort"])
def test_text_that_is_no_safe_yaml_is_refused(text: str) -> None:
    with pytest.raises(CostModelError, match="the text is no YAML"):
        parse_hardware(text)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(CostModelError) as caught:
        load_hardware(path)
    assert caught.value.where == f"hardware file {path}"


def test_an_error_in_a_file_names_the_file(tmp_path: Path) -> None:
    path = tmp_path / "machine.yaml"
    path.write_text(h100_with(("backend: gpu", "backend: npu")), encoding="utf-8")
    with pytest.raises(CostModelError) as caught:
        load_hardware(path)
    assert caught.value.where == f"hardware file {path}"


def test_writing_where_no_directory_is_says_so(tmp_path: Path) -> None:
    with pytest.raises(CostModelError, match="the file cannot be written"):
        save_hardware(get_hardware("h100"), tmp_path / "none" / "machine.yaml")
