"""States that users ask to lie in host memory between steps."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from autoshard.constraints import NameSelector, Offload, Program, ResidualTerm
from autoshard.constraints.select import Chooser

_ARGUMENT = "in."


def asked_arguments(terms: Iterable[ResidualTerm], program: Program) -> Mapping[int, Offload]:
    """By flat argument, the term that sends it to host memory; terms on residuals are left out.

    Args:
        terms: What users ask.
        program: As selectors see it.

    Raises:
        ConstraintError: A selector picks nothing.
    """
    chooser, found = Chooser(program), dict[int, Offload]()
    for term in terms:
        if isinstance(term, Offload) and not isinstance(term.selector, NameSelector):
            paths = [one.path for one in chooser.tensors(term.selector, str(term))]
            if all(path.startswith(_ARGUMENT) for path in paths):
                found.update((int(path.removeprefix(_ARGUMENT)), term) for path in paths)
    return found
