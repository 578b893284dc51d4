"""What is in a sweep's folder, whoever wrote it, in whatever order, and whoever was killed."""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from experiments.sweeps.folder import SweepError, SweepFolder
from experiments.sweeps.table import COLUMNS, read_table, table_text
from tests.sweeps.points import row

ROOT = Path(__file__).resolve().parents[2]


def test_a_point_is_finished_once_it_is_written(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path / "sweep")
    assert folder.finished("a") is None
    folder.write("a", {"workload": "gpt"}, row(gap=0.5))
    assert folder.finished("a") == {"id": "a", **row(gap=0.5)}
    assert json.loads((tmp_path / "sweep/points/a.json").read_text())["asked"] == {
        "workload": "gpt"
    }


def test_writing_a_point_again_takes_its_row_s_place(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    folder.write("a", {}, row(status="failed"))
    folder.write("a", {}, row(status="optimal"))
    assert [found["status"] for found in folder.rows()] == ["optimal"]


rows = st.lists(
    st.fixed_dictionaries(
        {
            "workload": st.sampled_from(["gpt", "mlp"]),
            "mesh": st.sampled_from(["data=2", "data=16", "data=8"]),
            "gap": st.sampled_from([0.0, 0.5]),
        },
        optional={"solve_seconds": st.just(1.0)},
    ).map(lambda columns: row(**columns)),
    max_size=5,
)


@given(rows, st.randoms(use_true_random=False))
def test_the_table_does_not_depend_on_the_order_of_the_points(
    found: list[dict[str, Any]], random: Any
) -> None:
    named = [{"id": str(index), **columns} for index, columns in enumerate(found)]
    mixed = list(named)
    random.shuffle(mixed)
    assert table_text(mixed) == table_text(named)


@given(rows)
def test_merging_again_changes_nothing(found: list[dict[str, Any]]) -> None:
    with tempfile.TemporaryDirectory() as root:
        folder = SweepFolder(Path(root))
        for index, columns in enumerate(found):
            folder.write(str(index), {}, columns)
        first = folder.merge().read_text()
        assert folder.merge().read_text() == first
        assert len(read_table(folder.table)) == len(found)


def test_numbers_in_names_are_ordered_by_size() -> None:
    meshes = ["data=16,model=4", "data=8,model=8", "data=8", "data=128"]
    text = table_text([{"id": mesh, **row(mesh=mesh)} for mesh in meshes])
    assert re.findall(r'^"?(data[^",]*(?:,model=\d+)?)', text, flags=re.MULTILINE) == [
        "data=8",
        "data=8,model=8",
        "data=16,model=4",
        "data=128",
    ]


def test_columns_that_only_some_rows_have_come_last_and_are_empty_elsewhere(
    tmp_path: Path,
) -> None:
    folder = SweepFolder(tmp_path)
    folder.write("a", {}, row(solve_seconds=2.0))
    folder.write("b", {}, row(fsdp_step_seconds=3.0))
    table = read_table(folder.merge())
    assert list(table[0]) == [*COLUMNS, "fsdp_step_seconds", "solve_seconds"]
    assert [found["solve_seconds"] for found in table] == ["2.0", ""]


def test_a_point_is_held_by_one_at_a_time(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)
    with folder.claim("a") as first, folder.claim("a") as second, folder.claim("b") as other:
        assert (first, second, other) == (True, False, True)
    with folder.claim("a") as again:
        assert again


def test_a_killed_process_holds_nothing(tmp_path: Path) -> None:
    holder = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import sys, time; from pathlib import Path\n"
            "from experiments.sweeps.folder import SweepFolder\n"
            f"with SweepFolder(Path({str(tmp_path)!r})).claim('a'):\n"
            "    print('held', flush=True); time.sleep(60)",
        ],
        cwd=ROOT,
        stdout=subprocess.PIPE,
    )
    assert holder.stdout is not None
    with holder, holder.stdout:
        assert holder.stdout.readline() == b"held\n"
        with SweepFolder(tmp_path).claim("a") as held:
            assert not held
        holder.send_signal(signal.SIGKILL)
        holder.wait()
    with SweepFolder(tmp_path).claim("a") as held:
        assert held


def test_whoever_merges_last_has_all_points(tmp_path: Path) -> None:
    folder = SweepFolder(tmp_path)

    def work(worker: int) -> None:
        for index in range(10):
            folder.write(f"{worker}{index}", {}, row(seed=worker))
            folder.merge()

    workers = [threading.Thread(target=work, args=(worker,)) for worker in range(4)]
    for worker in workers:
        worker.start()
    for worker in workers:
        worker.join()
    assert len(read_table(folder.table)) == 40


@pytest.mark.parametrize("content", ["", "{", "[1]", '{"asked": {}}'])
def test_a_file_that_no_sweep_wrote_is_named(tmp_path: Path, content: str) -> None:
    folder = SweepFolder(tmp_path)
    folder.write("a", {}, row())
    (tmp_path / "points/b.json").write_text(content)
    message = r"^b\.json is not a finished point: .*; delete it to run the point again$"
    for ask in (folder.rows, folder.merge, lambda: folder.finished("b")):
        with pytest.raises(SweepError, match=message):
            ask()
    assert folder.finished("a") is not None
