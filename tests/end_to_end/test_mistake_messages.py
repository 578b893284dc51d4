"""Fifty-one mistakes of new users: the whole message of each, in one golden file."""

from __future__ import annotations

import itertools
import re
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.sharding import PartitionSpec as P

import autoshard

X = jax.ShapeDtypeStruct((16, 32), jnp.float32)
W = jax.ShapeDtypeStruct((32, 30), jnp.float32)
ASKED = {"mesh": "data=2,model=4", "hardware": "cpu-host", "baselines": False}


def layer(x: Any, w: Any) -> Any:
    return jnp.tanh(x @ w)


def plan(**options: Any) -> autoshard.Plan:
    return autoshard.optimize(layer, X, W, **{**ASKED, **options})


def planned(fn: Callable[..., Any], *args: Any, **options: Any) -> autoshard.Plan:
    return autoshard.optimize(fn, *args, **{**ASKED, **options})


def file_with(folder: Path, text: str) -> str:
    path = folder / "file"
    path.write_text(text, encoding="utf-8")
    return str(path)


def saved(folder: Path) -> str:
    plan().save(folder / "plan.json")
    return str(folder / "plan.json")


MISTAKES: dict[str, Callable[[Path], Any]] = {
    # the mesh
    "a mesh without sizes": lambda _: plan(mesh="data,model"),
    "an empty mesh": lambda _: plan(mesh=""),
    "an axis of no devices": lambda _: plan(mesh="data=0"),
    "an axis twice": lambda _: plan(mesh="data=2,data=4"),
    "a size in words": lambda _: plan(mesh="data=two"),
    "a tuple for a mesh": lambda _: plan(mesh=(2, 4)),
    "no mesh": lambda _: plan(mesh=None),
    "a mesh of other devices": lambda _: plan(devices=4),
    # the machine
    "no machine for a mesh as text": lambda _: plan(hardware="auto"),
    "a machine misspelt": lambda _: plan(hardware="tpu-v5ee"),
    "an unknown machine": lambda _: plan(hardware="abacus"),
    # the memory
    "a budget in words": lambda _: plan(memory_budget="much"),
    "a negative budget": lambda _: plan(memory_budget=-1),
    "an unknown unit": lambda _: plan(memory_budget="12 parsecs"),
    "a budget that is true": lambda _: plan(memory_budget=True),
    "a fraction above one": lambda _: plan(memory_budget=1.5),
    # shardings asked for
    "an unknown axis": lambda _: plan(in_shardings=(P("batch"), P())),
    "a dimension that does not divide": lambda _: plan(in_shardings=(P(), P(None, "model"))),
    "too many dimensions": lambda _: plan(in_shardings=(P(None, None, "data"), P())),
    "an axis used twice": lambda _: plan(in_shardings=(P("data", "data"), P())),
    "too few shardings": lambda _: plan(in_shardings=(P(),)),
    "a sharding as a list": lambda _: plan(in_shardings=(["data"], P())),
    "a selector of nothing": lambda _: plan(constraints={"params['w']": P("data")}),
    "a pattern of nothing": lambda _: plan(constraints={"h_*/attn": P("data")}),
    "a regular expression that is none": lambda _: plan(constraints={"re:h(": P("data")}),
    "a sharding as bad text": lambda _: plan(constraints={"x": '[{"data"}'}),
    "a number for constraints": lambda _: plan(constraints=3),
    "no such file of constraints": lambda _: plan(constraints="missing.yaml"),
    # options
    "a negative gap": lambda _: plan(relative_gap=-1),
    "a time limit in words": lambda _: plan(time_limit_seconds="9"),
    "an unknown solver": lambda _: plan(solver="gurobi"),
    "a seed in words": lambda _: plan(seed="a"),
    "an unknown overlap": lambda _: plan(overlap="yes"),
    "a simplicity below zero": lambda _: plan(simplicity=-1),
    "an argument donated that is not there": lambda _: plan(donate_argnums=5),
    "an argument donated and static": lambda _: planned(
        lambda x, n: x * n, X, 3, donate_argnums=1, static_argnums=1
    ),
    "an option of jit misspelt": lambda _: autoshard.jit(layer, donate_argnum=0),
    "the file of a module as text": lambda _: autoshard.optimize_module(
        "step.mlir", mesh="data=8", hardware="cpu-host"
    ),
    # the function
    "text for an argument": lambda _: planned(layer, X, "abc"),
    "an argument too few": lambda _: planned(layer, X),
    "no function": lambda _: planned(3, X),  # type: ignore[arg-type]
    "a branch on a value": lambda _: planned(lambda x: x if x.sum() > 0 else -x, X),
    "shapes that do not fit": lambda _: planned(layer, W, X),
    "text as a result": lambda _: planned(lambda _: "done", X),
    "a generator as a result": lambda _: planned(lambda x: (x for _ in range(2)), X),
    "an array of objects": lambda _: planned(layer, X, np.array([None])),
    "nothing in, nothing out": lambda _: planned(lambda: None),
    # the plan
    "a plan that is no file": lambda _: autoshard.load_plan("missing.json"),
    "a file that is no plan": lambda folder: autoshard.load_plan(file_with(folder, "[]")),
    "a plan without its function": lambda folder: autoshard.load_plan(saved(folder)).jit(),
    "a plan of another function": lambda folder: autoshard.load_plan(
        saved(folder), lambda x, w: x @ w
    ).jit()(np.ones((16, 32), np.float32), np.ones((32, 30), np.float32)),
}


def told(mistake: Callable[[Path], Any], folder: Path) -> str:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            mistake(folder)
    except autoshard.AutoshardError as error:
        text = f"{type(error).__name__}: {error}"
    else:
        return "nothing"
    text = text.replace(str(folder), "FOLDER").replace(str(Path(__file__).parent), "FOLDER")
    text = re.sub(r"\b[0-9a-f]{12,}\b", "HASH", text)
    return re.sub(r"(\w+\.py):\d+", r"\1:LINE", text)


def test_every_mistake_is_told_in_words_that_say_what_to_do(
    check_golden: Callable[[str, str], None], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    found = {name: told(mistake, tmp_path) for name, mistake in MISTAKES.items()}
    assert len(found) == 51
    without_fix = [name for name, text in found.items() if "\n  fix: " not in text]
    lines = itertools.chain.from_iterable((f"## {n}", found[n], "") for n in found)
    check_golden("mistakes.txt", "\n".join(lines))
    assert without_fix == []
