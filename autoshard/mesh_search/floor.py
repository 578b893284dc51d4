"""What no plan on a mesh can be faster than, known before anything is enumerated."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from math import prod
from typing import TYPE_CHECKING

import numpy as np

from autoshard.costing.model_dtype import model_dtype
from autoshard.graph.program import PRODUCTS, Graph, Op, OpKind
from autoshard.graph.rule import Rule
from autoshard.layouts import MeshParts

if TYPE_CHECKING:
    from cost_models import CostModel


def floor_seconds(graph: Graph, parts: MeshParts, model: CostModel) -> float:
    """Seconds of the products of a step, each cut into as many pieces as the mesh can cut it into.

    Communication, and all that is no product, is left out, so that every plan takes longer.
    """

    @cache
    def cut(rule: Rule) -> int:
        return most_pieces(rule, parts)

    total = 0.0
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or op.op_class not in PRODUCTS or op.rule is None:
            continue
        flops = np.asarray(op.flops / cut(_along_space(op, op.rule)))
        dtypes = {model_dtype(graph.values[value].dtype) for value in op.operands}
        seconds = (
            float(model.compute_seconds(flops, np.asarray(0.0), dtype, op.op_class.value))
            for dtype in dtypes
        )
        total += min(seconds, default=0.0) * op.repeat
    return total


def _along_space(op: Op, rule: Rule) -> Rule:
    """The rule of an op with what its windows move along as factors like all others."""
    return replace(rule, permutation=frozenset()) if op.windows else rule


def most_pieces(rule: Rule, parts: MeshParts) -> int:
    """Pieces that an op falls into at most: the devices along all parts that can cut a factor."""
    sizes = [
        size
        for factor, size in enumerate(rule.factor_sizes)
        if size > 1 and factor not in rule.need_replication and factor not in rule.permutation
    ]
    own = parts.sizes[: len(parts.axes)]
    return prod(count for count in own if any(size % count == 0 for size in sizes))


def cuts_nothing(graph: Graph, parts: MeshParts) -> bool:
    """Whether no dimension of the program can be cut by any part of the mesh."""
    rules = {_along_space(op, op.rule) for op in graph.ops if op.rule is not None}
    return all(most_pieces(rule, parts) == 1 for rule in rules)
