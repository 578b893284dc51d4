"""The command: its options, its launchers, and a sweep that is killed and goes on."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from functools import cache
from pathlib import Path

import pytest
from hydra import compose, initialize_config_dir
from hydra.errors import ConfigCompositionException
from omegaconf import DictConfig

from experiments.sweeps.job import Again, python_path
from experiments.sweeps.options import folder_of, point_of, register_options
from experiments.sweeps.table import ASKED, FOUND, read_table
from experiments.workloads import WORKLOADS

ROOT = Path(__file__).resolve().parents[2]
RUN = ROOT / "experiments/run.py"
TINY = ["workload=mlp", "workload.sizes.features=16", "workload.sizes.hidden=32", "baselines=false"]
SWEEP = [
    "-m",
    *TINY,
    "workload.sizes.layers=1,2,3",
    "mesh=8,2x4",
    "hardware=cpu_host,tpu_v5p",
    "memory=auto,null",
]
NUM_POINTS = 24


@cache
def register_once() -> None:
    register_options()


def config(*overrides: str) -> DictConfig:
    register_once()
    with initialize_config_dir(str(ROOT / "experiments/conf"), version_base="1.3"):
        return compose("sweep", list(overrides))


def start(*arguments: str, cwd: Path) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, str(RUN), *arguments],
        cwd=cwd,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        start_new_session=True,
    )


def run(*arguments: str, cwd: Path) -> str:
    process = start(*arguments, cwd=cwd)
    output, _ = process.communicate(timeout=600)
    assert process.returncode == 0, output
    return output


def what_was_found(table: Path) -> list[dict[str, str]]:
    """A table without what is never the same twice."""
    return [{name: row[name] for name in ("id", *ASKED, *FOUND)} for row in read_table(table)]


@pytest.mark.parametrize("name", WORKLOADS)
def test_every_workload_is_chosen_by_name_with_all_its_sizes(name: str) -> None:
    point = point_of(config(f"workload={name}"))
    assert point.workload == name
    preset = WORKLOADS[name].config
    assert dict(point.sizes) == {size: getattr(preset, size) for size in point.sizes}
    assert type(preset)(**point.sizes) == preset


def test_the_command_line_says_the_options() -> None:
    said = config(
        "workload=gpt_7b",
        "mesh=8x8",
        "hardware=tpu_v5p",
        "solver=auto",
        "memory=0.9",
        "folder=here",
        "again=failed",
        "limit_seconds=60",
    )
    options = point_of(said).options
    assert (options.mesh, options.hardware, options.memory) == ("8x8", "tpu_v5p", 0.9)
    assert folder_of(said).root == Path("here")
    assert (said.again, said.limit_seconds) == (Again.failed, 60.0)


def test_sizes_have_the_types_of_the_model_s_config() -> None:
    point = point_of(config("workload=embedding", "workload.sizes.rows=[64,32]"))
    assert point.sizes["rows"] == (64, 32)
    with pytest.raises(ConfigCompositionException, match=r"workload\.sizes\.layers=two") as refused:
        config("workload=gpt", "workload.sizes.layers=two")
    assert "Value 'two' of type 'str' could not be converted to Integer" in str(
        refused.value.__cause__
    )


@pytest.mark.parametrize("recipe", sorted((ROOT / "experiments/conf/recipe").glob("*.yaml")))
def test_every_recipe_asks_for_points_that_exist(recipe: Path) -> None:
    register_once()
    with initialize_config_dir(str(ROOT / "experiments/conf"), version_base="1.3"):
        whole = compose("sweep", [f"+recipe={recipe.stem}"], return_hydra_config=True)
    swept = whole.hydra.sweeper.params
    firsts = [f"{name}={str(values).split(',')[0]}" for name, values in swept.items()]
    assert point_of(config(*firsts)).workload in WORKLOADS


@pytest.mark.slow
def test_one_point_is_a_row_and_is_not_planned_twice(tmp_path: Path) -> None:
    first = run(*TINY, "mesh=2x4", cwd=tmp_path)
    assert "mlp on 2x4: " in first
    assert " took " in first
    second = run(*TINY, "mesh=2x4", cwd=tmp_path)
    assert " was there: " in second
    (row,) = read_table(tmp_path / "sweep/table.csv")
    assert row["status"] in ("optimal", "within gap")


@pytest.mark.slow
@pytest.mark.parametrize("launcher", ["joblib", "submitit_local"])
def test_every_launcher_makes_the_table(launcher: str, tmp_path: Path) -> None:
    few = ["-m", *TINY, "mesh=8,2x4,2y4", f"hydra/launcher={launcher}"]
    run(*few, cwd=tmp_path)
    rows = read_table(tmp_path / "sweep/table.csv")
    assert [row["mesh"] for row in rows] == ["2y4", "data=2,model=4", "data=8"]
    assert [row["status"] == "failed" for row in rows] == [True, False, False]


@pytest.mark.slow
def test_a_sweep_killed_in_the_middle_and_begun_again_makes_the_same_table(tmp_path: Path) -> None:
    run(*SWEEP, "folder=whole", "hydra/launcher=joblib", "hydra.launcher.n_jobs=2", cwd=tmp_path)
    whole = what_was_found(tmp_path / "whole/table.csv")
    assert len(whole) == NUM_POINTS

    points = tmp_path / "killed/points"
    process = start(*SWEEP, "folder=killed", cwd=tmp_path)
    until = time.monotonic() + 300
    while len(list(points.glob("*.json"))) < NUM_POINTS // 3:
        assert process.poll() is None, process.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.05)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate()
    before = {path.name: path.read_bytes() for path in points.glob("*.json")}
    assert NUM_POINTS // 3 <= len(before) < NUM_POINTS

    output = run(*SWEEP, "folder=killed", cwd=tmp_path)
    assert output.count(" was there: ") == len(before)
    assert output.count(" took ") == NUM_POINTS - len(before)
    assert what_was_found(tmp_path / "killed/table.csv") == whole
    for name, content in before.items():
        assert (points / name).read_bytes() == content


def test_processes_of_launchers_find_the_package() -> None:
    found = subprocess.run(
        [sys.executable, "-c", "import experiments.sweeps.table"],
        env={"PYTHONPATH": python_path()},
        cwd="/",
        check=False,
    )
    assert found.returncode == 0
