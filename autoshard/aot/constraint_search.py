"""Which constraints make a compiler crash, and how many of them it takes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class CompilingSet:
    """Constraints with which a program compiles.

    Args:
        kept: Those with which it does.
        culprits: Single ones that, added to those kept before them, made it fail.
        untried: Left out because the tries or the time were used up.
        num_tries: Compiles that were made.
    """

    kept: tuple[str, ...]
    culprits: tuple[str, ...]
    untried: tuple[str, ...]
    num_tries: int


def find_compiling_set(
    paths: Sequence[str],
    compiles: Callable[[tuple[str, ...]], bool],
    max_tries: int,
    is_over: Callable[[], bool] = lambda: False,
) -> CompilingSet | None:
    """Look for a large set of constraints that compiles, where all of them together do not.

    Halves are added to what is known to compile; a half that does not go is halved again, down to
    single constraints. One culprit among n constraints takes about `1 + 2 log2(n)` tries.

    Args:
        paths: All constraints, in program order; together they are known to fail.
        compiles: Whether the program compiles with these alone, in program order.
        max_tries: Compiles allowed.
        is_over: Whether time is up: nothing more is compiled, and a failure then blames nobody.

    Returns:
        None where it fails without any.
    """
    if max_tries < 1 or not compiles(()):
        return None
    tries = 1
    kept: set[str] = set()
    culprits: list[str] = []
    untried: list[str] = []
    waiting = [tuple(half) for half in _halves(paths)] if len(paths) > 1 else []
    if len(paths) == 1:
        culprits = list(paths)
    while waiting:
        block = waiting.pop(0)
        if tries == max_tries or is_over():
            untried += block
            continue
        tries += 1
        if compiles(tuple(path for path in paths if path in kept or path in block)):
            kept.update(block)
        elif is_over():
            untried += block
        elif len(block) == 1:
            culprits += block
        else:
            waiting = [*map(tuple, _halves(block)), *waiting]
    return CompilingSet(
        kept=tuple(path for path in paths if path in kept),
        culprits=tuple(culprits),
        untried=tuple(untried),
        num_tries=tries,
    )


def _halves(paths: Sequence[str]) -> tuple[Sequence[str], Sequence[str]]:
    middle = len(paths) // 2
    return paths[:middle], paths[middle:]
