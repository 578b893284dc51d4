"""`autoshard plan --cache` keeps plans; `autoshard cache` lists and clears them."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from autoshard.cli import main
from autoshard.plan_cache.entries import PlanCache
from autoshard.plan_cache.folder import VARIABLE
from tests.plan.plans import gpt_plan

STEP = """
import jax, jax.numpy as jnp

def step(w, x):
    return w - 0.1 * jax.grad(lambda w: jnp.mean(jnp.tanh(x @ w) ** 2))(w)

def autoshard_args():
    return jax.ShapeDtypeStruct((64, 64), jnp.float32), jax.ShapeDtypeStruct((32, 64), jnp.float32)
"""
PLAN = ("plan", "kept_model:step", "--mesh", "data=2,model=4", "--no-baselines")


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(main, [os.fspath(argument) for argument in arguments])


def test_a_plan_is_kept_where_it_is_asked_for(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (folder / "kept_model.py").write_text(STEP)
    monkeypatch.setenv(VARIABLE, os.fspath(folder / "plans"))
    cache = PlanCache(folder / "plans")
    assert run(*PLAN, "--no-cache").exit_code == 0
    assert cache.entries() == ()
    assert "kept plan" not in run(*PLAN).stdout
    assert [entry.function for entry in cache.entries()] == ["step"]
    assert "kept plan, made in " in run(*PLAN, "--cache").stdout
    assert re.fullmatch(
        rf"\d{{4}}-\d\d-\d\d \d\d:\d\d +\d\S* \wB  {cache.entries()[0].key[:12]}  step\n"
        rf"1 plan \(\d\S* \wB\) in {re.escape(os.fspath(cache.folder))}\n",
        run("cache", "list").stdout,
    )


def test_clear_removes_old_plans_and_nothing_else(folder: Path) -> None:
    cache = PlanCache(folder)
    for number, days in enumerate((0, 40)):
        path = cache.path("step", str(number) * 64)
        cache.keep(path, gpt_plan())
        os.utime(path, (path.stat().st_mtime - 86_400 * days,) * 2)
    (folder / "notes.txt").write_text("mine")
    assert run("cache", "clear", "--folder", folder, "--days", "30").stdout.startswith("removed 1 ")
    assert [entry.key for entry in cache.entries()] == ["0" * 64]
    assert run("cache", "clear", "--folder", folder).stdout.startswith("removed 1 plan (")
    assert os.listdir(folder) == ["notes.txt"]
    assert run("cache", "list", "--folder", folder / "none").stdout.startswith("0 plans (0 ")
