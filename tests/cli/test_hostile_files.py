"""Files that would hang, hide or run something: each command ends at once with one message."""

from __future__ import annotations

import gzip
import json
import os
import time
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.plans.plan_json import dump_plan
from tests.plan.plans import gpt_plan

READERS = {
    "plan": ("report", "{}"),
    "plan to compare": ("diff", "{}", "{}"),
    "hardware": ("plan", "model.mlir", "--mesh", "data=8", "--hardware", "{}.yaml"),
    "constraints": ("plan", "train:step", "--mesh", "data=8", "--constraints", "{}"),
    "module": ("plan", "{}.mlir", "--mesh", "data=8"),
    "instance": ("solve", "{}", "--timeout", "20"),
}
TRAIN = """
import jax

def step(x):
    return x

def autoshard_args():
    return (jax.ShapeDtypeStruct((8,), "float32"),)
"""

BOMB = 33 * gzip.compress(b"[" * (1 << 24))


@pytest.fixture(autouse=True)
def program(folder: Path) -> None:
    (folder / "train.py").write_text(TRAIN)


def run(reader: str, name: str) -> Result:
    began = time.monotonic()
    done = CliRunner().invoke(main, [word.format(name) for word in READERS[reader]])
    assert time.monotonic() - began < 30
    assert (done.exit_code, done.stdout) == (2, "")
    assert done.stderr.startswith("error: ")
    assert not done.stderr.startswith("error: unexpected ")
    assert len(done.stderr) < 5000
    assert all(line.isprintable() for line in done.stderr.splitlines())
    return done


def made(folder: Path, content: bytes) -> str:
    for suffix in ("", ".yaml", ".mlir"):
        (folder / f"file{suffix}").write_bytes(content)
    return "file"


@pytest.mark.parametrize("reader", READERS)
def test_a_pipe_and_a_device_are_refused(folder: Path, reader: str) -> None:
    for suffix in ("", ".yaml", ".mlir"):
        os.mkfifo(folder / f"pipe{suffix}")
        (folder / f"zero{suffix}").symlink_to("/dev/zero")
    assert "it is a pipe, not a regular file" in run(reader, "pipe").stderr
    assert "it is a device, not a regular file" in run(reader, "zero").stderr


@pytest.mark.parametrize("reader", READERS)
def test_a_small_file_that_unpacks_to_a_large_one_is_refused(folder: Path, reader: str) -> None:
    assert len(BOMB) < 1_000_000
    done = run(reader, made(folder, BOMB))
    assert "it holds more than" in done.stderr or "reading it needs more" in done.stderr


@pytest.mark.parametrize("reader", READERS)
@pytest.mark.parametrize(
    "content",
    [
        b"[" * 100_000,
        b"{a: " * 50_000,
        b'{"a":' * 50_000 + b"1" + b"}" * 50_000,
        b"- " * 400_000,
        b"a: " + b"x" * 900_000,
        b"\x1b[31m\x07" * 1000,
        b"9" * 900_000,
        b"\xff\xfe" * 1000,
        b"",
    ],
    ids=["lists", "flow", "objects", "dashes", "word", "control", "digits", "binary", "empty"],
)
def test_what_is_deep_long_or_no_text_is_refused(folder: Path, reader: str, content: bytes) -> None:
    if (reader, content) == ("constraints", b""):
        pytest.skip("an empty file asks for nothing")
    run(reader, made(folder, content))


@pytest.mark.parametrize("reader", READERS)
def test_a_name_longer_than_any_file_has_is_refused(reader: str) -> None:
    assert "File name too long" in run(reader, "x" * 300).stderr


@pytest.mark.parametrize("option", ["--out", "--html"])
def test_a_file_that_could_not_be_written_is_refused(folder: Path, option: str) -> None:
    (folder / "plan.json").write_text(dump_plan(gpt_plan()))
    commands = {
        "--out": ("plan", "train:step", "--mesh", "data=8", "--out"),
        "--html": ("report", "plan.json", "--html"),
    }
    done = CliRunner().invoke(main, [*commands[option], "x" * 300])
    what = "the file" if option == "--out" else "the page"
    where = "--out " if option == "--out" else ""
    assert (done.exit_code, done.stderr) == (
        2,
        f"error: {what} cannot be written: File name too long\n"
        f"  where: {where}{'x' * 300}\n"
        "  fix: name a file in a folder that exists and that you may write to\n",
    )


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            {"function": "\x1b]0;title\x07step"},
            "`function`: expected text of at most 10,000 printable letters, found"
            ' `"\\u001b]0;title\\u0007step"`',
        ),
        (
            {"hardware": "x" * 100_000},
            "`hardware`: expected text of at most 10,000 printable letters, found"
            f' `"{"x" * 56}...`',
        ),
        (
            {"mesh": '<["d\x1b[2J"=2, "model"=4]>'},
            "`mesh`: expected axes whose names are printable, found"
            ' `"<[\\"d\\u001b[2J\\"=2, \\"model\\"=4]>"`',
        ),
        (
            {"notes": ["\u202eevil"]},
            '`notes[0]`: expected text of at most 10,000 printable letters, found `"\\u202eevil"`',
        ),
    ],
    ids=["control", "long", "axis", "direction"],
)
def test_a_plan_with_text_that_is_no_name_is_refused(
    folder: Path, change: dict[str, object], problem: str
) -> None:
    members = json.loads(dump_plan(gpt_plan())) | change
    (folder / "plan.json").write_text(json.dumps(members))
    done = CliRunner().invoke(main, ["report", "plan.json"])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"\n  - {problem}\n" in done.stderr


@pytest.mark.parametrize("limit", ["inf", "nan", "-1", "0"])
@pytest.mark.parametrize(
    "words",
    [("solve", "x.json", "--timeout"), ("plan", "train:step", "--mesh", "data=8", "--time-limit")],
    ids=["solve", "plan"],
)
def test_a_limit_that_is_never_reached_is_refused(words: tuple[str, ...], limit: str) -> None:
    done = CliRunner().invoke(main, [*words, limit])
    assert (done.exit_code, done.stdout) == (2, "")
    told = (
        f"Invalid value for '{words[-1]}': {float(limit)} is not a finite number."
        if limit in ("inf", "nan")
        else f"Invalid value for '{words[-1]}': {float(limit)} is not in the range x>0."
    )
    assert told in done.stderr


@pytest.mark.parametrize("width", ["10001", "99999999"])
def test_a_width_that_no_terminal_has_is_refused(width: str) -> None:
    done = CliRunner().invoke(main, ["hardware", "--width", width])
    assert (done.exit_code, done.stdout) == (2, "")
    assert f"Invalid value for '--width': {width} is not in the range 20<=x<=10000." in done.stderr
