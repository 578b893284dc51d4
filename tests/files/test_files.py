"""Files are read within limits, and written whole or not at all."""

from __future__ import annotations

import gzip
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from autoshard.files import read_file, require_writable, write_file

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("autoshard", "cost_models", "solvers")


@pytest.mark.parametrize(
    ("name", "packages"),
    [
        ("files.py", PACKAGES),
        ("printable.py", PACKAGES),
        ("yaml_document.py", ("autoshard", "cost_models")),
    ],
)
def test_packages_that_stand_alone_have_the_same_text(name: str, packages: tuple[str, ...]) -> None:
    assert len({(ROOT / package / name).read_text() for package in packages}) == 1


def refusal(path: Path, **limits: float) -> str | None:
    with pytest.raises(OSError, match=r".") as caught:
        read_file(path, **limits)  # type: ignore[arg-type]
    return caught.value.strerror


def test_only_a_regular_file_is_read(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    began = time.monotonic()
    assert refusal(pipe) == "it is a pipe, not a regular file"
    assert refusal(Path("/dev/zero")) == "it is a device, not a regular file"
    assert refusal(tmp_path) == "Is a directory"
    server = socket.socket(socket.AF_UNIX)
    os.chdir(tmp_path)  # the name of a socket is short
    server.bind("socket")
    assert refusal(tmp_path / "socket") == "No such device or address"
    server.close()
    assert refusal(tmp_path / "gone") == "No such file or directory"
    assert refusal(tmp_path / ("x" * 300)) == "File name too long"
    assert refusal(tmp_path / "a\0b") == "that is no name of a file: embedded null byte"
    assert time.monotonic() - began < 5


def test_a_file_is_read_up_to_the_limit_and_not_one_byte_more(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"x" * 100)
    assert read_file(path, most_bytes=100) == b"x" * 100
    assert refusal(path, most_bytes=99) == "it holds more than 99 bytes"


def test_what_is_unpacked_counts_and_not_what_is_stored(tmp_path: Path) -> None:
    path = tmp_path / "bomb.gz"
    path.write_bytes(gzip.compress(bytes(1 << 26)))
    assert path.stat().st_size < 1 << 17
    assert refusal(path, most_bytes=1 << 20) == "it holds more than 1,048,576 bytes"
    assert len(read_file(path, most_bytes=1 << 26)) == 1 << 26


def test_a_file_of_several_gzip_members_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "two.gz"
    path.write_bytes(gzip.compress(b"one") + gzip.compress(b"two"))
    assert read_file(path) == b"onetwo"


@pytest.mark.parametrize("keep", [3, 12, -1, -6])
def test_a_damaged_gzip_file_is_told(tmp_path: Path, keep: int) -> None:
    path = tmp_path / "cut.gz"
    path.write_bytes(gzip.compress(os.urandom(100))[:keep])
    assert (refusal(path) or "").startswith("it cannot be unpacked: ")


def test_reading_ends_when_time_is_up(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(10))
    with pytest.raises(TimeoutError) as caught:
        read_file(path, until=time.monotonic() - 1)
    assert caught.value.strerror == "time was up before all of it was read"


def test_a_file_is_replaced_with_its_mode_kept_and_nothing_left_beside_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(b"old")
    path.chmod(0o640)
    write_file(path, b"new")
    assert path.read_bytes() == b"new"
    assert path.stat().st_mode & 0o777 == 0o640
    assert [entry.name for entry in tmp_path.iterdir()] == ["file"]


def test_a_new_file_has_the_mode_that_the_user_gives_new_files(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write_file(tmp_path / "file", b"")
    finally:
        os.umask(before)
    assert (tmp_path / "file").stat().st_mode & 0o777 == 0o640


def test_a_link_is_followed_and_stays_one(tmp_path: Path) -> None:
    (tmp_path / "real").write_bytes(b"old")
    (tmp_path / "link").symlink_to("real")
    write_file(tmp_path / "link", b"new")
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "real").read_bytes() == b"new"


@pytest.mark.parametrize("check", [lambda path: write_file(path, b""), require_writable])
def test_only_a_regular_file_is_replaced(tmp_path: Path, check: object) -> None:
    assert callable(check)
    os.mkfifo(tmp_path / "pipe")
    for path, what in (
        (tmp_path / "pipe", "it is a pipe, not a regular file"),
        (Path("/dev/null"), "it is a device, not a regular file"),
        (tmp_path, "it is a folder, not a regular file"),
        (tmp_path / "gone" / "file", "No such file or directory"),
        (tmp_path / ("x" * 256), "File name too long"),
    ):
        with pytest.raises(OSError, match=r".") as caught:
            check(path)
        assert caught.value.strerror == what
    assert [entry.name for entry in tmp_path.iterdir()] == ["pipe"]


def test_the_longest_name_there_can_be_is_written(tmp_path: Path) -> None:
    write_file(tmp_path / ("x" * 255), b"here")
    assert (tmp_path / ("x" * 255)).read_bytes() == b"here"


def test_a_failed_write_leaves_the_old_file_and_no_draft(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "file").write_bytes(b"old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space left"):
        write_file(tmp_path / "file", b"new")
    assert [entry.read_bytes() for entry in tmp_path.iterdir()] == [b"old"]


KILLED = """
import os, signal, sys
from autoshard import files
os.fsync = lambda handle: (print("here", flush=True), signal.pause())
files.write_file(sys.argv[1], b"new")
"""


def test_the_draft_of_a_killed_process_is_removed_and_that_of_a_living_one_is_not(
    tmp_path: Path,
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", KILLED, tmp_path / "theirs"], cwd=ROOT, stdout=subprocess.PIPE
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == b"here\n"
        write_file(tmp_path / "ours", b"new")
        names = sorted(entry.name for entry in tmp_path.iterdir())
        assert [name.startswith(".autoshard-") for name in names] == [True, False]
        process.send_signal(signal.SIGKILL)
    assert sorted(entry.name for entry in tmp_path.iterdir()) == names
    write_file(tmp_path / "ours", b"newer")
    assert [entry.name for entry in tmp_path.iterdir()] == ["ours"]


def test_files_that_only_look_like_drafts_are_left_alone(tmp_path: Path) -> None:
    (tmp_path / "precious").write_bytes(b"here")
    (tmp_path / ".autoshard-1.tmp").symlink_to("precious")
    (tmp_path / "own.json.tmp").write_bytes(b"a user's")
    os.mkfifo(tmp_path / ".autoshard-2.tmp")
    write_file(tmp_path / "own.json", b"new")
    assert (tmp_path / "precious").read_bytes() == b"here"
    assert (tmp_path / ".autoshard-1.tmp").is_symlink()
    assert (tmp_path / "own.json.tmp").read_bytes() == b"a user's"
