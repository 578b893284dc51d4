"""Arguments that a public call cannot use: one whole message each, before anything is done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.experimental import io_callback

import autoshard
from autoshard import AutoshardError

X = jax.ShapeDtypeStruct((8, 8), jnp.float32)
ON: dict[str, Any] = {"mesh": "data=8", "hardware": "cpu-host", "baselines": False}
NOTHING = (
    "the program has no arrays among its arguments and results: there is nothing to shard\n"
    "  fix: pass arrays or jax.ShapeDtypeStruct as arguments; text and functions are settings"
)
POSITIONS = "expected an argument number or a sequence of them, found"


def double(x: Any) -> Any:
    return x * 2


def out_of_memory(_: Any) -> Any:
    raise MemoryError("4 EiB")


def printed(x: Any) -> Any:
    jax.debug.print("{}", x.sum(), ordered=True)
    return x


def called_back(x: Any) -> Any:
    return io_callback(lambda found: found, X, x, ordered=True)


def no_text(x: Any) -> Any:
    return x, "text"


def planned(fn: Callable[..., Any] = double, *args: Any, **options: Any) -> Callable[[], object]:
    return lambda: autoshard.optimize(fn, *(args or (X,)), **{**ON, **options})


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: autoshard.optimize(lambda: None, **ON), NOTHING),
        (lambda: autoshard.optimize(lambda _: None, "abc", **ON), NOTHING),
        (
            planned(double, "abc"),
            "`double` returns text, and a result can only be an array: 'abcabc'\n"
            "  where: its result\n"
            "  fix: return arrays, and keep text out of the function",
        ),
        (
            planned(no_text),
            "`no_text` returns text, and a result can only be an array: 'text'\n"
            "  where: its result\n"
            "  fix: return arrays, and keep text out of the function",
        ),
        (
            lambda: autoshard.optimize({"w": X}, X, **ON),  # type: ignore[arg-type]
            "expected a function, found dict\n"
            f"  where: fn={{'w': {X!r}}}\n"
            "  fix: write it as in optimize(train_step, params, batch, mesh=mesh)",
        ),
        (
            planned(simplicity=2),
            "simplicity is a fraction, and 2 is above 1\n"
            "  where: simplicity=2\n"
            "  fix: write 5 % as simplicity=0.05",
        ),
        (
            planned(static_argnums="a"),
            f"{POSITIONS} str\n  where: static_argnums='a'\n  fix: write it as in (0, 1)",
        ),
        (
            planned(donate_argnums=1.5),
            f"{POSITIONS} float\n  where: donate_argnums=1.5\n  fix: write it as in (0, 1)",
        ),
        (
            planned(time_limit_seconds="9"),
            "expected a number of seconds, found str\n"
            "  where: time_limit_seconds='9'\n"
            "  fix: write it as in 60.0",
        ),
        (
            planned(relative_gap=None),
            "expected a number, found NoneType\n"
            "  where: relative_gap=None\n"
            "  fix: write it as in 0.01",
        ),
        (
            planned(seed="a"),
            "expected a whole number, found str\n  where: seed='a'\n  fix: write it as in 0",
        ),
        (
            planned(seed=1.5),
            "expected a whole number, found float\n  where: seed=1.5\n  fix: write it as in 0",
        ),
        (
            planned(trip_counts=5),
            "expected a mapping from line to count, found int\n"
            "  where: trip_counts=5\n"
            '  fix: write it as in {"train.py:12": 100}',
        ),
        (
            planned(custom_costs=5),
            "expected a mapping from call to CustomCost, found int\n"
            "  where: custom_costs=5\n"
            '  fix: write it as in {"my_kernel": cost}',
        ),
        (
            planned(kwargs={1: 2}),
            "expected a mapping from argument name to value, found dict\n"
            "  where: kwargs={1: 2}\n"
            '  fix: write it as in {"dropout": rate}',
        ),
        (
            planned(progress=3),
            "expected a function of one argument, or True for a line, found int\n"
            "  where: progress=3\n"
            "  fix: write it as in progress=print",
        ),
        (
            planned(corrections=True),
            "expected the path of a file, found bool\n"
            "  where: corrections=True\n"
            '  fix: write it as in "plan.corrections.yaml"',
        ),
        (
            planned(refine=True),
            "expected devices to compile for, found bool\n"
            "  where: refine=True\n"
            '  fix: write it as in "v5e:2x4"',
        ),
        (
            planned(start=3),
            "expected a plan, found int\n"
            "  where: start=3\n"
            '  fix: write it as in autoshard.load_plan("plan.json")',
        ),
        (
            planned(memory_budget=np.ones(2)),
            "expected bytes, a unit, a fraction of the device or None, found ndarray\n"
            "  where: memory_budget=array([1., 1.])\n"
            '  fix: write it as in "16GiB", 0.9',
        ),
        (
            planned(solver=np.ones(2)),
            "expected the name of a solver, found ndarray\n"
            "  where: solver=array([1., 1.])\n"
            '  fix: write it as in "auto"',
        ),
        (
            planned(axis_names=5),
            "expected a sequence of names, found int\n"
            "  where: axis_names=5\n"
            '  fix: write it as in ("data", "model")',
        ),
        (
            planned(donate_argnums=np.int64(2)),
            "donate_argnums names argument 2, but the call has 1 positional argument\n"
            "  where: donate_argnums=np.int64(2) of `double`\n"
            "  fix: count positional arguments from 0",
        ),
        (
            planned(cache="\0"),
            "plans cannot be kept: embedded null byte\n"
            "  where: cache folder \\x00\n"
            "  fix: name a folder that you may write to, or plan without: cache=False",
        ),
        (
            planned(double, 2**70),
            "Python int 1180591620717411303424 too large to convert to int32\n"
            "  where: an argument of the call\n"
            "  fix: pass a smaller number, or an array",
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).why(None),  # type: ignore[arg-type]
            "expected the name of a tensor, found NoneType\n"
            "  where: tensor=None\n"
            "  fix: write it as in \"params['w']\"",
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).verify(None),  # type: ignore[arg-type]
            "expected devices to compile for, found NoneType\n"
            "  where: topology=None\n"
            '  fix: write it as in "v5e:2x4"',
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).save("\0"),
            "expected the path of a file, found str\n"
            "  where: path='\\x00'\n"
            '  fix: write it as in "plan.json"',
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).report(1.5),  # type: ignore[arg-type]
            "expected a number of columns, found float\n"
            "  where: width=1.5\n"
            "  fix: write it as in 100",
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).jit(in_shardings=None),
            "in_shardings is not free: it is the plan's\n"
            "  where: plan.jit(in_shardings=...)\n"
            "  fix: plan with it, optimize(..., in_shardings=...), or let jit move arguments:"
            " moves_arguments=True",
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).logical_rules(
                {1: 2}  # type: ignore[dict-item]
            ),
            "expected a mapping from selector to names, found dict\n"
            "  where: names={1: 2}\n"
            '  fix: write it as in {"w": ("embed", "mlp")}',
        ),
        (
            lambda: autoshard.jit(double, static_argnames=None, **ON),  # type: ignore[call-overload]
            "expected a name or a sequence of names, found NoneType\n"
            "  where: static_argnames=None\n"
            '  fix: write it as in "is_training"',
        ),
        (
            lambda: autoshard.jit(double, compiler_options=True, **ON),  # type: ignore[call-overload]
            "expected a mapping from flag to value, found bool\n"
            "  where: compiler_options=True\n"
            '  fix: write it as in {"xla_flag": True}',
        ),
        (
            planned(mesh=None, devices=99999999999),
            "the number of devices is 99999999999, which is above 1,000,000\n"
            "  where: devices=99999999999\n"
            "  fix: give the number of devices to plan for, from 1 to 1,000,000",
        ),
        (
            lambda: autoshard.optimize_module(None, mesh="data=8"),  # type: ignore[arg-type]
            "expected the text or bytes of a module, or the Path of its file, found NoneType\n"
            "  where: module=None\n"
            '  fix: write it as in pathlib.Path("model.mlir")',
        ),
        (
            lambda: autoshard.load_plan(5),  # type: ignore[arg-type]
            "expected the path of a file, found int\n"
            "  where: path=5\n"
            '  fix: write it as in "plan.json"',
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).save(None),  # type: ignore[arg-type]
            "expected the path of a file, found NoneType\n"
            "  where: path=None\n"
            '  fix: write it as in "plan.json"',
        ),
        (
            lambda: autoshard.optimize(double, X, **ON).stablehlo(platform="nope"),
            "there is no platform called 'nope'\n"
            "  where: platform='nope'\n"
            "  fix: use one of cpu, tpu, cuda, rocm",
        ),
        (
            planned(printed),
            "`printed` has effects in a fixed order (OrderedDebug), which no plan keeps: JAX has"
            " them on one device only\n"
            "  where: `printed`\n"
            "  fix: call jax.debug.print, jax.debug.callback and io_callback with ordered=False;"
            " for one device jax.jit is all it takes",
        ),
        (
            planned(called_back),
            "`called_back` has effects in a fixed order (OrderedIO), which no plan keeps: JAX has"
            " them on one device only\n"
            "  where: `called_back`\n"
            "  fix: call jax.debug.print, jax.debug.callback and io_callback with ordered=False;"
            " for one device jax.jit is all it takes",
        ),
    ],
)
def test_what_a_call_cannot_use_is_refused(call: Callable[[], object], message: str) -> None:
    with pytest.raises(AutoshardError) as caught:
        call()
    assert str(caught.value) == message


def test_memory_that_runs_out_while_tracing_is_told_as_that() -> None:
    with pytest.raises(AutoshardError) as caught:
        planned(out_of_memory)()
    assert caught.value.what == "memory ran out while `out_of_memory` was traced: 4 EiB"
    assert caught.value.fix == (
        "give the process more memory; make big arrays arguments, not constants"
    )


def test_a_program_is_traced_where_jax_looks_for_leaked_tracers() -> None:
    with jax.checking_leaks():
        plan = planned()()
    assert isinstance(plan, autoshard.Plan)


def test_a_function_with_a_long_name_of_control_characters_is_called_by_what_prints() -> None:
    def step(x: Any) -> Any:
        return x

    step.__name__ = "\x1b[31m" + "x" * 10**5
    plan = autoshard.optimize(step, X, **ON)
    assert plan.data.function == "\\x1b[31m" + "x" * 192 + "..."


@pytest.mark.parametrize("mesh", ["data=8", "data=2,model=4"])
def test_a_convolution_with_an_empty_result_is_planned(mesh: str) -> None:
    def convolved(image: Any, kernel: Any) -> Any:
        return jnp.tanh(jax.lax.conv_general_dilated(image, kernel, (1, 1), "VALID")).sum()

    plan = autoshard.optimize(
        convolved,
        jax.ShapeDtypeStruct((8, 8, 1, 64), jnp.float32),
        jax.ShapeDtypeStruct((8, 8, 2, 3), jnp.float32),
        mesh=mesh,
        hardware="tpu-v5e",
    )
    assert plan.data.is_feasible
