"""Op sharding rules as Shardy prints them."""

from __future__ import annotations

from collections.abc import Iterable

from autoshard.sharding.op_sharding_rule import DimFactors, OpShardingRule

FACTOR_LETTERS = "ijklmnopqrstuvwxyz"


def format_factor(index: int) -> str:
    """The symbol of a factor: `i` to `z`, then `z_1`, `z_2`, ..."""
    last = len(FACTOR_LETTERS) - 1
    return FACTOR_LETTERS[index] if index <= last else f"z_{index - last}"


def format_op_sharding_rule(rule: OpShardingRule) -> str:
    """`<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}, custom>`."""
    text = f"{_format_tensors(rule.operands)}->{_format_tensors(rule.results)}"
    if rule.factor_sizes:
        sizes = (f"{format_factor(index)}={size}" for index, size in enumerate(rule.factor_sizes))
        text += f" {{{', '.join(sizes)}}}"
    for keyword, factors in rule.factor_sets.items():
        if factors:
            text += f" {keyword}={{{', '.join(map(format_factor, factors))}}}"
    return f"<{text}{', custom' if rule.is_custom else ''}>"


def _format_tensors(tensors: Iterable[DimFactors]) -> str:
    return f"({', '.join(map(_format_tensor, tensors))})"


def _format_tensor(dims: DimFactors) -> str:
    return f"[{', '.join(''.join(map(format_factor, dim)) for dim in dims)}]"
