"""Some damaged files of every format in each run of the tests; `tests.soak.files` goes on."""

from __future__ import annotations

import json
from itertools import product
from pathlib import Path

import pytest

from tests.soak import files
from tests.soak.files import FORMATS, problems_of, run, write_case


@pytest.mark.parametrize(
    ("name", "number"), [("instance", 0), *product(FORMATS, range(1, 4))]
)  # commands of number 0 are processes of their own
def test_a_damaged_file_gives_an_answer_or_one_readable_error(
    name: str, number: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "MOST_SECONDS", 60.0)  # machines of tests are shared
    monkeypatch.syspath_prepend(str(tmp_path))
    assert list(problems_of(name, number, tmp_path)) == []


def test_equal_numbers_make_equal_files_and_others_other_ones(tmp_path: Path) -> None:
    first, second, third = (
        write_case("plan", number, tmp_path).read_bytes() for number in (5, 5, 6)
    )
    assert first == second != third


CRASHES = """
import json, os, sys
first, count = map(int, sys.argv[-2:])
for number in range(first, first + count):
    print(json.dumps([number, None]), flush=True)
    if number == 2:
        os.abort()
    print(json.dumps([number, []]), flush=True)
"""


def test_a_case_that_crashes_its_process_is_told_and_the_next_ones_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "tests" / "soak").mkdir(parents=True)
    (tmp_path / "tests" / "soak" / "files.py").write_text(CRASHES)
    monkeypatch.setattr(files, "ROOT", tmp_path)
    monkeypatch.delenv("PYTHONPATH", raising=False)
    assert list(run("plan", 0, 5)) == [
        (0, []),
        (1, []),
        (2, ["the process crashed or hung"]),
        (3, []),
        (4, []),
    ]


def test_of_what_is_on_record_the_problems_of_another_commit_are_run_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    record = tmp_path / "record.jsonl"
    known = [
        {"commit": "another", "format": "plan", "file": number, "problems": told}
        for number, told in [(0, []), (1, ["x"])]
    ]
    record.write_text("".join(f"{json.dumps(case)}\n" for case in known))
    asked: list[tuple[int, int]] = []

    def none_run(name: str, first: int, count: int) -> list[tuple[int, list[str]]]:
        assert name == "plan"
        asked.append((first, count))
        return [(first, [])]

    monkeypatch.setattr(files, "run", none_run)
    monkeypatch.setattr(
        "sys.argv", ["files", "--count", "3", "--format", "plan", "--record", str(record)]
    )
    with pytest.raises(SystemExit) as ended:
        files.main()
    assert (ended.value.code, asked) == (False, [(1, 1), (2, 1)])
    assert capsys.readouterr().out == "plan: 3 files, 0 with problems\n"
    assert json.loads(record.read_text().splitlines()[-1])["file"] == 2
