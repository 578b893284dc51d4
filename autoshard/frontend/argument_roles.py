"""Which arguments of a function are donated and which are static, by position and by name."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from autoshard.errors import InputError
from autoshard.frontend.signature import function_name


@dataclass(frozen=True, slots=True)
class ArgumentRoles:
    """Roles of a function's arguments.

    Args:
        names: Of the arguments that may be positional, in order.
        donated: Positions of those whose buffers the function may reuse.
        static: Positions of those that are no arrays.
        static_names: The same by name, keyword-only ones too.
    """

    names: tuple[str, ...]
    donated: frozenset[int]
    static: frozenset[int]
    static_names: frozenset[str]


def jitted_argnums(fn: Callable[..., Any]) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Positions that a `jax.jit` function donates, and that are static; of another, none."""
    info = getattr(fn, "_jit_info", None)  # private; checked on jax 0.10.2
    donated = getattr(info, "donate_argnums", None)
    return tuple(donated or ()), tuple(getattr(info, "static_argnums", None) or ())


def is_given(positions: object) -> bool:
    """False for an empty sequence of positions or names, and for empty text."""
    return not isinstance(positions, Sequence) or len(positions) > 0


def read_roles(
    fn: Callable[..., Any],
    donate_argnums: int | Sequence[int],
    donate_argnames: str | Sequence[str],
    static_argnums: int | Sequence[int],
    static_argnames: str | Sequence[str],
) -> ArgumentRoles:
    """Reads which arguments are donated or static, where positions stand for names and back.

    Of a `jax.jit` function those that it donates itself, unless others are given; likewise the
    static ones.

    Raises:
        InputError: The function has no such argument.
    """
    own_donated, own_static = jitted_argnums(fn)
    if not is_given(donate_argnums) and not is_given(donate_argnames):
        donate_argnums = own_donated
    if not is_given(static_argnums) and not is_given(static_argnames):
        static_argnums = own_static
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):  # a builtin: arguments have no names
        parameters = []
    positional = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = tuple(p.name for p in parameters if p.kind in positional)
    kinds = {p.kind for p in parameters}

    def positions(option: str, numbers: int | Sequence[int]) -> frozenset[int]:
        found = tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)
        is_open = inspect.Parameter.VAR_POSITIONAL in kinds or not parameters
        for number in found:
            if not -len(names) <= number < len(names) and not (is_open and number >= 0):
                raise InputError(
                    f"{option} names argument {number}, but `{function_name(fn)}` has"
                    f" {len(names)} positional argument{'' if len(names) == 1 else 's'}",
                    where=f"{option}={numbers!r}",
                    fix="count positional arguments from 0",
                )
        return frozenset(number + len(names) if number < 0 else number for number in found)

    def named(option: str, given: str | Sequence[str]) -> frozenset[str]:
        found = frozenset((given,) if isinstance(given, str) else given)
        known = {p.name for p in parameters}
        missing = sorted(found - known)
        if missing and inspect.Parameter.VAR_KEYWORD not in kinds:
            raise InputError(
                f"{option} names {missing[0]!r}, which is no argument of `{function_name(fn)}`",
                where=f"{option}={given!r}",
                fix=f"it has {', '.join(sorted(known)) or 'none'}",
            )
        return found

    def by_name(found: frozenset[str]) -> frozenset[int]:
        return frozenset(names.index(name) for name in found if name in names)

    static = positions("static_argnums", static_argnums)
    static_names = named("static_argnames", static_argnames)
    donated_names = named("donate_argnames", donate_argnames)
    return ArgumentRoles(
        names,
        positions("donate_argnums", donate_argnums) | by_name(donated_names),
        static | by_name(static_names),
        static_names | {names[place] for place in static if place < len(names)},
    )
