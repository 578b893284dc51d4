"""What an op sharding rule must hold: every violation at once."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import combinations

from autoshard.errors import ShardingError
from autoshard.sharding.manual import Shape
from autoshard.sharding.op_sharding_rule import DimFactors, OpShardingRule
from autoshard.sharding.rule_printer import format_factor, format_op_sharding_rule

CUSTOM_CALL = "stablehlo.custom_call"


def verify_op_sharding_rule(
    rule: OpShardingRule,
    operand_shapes: Sequence[Shape],
    result_shapes: Sequence[Shape],
    *,
    op_name: str = CUSTOM_CALL,
) -> list[str]:
    """Every rule of op sharding rules that `rule` breaks.

    * There is a mapping for each operand and each result, at least one of each, and a dimension in
      it for each of the tensor's, whose sizes are known.
    * Each dimension has a factor; all factors have sizes; none is in one tensor twice; one of
      size 1 is alone in its dimension.
    * Each factor is in some operand or result.
    * A reduction factor is in no result.
    * Each set of factors is in increasing order without repetitions, and of the sets for reduction,
      replication and permutation only one has a factor.
    * Only a custom call has a custom rule.

    As in Shardy, the sizes of a dimension's factors need not multiply to the dimension's size.

    Args:
        rule: What to check.
        operand_shapes: int[rank] of each operand; None for a value without a shape.
        result_shapes: Likewise for the results.
        op_name: The operation, as MLIR names it.

    Returns:
        One sentence per violation, none when the rule is sound.
    """
    violations = _verify_tensors("operand", rule.operands, operand_shapes, rule.factor_sizes)
    violations += _verify_tensors("result", rule.results, result_shapes, rule.factor_sizes)
    used = _factors_of(rule.operands) | _factors_of(rule.results)
    violations += [
        f"factor {format_factor(index)}={size} is in no operand and no result"
        for index, size in enumerate(rule.factor_sizes)
        if index not in used
    ]
    violations += [
        f"factor {format_factor(factor)} is reduced, and it is in a result"
        for factor in dict.fromkeys(rule.reduction)
        if factor in _factors_of(rule.results)
    ]
    for keyword, factors in rule.factor_sets.items():
        violations += _verify_set(keyword, factors, len(rule.factor_sizes))
    violations += _verify_disjoint(rule)
    if rule.is_custom and op_name != CUSTOM_CALL:
        violations.append(f"only a {CUSTOM_CALL} has a custom rule, and this is a {op_name}")
    return violations


def check_op_sharding_rule(
    rule: OpShardingRule,
    operand_shapes: Sequence[Shape],
    result_shapes: Sequence[Shape],
    *,
    op_name: str = CUSTOM_CALL,
) -> None:
    """Refuse a rule that breaks one of the rules of `verify_op_sharding_rule`.

    Raises:
        ShardingError: With every violation.
    """
    violations = verify_op_sharding_rule(rule, operand_shapes, result_shapes, op_name=op_name)
    if violations:
        raise ShardingError(
            "\n".join(violations),
            where=f"{op_name}: {format_op_sharding_rule(rule)}",
            fix="correct the rule",
        )


def _verify_tensors(
    kind: str,
    tensors: tuple[DimFactors, ...],
    shapes: Sequence[Shape],
    factor_sizes: tuple[int, ...],
) -> list[str]:
    if not tensors:
        return [f"a rule is about at least one {kind}, and there is none"]
    if len(tensors) != len(shapes):
        return [f"the rule maps {len(tensors)} {kind}s, and the operation has {len(shapes)}"]
    violations = []
    for index, (dims, shape) in enumerate(zip(tensors, shapes, strict=True)):
        found = _verify_shape(dims, shape) + _verify_dims(dims, factor_sizes)
        violations += [f"{kind} {index}: {violation}" for violation in found]
    return violations


def _verify_shape(dims: DimFactors, shape: Shape) -> list[str]:
    if shape is None or None in shape:
        return ["only a tensor whose sizes are all known has a rule"]
    if len(dims) != len(shape):
        return [f"the rule maps {len(dims)} dimensions, and the tensor has {len(shape)}"]
    return []


def _verify_dims(dims: DimFactors, factor_sizes: tuple[int, ...]) -> list[str]:
    violations = []
    dim_by_factor: dict[int, int] = {}
    for index, factors in enumerate(dims):
        if not factors:
            violations.append(f"dimension {index} has no factor")
        for factor in factors:
            name = format_factor(factor)
            if factor >= len(factor_sizes):
                violations.append(f"factor {name} in dimension {index} has no size")
            elif factor_sizes[factor] == 1 and len(factors) > 1:
                violations.append(
                    f"factor {name} in dimension {index} has size 1 and stands beside others: "
                    "leave it out"
                )
            if factor in dim_by_factor:
                violations.append(
                    f"factor {name} is used twice: in dimension {dim_by_factor[factor]} "
                    f"and in dimension {index}"
                )
            dim_by_factor.setdefault(factor, index)
    return violations


def _verify_set(keyword: str, factors: tuple[int, ...], num_factors: int) -> list[str]:
    violations = [
        f"factor {format_factor(factor)} in {keyword} has no size"
        for factor in dict.fromkeys(factors)
        if factor >= num_factors
    ]
    expected = sorted(set(factors))
    if list(factors) != expected:
        violations.append(
            f"{keyword} factors are in order, each once: {_listed(expected)}, "
            f"found {_listed(factors)}"
        )
    return violations


def _verify_disjoint(rule: OpShardingRule) -> list[str]:
    """Reduction, replication and permutation exclude one another; blocking goes with any."""
    exclusive = [item for item in rule.factor_sets.items() if item[0] != "blocked_propagation"]
    return [
        f"factor {format_factor(factor)} is in {first} and in {second}; it is in one of them"
        for (first, factors), (second, others) in combinations(exclusive, 2)
        for factor in dict.fromkeys(factors)
        if factor in others
    ]


def _factors_of(tensors: tuple[DimFactors, ...]) -> set[int]:
    return {factor for dims in tensors for dim in dims for factor in dim}


def _listed(factors: Sequence[int]) -> str:
    return ", ".join(map(format_factor, factors))
