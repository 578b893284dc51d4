"""Arguments of the public calls, held to their types before anything is done with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from numbers import Integral, Real
from pathlib import Path
from typing import Any

from autoshard.errors import InputError


def _is_number(value: object) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _is_whole(value: object) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _is_text(value: object) -> bool:
    return isinstance(value, str)


def _is_text_if_given(value: object) -> bool:
    return value is None or isinstance(value, str)


def _is_path_if_given(value: object) -> bool:
    return value is None or _is_path(value)


def _is_flag(value: object) -> bool:
    return value is None or isinstance(value, (bool, int))


def _has_a_plan(value: object) -> bool:
    return value is None or hasattr(getattr(value, "data", None), "is_feasible")


def _are_names(value: object) -> bool:
    return isinstance(value, Sequence) and all(isinstance(name, str) for name in value)


def _are_names_of_dims(value: object) -> bool:
    return value is None or (
        isinstance(value, Mapping)
        and _are_names(tuple(value))
        and all(isinstance(names, Sequence) for names in value.values())
    )


def _is_budget(value: object) -> bool:
    return value is None or isinstance(value, str) or _is_number(value)


def _is_plain_or_text(value: object) -> bool:
    """True also for numbers that are no count, which are refused where they are used."""
    return value is None or isinstance(value, (str, int, float, Integral))


def _is_mapping(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_by_name(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and _are_names(tuple(value)))


def _are_positions(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, (str, bytes)):
        return all(map(_is_whole, value))
    return _is_whole(value)


def _is_called(value: object) -> bool:
    return value is None or callable(value)


def _is_told(value: object) -> bool:
    return isinstance(value, bool) or _is_called(value)


def _is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike)) and "\0" not in os.fsdecode(value)


_WIDTH = 80
_POSITIONS = (_are_positions, "an argument number or a sequence of them", "(0, 1)")
_EXPECTED: Mapping[str, tuple[Callable[[object], bool], str, str]] = {
    "fn": (callable, "a function", "optimize(train_step, params, batch, mesh=mesh)"),
    "time_limit_seconds": (_is_number, "a number of seconds", "60.0"),
    "relative_gap": (_is_number, "a number", "0.01"),
    "simplicity": (_is_number, "a fraction of the step time", "0.02"),
    "constraint_effort": (_is_number, "a number", "2.0"),
    "seed": (_is_whole, "a whole number", "0"),
    "trip_counts": (_is_mapping, "a mapping from line to count", '{"train.py:12": 100}'),
    "custom_costs": (_is_mapping, "a mapping from call to CustomCost", '{"my_kernel": cost}'),
    "kwargs": (_is_by_name, "a mapping from argument name to value", '{"dropout": rate}'),
    "progress": (_is_told, "a function of one argument, or True for a line", "progress=print"),
    "static_argnums": _POSITIONS,
    "donate_argnums": _POSITIONS,
    "argument": _POSITIONS,
    "static_argnames": (_are_names, "a name or a sequence of names", '"is_training"'),
    "donate_argnames": (_are_names, "a name or a sequence of names", '"state"'),
    "names": (_are_names_of_dims, "a mapping from selector to names", '{"w": ("embed", "mlp")}'),
    "inputs": (_is_text, "text", '"plan"'),
    "width": (_is_whole, "a number of columns", "100"),
    "axis_names": (_are_names, "a sequence of names", '("data", "model")'),
    "memory_budget": (
        _is_budget,
        "bytes, a unit, a fraction of the device or None",
        '"16GiB", 0.9',
    ),
    "solver": (_is_text, "the name of a solver", '"auto"'),
    "schedules": (_is_text, "text", '"auto"'),
    "overlap": (_is_text, "text", '"auto"'),
    "remat": (_is_text, "text", '"auto"'),
    "accumulate": (_is_plain_or_text, "a number of microbatches or text", '"auto"'),
    "baselines": (_is_flag, "True or False", "False"),
    "corrections": (_is_path_if_given, "the path of a file", '"plan.corrections.yaml"'),
    "start": (_has_a_plan, "a plan", 'autoshard.load_plan("plan.json")'),
    "compiler_options": (_is_by_name, "a mapping from flag to value", '{"xla_flag": True}'),
    "timeout_seconds": (_is_number, "a number of seconds", "600.0"),
    "max_tries": (_is_whole, "a whole number", "12"),
    "num_alternatives": (_is_whole, "a whole number", "8"),
    "rounds": (_is_plain_or_text, "a whole number", "4"),
    "minutes": (_is_number, "a number of minutes", "15.0"),
    "keep_in": (_is_path_if_given, "the path of a folder", '"compiles"'),
    "refine": (_is_text_if_given, "devices to compile for", '"v5e:2x4"'),
    "topology": (_is_text, "devices to compile for", '"v5e:2x4"'),
    "target": (_is_text, "a target", '"v5e:2x4"'),
    "tensor": (_is_text, "the name of a tensor", "\"params['w']\""),
    "kind": (_is_text, "text", '"results"'),
    "of": (_is_text, "text", '"modules"'),
    "stage": (_is_text, "the name of an export step", '"explicit"'),
    "platform": (_is_text_if_given, "the name of a platform", '"tpu"'),
    "path": (_is_path, "the path of a file", '"plan.json"'),
    "module": (
        lambda value: isinstance(value, (str, bytes, Path)),
        "the text or bytes of a module, or the Path of its file",
        'pathlib.Path("model.mlir")',
    ),
}


def check_types(**given: Any) -> None:
    """Refuse an argument of a type that the call cannot use.

    Args:
        given: Arguments by the names that users know them by.

    Raises:
        InputError: One of them is of another type; says which type is expected.
    """
    for name, value in given.items():
        is_right, expected, example = _EXPECTED[name]
        if not is_right(value):
            raise InputError(
                f"expected {expected}, found {type(value).__name__}",
                where=f"{name}={in_short(value)}",
                fix=f"write it as in {example}",
            )


def in_short(value: object) -> str:
    """Returns the `repr` of a user's object as one line, cut; its type where that fails."""
    try:
        shown = " ".join(repr(value).split())  # may be a tree of arrays
    except Exception:
        return f"<{type(value).__name__}>"
    return f"{shown[:_WIDTH]}{'...' * (len(shown) > _WIDTH)}"
