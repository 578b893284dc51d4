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


def _is_mapping(value: object) -> bool:
    return value is None or isinstance(value, Mapping)


def _is_by_name(value: object) -> bool:
    return value is None or (isinstance(value, Mapping) and all(isinstance(k, str) for k in value))


def _are_positions(value: object) -> bool:
    if isinstance(value, Sequence) and not isinstance(value, str):
        return all(map(_is_whole, value))
    return _is_whole(value)


def _is_called(value: object) -> bool:
    return value is None or callable(value)


def _is_told(value: object) -> bool:
    return isinstance(value, bool) or _is_called(value)


def _is_path(value: object) -> bool:
    return isinstance(value, (str, os.PathLike))


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
            shown = " ".join(repr(value).split())  # may be a tree of arrays
            raise InputError(
                f"expected {expected}, found {type(value).__name__}",
                where=f"{name}={shown[:_WIDTH]}{'...' * (len(shown) > _WIDTH)}",
                fix=f"write it as in {example}",
            )
