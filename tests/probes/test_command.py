"""The command: what it runs, and how a number that moved fails."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import click
import pytest
from click.testing import CliRunner

from autoshard.aot.targets import parse_target
from autoshard.backends import get_backend, load_chip
from experiments.probes.__main__ import DATA, PAGE, chosen_probes, compare, find, main
from experiments.probes.bench import Bench, NotCompiledError
from experiments.probes.catalog import PROBES
from experiments.probes.page import format_page
from experiments.probes.probe import InconclusiveError, Probe
from experiments.probes.record import Finding, known_names

BY_NAME = {probe.record: probe for probe in PROBES}


def test_each_probe_finds_another_number_of_a_policy() -> None:
    assert len(BY_NAME) == len(PROBES)
    assert set(BY_NAME) <= set(known_names())


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.record)
def test_each_probe_describes_its_program(probe: Probe) -> None:
    told, _, where = probe.text.partition(" (experiments.probes.")
    assert len(told) > 20
    assert where.endswith(f"{probe.measure.__name__})")


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.record)
def test_units_are_those_of_the_generic_models(probe: Probe) -> None:
    for model in ("tpu", "gpu"):
        assert get_backend(model).records[probe.record].unit == probe.unit


def test_a_number_that_moved_fails_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    record = get_backend("tpu-v5e").records["memory.vmem_bytes"]
    assert isinstance(record.value, int)
    probe = BY_NAME["memory.vmem_bytes"]
    assert compare([Finding(probe=probe, value=record.value)], "tpu-v5e") == 0
    assert capsys.readouterr().out == ""
    assert compare([Finding(probe=probe, value=record.value // 2)], "tpu-v5e") == 1
    assert capsys.readouterr().out == (
        f"FAILED memory.vmem_bytes: recorded {record.value:,} by {record.compiler},"
        f" found {record.value // 2:,}\n"
    )


def test_a_probe_that_no_longer_tells_fails_by_name(capsys: pytest.CaptureFixture[str]) -> None:
    finding = Finding(probe=BY_NAME["memory.vmem_bytes"], value=None, reason="nothing lies there")
    assert compare([finding], "tpu-v5e") == 1
    assert capsys.readouterr().out.endswith("found nothing lies there\n")


def test_a_probe_may_be_inconclusive_and_a_program_may_not_compile() -> None:
    def undecided(_: Bench) -> int:
        raise InconclusiveError("it says both")

    def refused(_: Bench) -> int:
        raise NotCompiledError("crashed: SIGSEGV")

    bench = Bench(target=parse_target("v5e:2x4"))
    probes = [
        Probe(record="memory.vmem_bytes", unit="bytes", measure=measure)
        for measure in (undecided, refused)
    ]
    assert [finding.reason for finding in find(bench, probes)] == [
        "it says both",
        "crashed: SIGSEGV",
    ]


def test_an_unknown_probe_is_refused_before_anything_is_compiled() -> None:
    with pytest.raises(click.UsageError, match=r"no probe is called memory\.colour"):
        chosen_probes(parse_target("v5e:2x4"), ("memory.colour",))
    with pytest.raises(click.UsageError, match=r"memory\.vmem_bytes"):
        chosen_probes(parse_target("8xH100"), ("memory.vmem_bytes",))


def test_list_names_every_probe() -> None:
    told = CliRunner().invoke(main, ["--list"]).output.splitlines()
    assert [line.partition(" ")[0] for line in told] == list(BY_NAME)


def test_the_page_is_what_the_records_say() -> None:
    chips = ("tpu-v4", "tpu-v5e", "tpu-v5p", "tpu-v6e", "tpu7x", "a100", "h100", "b200")
    by_chip = {chip: load_chip(DATA / f"{chip}.yaml").records for chip in chips}
    assert PAGE.read_text() == format_page(PROBES, by_chip), "run python -m experiments.probes"


@pytest.mark.slow
@pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs autoshard[tpu] for its compiler"
)
def test_a_record_of_a_v5e_is_confirmed_by_compiling(tmp_path: Path) -> None:
    name = "layout.num_lanes"
    arguments = ["--target", "v5e:2x4", "--check", "--only", name, "--keep-in", str(tmp_path)]
    told = CliRunner().invoke(main, arguments)
    assert told.exit_code == 0, told.output
    assert told.output.startswith(f"{name}: 128 (")
    assert list(tmp_path.iterdir()), "the compiled program is kept"
