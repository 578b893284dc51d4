"""Modules and source lines of a program's equations, by equation path."""

from __future__ import annotations

import re
from typing import Any

from jax._src.source_info_util import Scope, Transform  # checked on jax 0.10.2
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn

from autoshard.frontend.jaxpr_paths import bodies
from autoshard.frontend.source_lines import SourceLines
from autoshard.source_place import SourcePlace, format_source

_TRANSPOSE = "transpose"
_COMPUTED_AGAIN = "rematted_computation"
_NO_MODULES = re.compile(rf"{_COMPUTED_AGAIN}|checkpoint|.*->.*")
"""Scopes that JAX itself opens; `jnp.einsum` opens one called like its subscripts."""
_SEPARATORS = re.compile(r"[\s,:]+")


def equation_places(closed: ClosedJaxpr) -> dict[str, SourcePlace]:
    """The module and line of every equation, those in bodies included.

    Modules come from the scopes of the name stack, which Flax, Haiku and Equinox open for their
    modules and `jax.named_scope` for anybody. Name stacks in a body begin at the body, so a
    module continues that of the equation that holds it, whose line those without one of the user's
    have. Function transformations are dropped;
    `transpose` marks what is below it as backward, except for what `jax.checkpoint` recomputes.
    """
    reader = _Reader()
    reader.read(closed.jaxpr, "", SourcePlace())
    return reader.places


def equation_sources(closed: ClosedJaxpr) -> dict[str, str]:
    """The same as text: `h/0/attn backward, train.py:12 (loss)`, or ""."""
    return {path: format_source(place) for path, place in equation_places(closed).items()}


class _Reader:
    def __init__(self) -> None:
        self.lines = SourceLines()
        self.places: dict[str, SourcePlace] = {}

    def read(self, jaxpr: Jaxpr, prefix: str, holder: SourcePlace) -> None:
        for index, eqn in enumerate(jaxpr.eqns):
            path = f"{prefix}{index}"
            place = self._place(eqn, holder)
            self.places[path] = place
            for key, body in bodies(eqn):
                self.read(body, f"{path}.{key}/", place)

    def _place(self, eqn: JaxprEqn, holder: SourcePlace) -> SourcePlace:
        line, _, function = self.lines.line(eqn).partition(" (")
        stack = eqn.source_info.name_stack.stack
        is_again = Scope(_COMPUTED_AGAIN) in stack
        is_transposed = Transform(_TRANSPOSE) in stack
        return SourcePlace(
            module="/".join(part for part in (holder.module, _module(stack)) if part),
            is_backward=not is_again and (holder.is_backward or is_transposed),
            line=line or holder.line,
            function=function.removesuffix(")") if line else holder.function,
        )


def _module(stack: Any) -> str:
    """The scopes of a name stack.

    A transformation of a function that was traced in a scope repeats the scope behind it, as in
    `transpose(jvp(Model))/jvp(Model)`: such a repetition counts once.
    """
    scopes: list[str] = []
    run: list[str] = []
    for entry in (*stack, None):
        if isinstance(entry, Scope):
            if not _NO_MODULES.fullmatch(str(entry.name)):
                run.append(_SEPARATORS.sub("_", str(entry.name)))
            continue
        scopes = run if run[: len(scopes)] == scopes else scopes + run
        run = []
    return "/".join(scopes)
