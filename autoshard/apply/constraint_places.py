"""Where constraints go in a program, in words: the line, and the value there."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoshard.frontend.jaxpr_paths import equations_of
from autoshard.frontend.trace import Traced
from autoshard.plans.source_names import SourceNames
from autoshard.use_paths import split_uses


def constraint_places(traced: Traced, paths: Iterable[str]) -> dict[str, str]:
    """Say where each path leads to: `train.py:7 (loss), on what tanh makes`.

    Args:
        traced: The program.
        paths: Of values, or of single reads of one.

    Returns:
        By path, in program order.
    """
    primitives = {path: eqn.primitive.name for path, eqn in equations_of(traced.jaxpr.jaxpr)}
    shorten = SourceNames(traced.source_by_equation.values()).shorten
    order = {path: number for number, path in enumerate(traced.source_by_equation)}
    return {
        path: shorten(_place(traced, primitives, path))
        for path in sorted(paths, key=lambda path: order.get(_equation(path), -1))
    }


def _place(traced: Traced, primitives: Mapping[str, str], path: str) -> str:
    _, is_use, operand = split_uses(path)[0].partition("<")
    equation = _equation(path)
    source = traced.source_by_equation.get(equation)
    if source is None:
        return _border(traced, path)
    source = source or _source_around(traced, equation)
    primitive = primitives.get(equation, "the op")
    what = f"on what {primitive} makes"
    if is_use:
        others = len(split_uses(path)) - 1
        alone = f"for this read and {others} more of the value" if others else "for this read alone"
        what = f"before operand {operand.partition('~')[0]} of {primitive}, {alone}"
    return f"{source}, {what}" if source else what


def _source_around(traced: Traced, equation: str) -> str:
    """The place of the innermost equation around one that has none itself; "" where none has."""
    while equation := equation.rpartition("/")[0].rpartition(".")[0]:
        if source := traced.source_by_equation.get(equation, ""):
            return source
    return ""


def _equation(path: str) -> str:
    """The equation that makes a value, or reads it."""
    reader, is_use, _ = path.partition("<")
    return reader if is_use else path.rpartition(".")[0]


def _border(traced: Traced, path: str) -> str:
    """The same for what no equation makes or reads: arguments and results of a body."""
    if path.startswith("in."):
        return f"on the argument {traced.in_names[int(path.removeprefix('in.'))]}"
    if path.startswith("out<"):
        number = path.removeprefix("out<").partition("~")[0]
        return f"on the result {traced.out_names[int(number)]}"
    holder = path.rpartition("/")[0].rpartition(".")[0]
    source = traced.source_by_equation.get(holder)
    kind = "result" if "<" in path else "argument"
    return f"{source}, on an {kind} of the body" if source else f"on an {kind} of a body"
