"""Operands of matmuls that XLA transposes first, to rows and columns.

Source: XLA's `DotDecomposer`. A matmul of more than one contracted dimension, of more than one free
dimension of an operand, or whose batch dimensions do not lead becomes one of matrices: the left
one has batch, free and contracted dimensions, the right one batch, contracted and free ones.
"""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.graph.op_traits import is_matmul
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.rule import Rule


def transposed_operands(graph: Graph, op: Op) -> Iterator[int]:
    """Positions of the operands that a copy is made of: a producer that only this op reads is none.

    It writes its result transposed.
    """
    if op.op_class is not OpClass.MATMUL or op.rule is None or len(op.rule.operands) != 2:
        return
    orders = [_order(op.rule, place) for place in range(2)]
    if all(map(_is_matrix, orders)):
        return
    first = {factor: number for number, (_, factor) in enumerate(orders[0])}
    for place, order in enumerate(orders):
        keys = [
            (kind, first.get(factor, 0) if kind != _FREE[place] else 0) for kind, factor in order
        ]
        value = op.operands[place]
        is_made_for_it = graph.maker(value).kind is not OpKind.ARGUMENT
        is_made_for_it &= len(graph.consumers[value]) == 1
        if keys != sorted(keys) and not is_made_for_it:
            yield place


def batch_leads(rule: Rule, place: int) -> bool:
    """True where the batch dimensions of an operand come before all others longer than 1."""
    kinds = [kind for kind, _ in _order(rule, place)]
    return not any(kinds[: kinds.count(_BATCH)])


def works_in_heads(op: Op, place: int) -> bool:
    """True for a matmul with batch dimensions behind others of an operand, as attention has."""
    if not is_matmul(op) or place > 1 or op.rule is None:
        return False
    return not batch_leads(op.rule, place)


_BATCH = 0
_FREE = (1, 2)
"""The place of free dimensions in the left and the right matrix; contracted ones have the other."""


def _order(rule: Rule, place: int) -> list[tuple[int, int]]:
    """Per dimension longer than 1: its kind, and its first factor."""
    kept = {factor for dim in rule.results[0] for factor in dim}
    other = {factor for dim in rule.operands[1 - place] for factor in dim}
    found = []
    for dim in rule.operands[place]:
        long = [factor for factor in dim if rule.factor_sizes[factor] > 1]
        for factor in long[:1]:
            kind = _FREE[1 - place] if factor not in kept else _FREE[place]
            found.append((_BATCH if factor in kept and factor in other else kind, factor))
    return found


def _is_matrix(order: list[tuple[int, int]]) -> bool:
    """True where batch dimensions lead, then at most one contracted and one free dimension."""
    kinds = [kind for kind, _ in order]
    num_batch = kinds.count(_BATCH)
    return (
        len(kinds) <= num_batch + 2
        and not any(kinds[:num_batch])
        and kinds.count(1) <= 1
        and (kinds.count(2) <= 1)
    )
