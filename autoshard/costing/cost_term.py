"""Costs of single ops as a sum of terms: the linear share that each mechanism has in an estimate.

The choice problem is a relaxation of `lowering.estimate`. A term is one mechanism of a compiler: it
says which ops it applies to, what its seconds depend on beside the type of the op, and the seconds
of every candidate.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from typing import ClassVar, Protocol, TypeAlias

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.costing.program_facts import ProgramFacts
from autoshard.graph.program import Op

FloatArray = npt.NDArray[np.float64]
Candidates: TypeAlias = tuple[Candidate, ...]


class OpTerm(Protocol):
    """One mechanism of a compiler, as seconds of the ops of a program.

    Attributes:
        is_sent: The seconds are of collectives, and not of kernels.
    """

    is_sent: ClassVar[bool]

    def key(self, op: Op) -> Hashable | None:
        """What the seconds depend on beside candidates, name, FLOP and types; None: no seconds."""

    def seconds(self, op: Op, candidates: Candidates) -> FloatArray:
        """float64[num_candidates]: of one run of an op that has a key."""


OpTermKind: TypeAlias = Callable[[ProgramFacts], OpTerm]
"""A term of any program."""


def keys_of(terms: Sequence[OpTerm], op: Op) -> tuple[Hashable, ...]:
    """The key of an op under each term."""
    return tuple(term.key(op) for term in terms)


def sum_of_terms(terms: Iterable[OpTerm], op: Op, candidates: Candidates) -> FloatArray:
    """float64[num_candidates]: seconds of one run of an op, all terms that apply to it together."""
    total = np.zeros(len(candidates))
    for term in terms:
        total += term.seconds(op, candidates)
    return total
