"""A plan made once and loaded by every process of a program does what it does in one process."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

import jax
import numpy as np
import pytest

import autoshard
from tests.docs.running import PageRun
from tests.end_to_end.one_of_many_processes import MESH, ROWS
from tests.end_to_end.shared_step import HIDDEN, WIDTH, batch, init, train_step
from tests.remat.programs import arguments, scanned

NUM_PROCESSES, DEVICES_EACH, SECONDS = 2, 4, 180
DEVICES = "--xla_force_host_platform_device_count"  # of two, the last one counts
ROOT = Path(__file__).parents[2]


def free_port() -> int:
    with socket.socket() as found:
        found.bind(("127.0.0.1", 0))
        port: int = found.getsockname()[1]
        return port


def printed_by(commands: Sequence[Sequence[str]], folder: Path, path: str) -> list[str]:
    """What processes print that run side by side, each with some of the devices."""
    environment = {
        **os.environ,
        "XLA_FLAGS": f"{os.environ['XLA_FLAGS']} {DEVICES}={DEVICES_EACH}",
        "JAX_PLATFORMS": "cpu",
        "PYTHONPATH": path,
    }
    running = [
        subprocess.Popen(
            [sys.executable, *command],
            env=environment,
            cwd=folder,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for command in commands
    ]
    found = []
    try:
        for process in running:
            printed, errors = process.communicate(timeout=SECONDS)
            assert process.returncode == 0, errors
            found.append(printed)
    finally:
        for process in running:
            process.kill()
            process.wait()
    return found


@pytest.fixture(scope="module")
def plan() -> autoshard.Plan:
    return autoshard.optimize(
        train_step,
        jax.eval_shape(init, jax.random.key(0)),
        batch(0),
        mesh=MESH,
        hardware="cpu-host",
        donate_argnums=0,
        constraints={'state["params"]["w1"]': '[{"data"}, {"model"}]'},  # over both processes
        baselines=False,
    )


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("shared")


@pytest.fixture(scope="module")
def printed(plan: autoshard.Plan, folder: Path) -> list[list[str]]:
    """Lines of processes that run the plan, and then plan at their first calls under one cache."""
    plan.save(folder / "plan.json")
    ample = autoshard.optimize(
        scanned(), *arguments(ROWS), mesh=MESH, hardware="cpu-host", baselines=False
    ).data.memory
    budget, port = (ample.argument_bytes + ample.peak_bytes) // 2, free_port()
    commands = [
        ["-m", "tests.end_to_end.one_of_many_processes", str(folder)]
        + [str(one) for one in (budget, port, number, NUM_PROCESSES)]
        for number in range(NUM_PROCESSES)
    ]
    words = ("step", "loss", "kept", "again", "planned")
    return [
        [line for line in printed.splitlines() if line.startswith(words)]
        for printed in printed_by(commands, folder, str(ROOT))
    ]


@pytest.mark.usefixtures("printed")
def test_processes_that_load_one_plan_find_what_a_single_process_does(
    plan: autoshard.Plan, folder: Path
) -> None:
    found = [np.load(folder / f"{number}.npz") for number in range(NUM_PROCESSES)]
    state = plan.init(init)(jax.random.key(0))
    step = plan.jit()
    losses = []
    for seed in range(2):
        state, loss = step(state, plan.shard(batch(seed), argument=1))
        losses.append(float(loss))
    pieces = state["params"]["w1"].sharding.shard_shape((WIDTH, HIDDEN))
    for one in found:
        assert int(one["num_devices"]) == NUM_PROCESSES * DEVICES_EACH
        assert int(one["num_local"]) == DEVICES_EACH
        assert tuple(one["local_shape"]) == pieces
        np.testing.assert_allclose(one["losses"], losses, rtol=1e-5)
        np.testing.assert_allclose(one["w1"], np.asarray(state["params"]["w1"]), rtol=1e-4)
        np.testing.assert_allclose(
            one["moment"], np.asarray(state["moments"]["w2"]), rtol=1e-4, atol=1e-7
        )


def test_process_0_plans_and_the_others_wait_for_its_file(
    printed: list[list[str]], folder: Path
) -> None:
    first, second = (lines[:3] for lines in printed)
    assert first[-1] == "planned True"
    assert second[-1] == "planned False"
    assert first[:2] == second[:2]
    assert len(list((folder / "plans").iterdir())) == 2


def test_every_process_keeps_the_residuals_that_process_0_chose(printed: list[list[str]]) -> None:
    first, second = (lines[3:] for lines in printed)
    assert (first.pop(), second.pop()) == ("planned True", "planned False")
    assert first == second
    loss, kept, again = first
    assert len(kept.split()) > 1
    assert len(again.split()) > 1
    _, expected = jax.jit(scanned())(*arguments(ROWS))
    assert float(loss.split()[1]) == pytest.approx(float(expected), rel=1e-5)


@pytest.mark.slow
def test_the_worker_of_the_page_prints_the_losses_of_a_single_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    page = PageRun(ROOT / "docs" / "how-to" / "many-processes.md")
    page.run()
    assert page.namespace["value"] is not None
    address = f"127.0.0.1:{free_port()}"
    commands = [["worker.py", address, str(n), str(NUM_PROCESSES)] for n in range(NUM_PROCESSES)]
    first, second = (
        [line for line in printed.splitlines() if line[:2] in ("0:", "1:", "2:")]
        for printed in printed_by(commands, tmp_path, f"{tmp_path}{os.pathsep}{ROOT}")
    )
    assert first == second
    assert len(first) == 3
    assert first[0] == f"0: {float(page.namespace['value']):.6f}"
