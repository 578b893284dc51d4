"""Records of probes in a chip's file: others stay, names are checked, a failure changes nothing."""

from __future__ import annotations

import datetime
from pathlib import Path

import pytest

from autoshard.backends import Probed, load_chip
from autoshard.errors import InputError
from experiments.probes import record
from experiments.probes.bench import Bench
from experiments.probes.probe import Probe
from experiments.probes.record import Finding, known_names, recorded, write_records

TODAY = datetime.date(2026, 11, 23)
CHIP = """\
chip: v9
title: null
is_probed: false
memory:
  vmem_bytes: {value: 1024, unit: bytes, probe: a matmul, compiler: libtpu 0.0.42, date: 2026-11-01}
schedule:
  async_collectives: {value: [all-gather], unit: kinds, probe: a matmul, compiler: libtpu 0.0.42, \
date: 2026-11-01}
"""


def measured(_: Bench) -> int:
    """A matmul that is read at once.

    More of it.
    """
    return 0


PROBE = Probe(record="memory.vmem_bytes", unit="bytes", measure=measured)
KNOWN = {
    "memory.vmem_bytes": Probed(
        value=1024, unit="bytes", probe="a matmul", compiler="libtpu 0.0.42", date=TODAY
    )
}


def chip_file(folder: Path) -> Path:
    path = folder / "tpu-v9.yaml"
    path.write_text(CHIP)
    return path


def found(value: int = 2048) -> dict[str, Probed]:
    return recorded([Finding(probe=PROBE, value=value)], KNOWN, "libtpu 0.0.52", TODAY)


def test_a_record_names_its_program_its_compiler_and_its_date() -> None:
    assert found() == {
        "memory.vmem_bytes": Probed(
            value=2048,
            unit="bytes",
            probe="A matmul that is read at once (tests.probes.test_record.measured)",
            compiler="libtpu 0.0.52",
            date=TODAY,
        )
    }


def test_an_inconclusive_probe_keeps_the_value_and_says_that_it_is_assumed() -> None:
    finding = Finding(probe=PROBE, value=None, reason="no result lies there")
    made = recorded([finding], KNOWN, "libtpu 0.0.52", TODAY)["memory.vmem_bytes"]
    assert (made.value, made.compiler) == (1024, None)
    assert made.probe.startswith("none: inconclusive with libtpu 0.0.52: no result lies there; ")


def test_other_records_stay_as_they_were(tmp_path: Path) -> None:
    path = chip_file(tmp_path)
    before = load_chip(path)
    write_records(path, found(), is_complete=False)
    after = load_chip(path)
    assert after.records["memory.vmem_bytes"].value == 2048
    other = "schedule.async_collectives"
    assert after.records[other] == before.records[other]
    assert (after.chip, after.title, after.is_probed) == ("v9", None, False)


def test_a_chip_counts_as_probed_once_all_probes_ran(tmp_path: Path) -> None:
    path = chip_file(tmp_path)
    write_records(path, found(), is_complete=True)
    assert load_chip(path).is_probed
    write_records(path, found(), is_complete=False)
    assert load_chip(path).is_probed, "one probe more does not undo it"


def test_an_unknown_name_is_refused_and_the_file_stays(tmp_path: Path) -> None:
    path = chip_file(tmp_path)
    wrong = {"memory.vmem_kilobytes": found()["memory.vmem_bytes"]}
    with pytest.raises(InputError) as caught:
        write_records(path, wrong, is_complete=True)
    assert caught.value.what == "no policy has memory.vmem_kilobytes"
    assert path.read_text() == CHIP


def test_a_write_that_fails_leaves_the_file_as_it_was(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = chip_file(tmp_path)

    def full(_: Path, __: bytes) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(record, "write_file", full)
    with pytest.raises(InputError, match="cannot be written: No space left on device"):
        write_records(path, found(), is_complete=True)
    assert path.read_text() == CHIP
    assert [child.name for child in tmp_path.iterdir()] == [path.name]


def test_names_are_those_of_policies() -> None:
    assert "memory.vmem_bytes" in known_names()
    assert "schedule.async_collectives" in known_names()
