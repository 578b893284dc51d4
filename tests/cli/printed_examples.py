"""The examples that `--help` prints, and files with which they run, one after another."""

from __future__ import annotations

import shlex
from pathlib import Path

from autoshard.cli import main
from solvers.formats import write_problem
from tests.solvers.instances import random_problem

TRAIN = """
import jax
import jax.numpy as jnp


def loss(params, batch):
    hidden = jnp.tanh(batch @ params["mlp"]["w1"])
    return ((hidden @ params["mlp"]["w2"]) ** 2).mean()


def train_step(params, batch):
    gradients = jax.grad(loss)(params, batch)
    return jax.tree.map(lambda p, g: p - 0.1 * g, params, gradients)


def autoshard_args_train_step():
    float32 = lambda *shape: jax.ShapeDtypeStruct(shape, jnp.float32)
    params = {"mlp": {"w1": float32(64, 256), "w2": float32(256, 64)}}
    return {"args": (params, float32(32, 64)), "donate_argnums": 0}
"""

ORDER = (
    "plan",
    "report",
    "why",
    "code",
    "explain",
    "export",
    "verify",
    "refine",
    "diff",
    "hardware",
    "solve",
    "sweep",
    "cache",
    "calibrate",
)
"""Commands in an order in which each finds what those before it wrote."""


def examples_of(name: str) -> list[list[str]]:
    """The commands that the help of a command shows, as words after `autoshard`."""
    lines = (main.commands[name].epilog or "").splitlines()
    found = [shlex.split(line) for line in lines if line.strip().startswith("autoshard ")]
    return [words[1:] for words in found]


def write_inputs(folder: Path) -> None:
    """What a user has who tries the examples: a program and an instance."""
    (folder / "train.py").write_text(TRAIN, encoding="utf-8")
    write_problem(random_problem(0), folder / "instance.json.gz")
