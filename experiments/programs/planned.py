"""One program planned with default options, run on the devices of this machine, and compared."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autoshard
from experiments.programs.program import Program


def row_of(make: Callable[[], Program]) -> dict[str, Any]:
    """What the table shows of a program."""
    try:
        reference, program = make(), make()
    except ImportError as error:
        return {"note": f"not run: {error}"}
    expected = _flat(jax.jit(_pure(reference))(*_pure_args(reference)))
    start = _cpu_seconds()
    try:
        plan = autoshard.optimize(
            program.fn,
            *program.args,
            mesh="data=2,model=4",
            hardware="cpu-host",
            donate_argnums=program.donate_argnums,
        )
    except autoshard.AutoshardError as error:
        return {"note": f"{type(error).__name__}: {error.what[:200]}"}
    row: dict[str, Any] = {"accepted": True, "constraints": len(plan.constraints)}
    row["seconds"] = _cpu_seconds() - start
    fitting = [found for found in plan.data.baselines if found.fits]
    if fitting:
        best = min(fitting, key=plan.data.priced_seconds_of)
        row["by_hand"] = best.name
        row["ratio"] = plan.data.priced_seconds_of(best) / plan.data.priced_seconds
    row["note"] = "; ".join(plan.data.notes)[:300]
    returned = plan.jit()(*program.args)
    found = _flat(_results(program, returned))
    errors = [_error(a, b) for a, b in zip(expected, found, strict=True)]
    row["error"] = max(errors, default=0.0)
    row["equal"] = bool(row["error"] <= program.tolerance)
    return row


def _cpu_seconds() -> float:
    """Of this process and of those that it has waited for."""
    return sum(os.times()[:4])


def _is_nnx(program: Program) -> bool:
    return type(program.args[0]).__module__.startswith("flax.nnx") or hasattr(
        program.args[0], "_pytree__state"
    )


def _pure(program: Program) -> Callable[..., Any]:
    """The program as a function of arrays: the states of NNX objects go in and out."""
    if not _is_nnx(program):
        return program.fn
    from flax import nnx

    graphs = [nnx.split(arg)[0] for arg in program.args[:2]]

    def run(first: Any, second: Any, *rest: Any) -> Any:
        objects = nnx.merge(graphs[0], first), nnx.merge(graphs[1], second)
        value = program.fn(*objects, *rest)
        return value, *(nnx.state(one) for one in objects)

    return run


def _pure_args(program: Program) -> tuple[Any, ...]:
    if not _is_nnx(program):
        return program.args
    from flax import nnx

    return (*(nnx.state(arg) for arg in program.args[:2]), *program.args[2:])


def _results(program: Program, returned: Any) -> Any:
    """What the pure function returns: NNX objects were updated in place."""
    if not _is_nnx(program):
        return returned
    from flax import nnx

    return returned, *(nnx.state(arg) for arg in program.args[:2])


def _flat(tree: Any) -> list[np.ndarray[Any, Any]]:
    leaves = [leaf for leaf in jax.tree.leaves(tree) if hasattr(leaf, "dtype")]
    return [
        np.asarray(jax.random.key_data(leaf))
        if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key)
        else np.asarray(leaf)
        for leaf in leaves
    ]


def _error(expected: np.ndarray[Any, Any], found: np.ndarray[Any, Any]) -> float:
    """The norm of the difference over that of what is expected, or of 1e-5 for each element."""
    wide = np.complex128 if np.iscomplexobj(expected) else np.float64
    a, b = expected.astype(wide), found.astype(wide)
    return float(np.linalg.norm(a - b) / max(float(np.linalg.norm(a)), 1e-5 * a.size**0.5))
