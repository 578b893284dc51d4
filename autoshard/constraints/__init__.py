"""What a user may say of shardings, and what it means for a program."""

from __future__ import annotations

from autoshard.constraints.program import Equation, Program, TensorType
from autoshard.constraints.resolve import Alike, Asked, Resolved, resolve
from autoshard.constraints.selector import (
    ModuleSelector,
    NameSelector,
    PathSelector,
    Selector,
    SourceSelector,
    parse_selector,
)
from autoshard.constraints.terms import (
    AnyRank,
    Group,
    Keep,
    Offload,
    Pin,
    Recompute,
    ResidualTerm,
    Term,
    Uses,
    sharding_of,
    with_sharding,
)

__all__ = [
    "Alike",
    "AnyRank",
    "Asked",
    "Equation",
    "Group",
    "Keep",
    "ModuleSelector",
    "NameSelector",
    "Offload",
    "PathSelector",
    "Pin",
    "Program",
    "Recompute",
    "ResidualTerm",
    "Resolved",
    "Selector",
    "SourceSelector",
    "TensorType",
    "Term",
    "Uses",
    "parse_selector",
    "resolve",
    "sharding_of",
    "with_sharding",
]
