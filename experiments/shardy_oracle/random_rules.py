"""Random op sharding rules with the shapes they are about, sound and damaged."""

from __future__ import annotations

import math
import random
from dataclasses import dataclass, replace
from typing import Any

from autoshard.sharding import OpShardingRule
from autoshard.sharding.manual import Shape

RULE_GARBLES = (
    *("", " ", ", custom", " need_replication={i}", " permutation={j}", " blocked_propagation={i}"),
    *', [ ] ( ) { } {} = -> - > < i j k z z_1 z_0 z_ _ a 0 1 2 0x custom // " ?'.split(),
)


@dataclass(frozen=True, slots=True)
class RuleCase:
    """A rule and the operation it is put on."""

    rule: OpShardingRule
    operand_shapes: tuple[Shape, ...]
    result_shapes: tuple[Shape, ...]


def random_rule(draw: random.Random) -> RuleCase:
    """A sound rule: factors dealt out to the dimensions of operands and results."""
    num_factors = draw.choice([0, 1, 2, 2, 3, 3, 4, 5, 21])
    sizes = tuple(draw.choice([1, 2, 3, 4, 5, 8, 0, -1, 2**31 - 1]) for _ in range(num_factors))
    reduction = {factor for factor in range(num_factors) if draw.random() < 0.2}
    kept = [factor for factor in range(num_factors) if factor not in reduction]
    operands = [_random_tensor([*kept, *reduction], sizes, draw) for _ in range(draw.randint(1, 3))]
    results = [_random_tensor(kept, sizes, draw) for _ in range(draw.randint(1, 2))]
    used = {factor for dims in [*operands, *results] for dim in dims for factor in dim}
    operands[0] += tuple((factor,) for factor in range(num_factors) if factor not in used)
    special = dict.fromkeys(range(num_factors), "")
    for factor in kept:
        special[factor] = draw.choice(["", "", "need_replication", "permutation"])
    rule = OpShardingRule(
        sizes,
        tuple(operands),
        tuple(results),
        reduction=tuple(sorted(reduction)),
        need_replication=tuple(f for f, kind in special.items() if kind == "need_replication"),
        permutation=tuple(f for f, kind in special.items() if kind == "permutation"),
        blocked_propagation=tuple(f for f in range(num_factors) if draw.random() < 0.15),
        is_custom=draw.random() < 0.3,
    )
    shapes = [_shape(dims, sizes) for dims in [*operands, *results]]
    return RuleCase(rule, tuple(shapes[: len(operands)]), tuple(shapes[len(operands) :]))


def damaged_rule(case: RuleCase, draw: random.Random) -> RuleCase:
    """The case with one thing changed, often for the worse."""
    rule = case.rule
    factor = draw.randrange(len(rule.factor_sizes) + 2)
    where = draw.randrange(9)
    if where == 0:
        return replace(case, operand_shapes=_damaged_shapes(case.operand_shapes, draw))
    if where == 1:
        return replace(case, result_shapes=_damaged_shapes(case.result_shapes, draw))
    if where == 2:
        rule = replace(rule, operands=_damaged_tensors(rule.operands, factor, draw))
    elif where == 3:
        rule = replace(rule, results=_damaged_tensors(rule.results, factor, draw))
    elif where == 4:
        rule = replace(rule, factor_sizes=(*rule.factor_sizes, draw.choice([1, 2])))
    elif where == 5:
        rule = replace(rule, factor_sizes=rule.factor_sizes[:-1])
    elif where == 6:
        sizes = [1 if draw.random() < 0.3 else size for size in rule.factor_sizes]
        rule = replace(rule, factor_sizes=tuple(sizes))
    else:
        sets: dict[str, Any] = dict(rule.factor_sets)
        name = draw.choice([*sets, "reduction"])
        sets[name] = draw.choice([(*sets[name], factor), (factor, *sets[name]), sets[name][::-1]])
        rule = replace(rule, **sets)
    return replace(case, rule=rule)


def _random_tensor(
    factors: list[int], sizes: tuple[int, ...], draw: random.Random
) -> tuple[tuple[int, ...], ...]:
    """Some of the factors, alone or together; those of size 1 alone."""
    dims: list[tuple[int, ...]] = []
    for factor in draw.sample(factors, draw.randint(0, len(factors))):
        joins = dims and sizes[factor] != 1 and all(sizes[other] != 1 for other in dims[-1])
        if joins and draw.random() < 0.3:
            dims[-1] += (factor,)
        else:
            dims.append((factor,))
    return tuple(dims)


def _shape(dims: tuple[tuple[int, ...], ...], sizes: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(min(abs(math.prod(sizes[factor] for factor in dim)), 64) for dim in dims)


def _damaged_shapes(shapes: tuple[Shape, ...], draw: random.Random) -> tuple[Shape, ...]:
    changed = list(shapes)
    index = draw.randrange(len(changed))
    shape = changed[index] or ()
    changed[index] = draw.choice([(*shape, 2), shape[:-1], (*shape[:-1], None), None])
    if draw.random() < 0.3:
        changed.append(())
    return tuple(changed)


def _damaged_tensors(
    tensors: tuple[tuple[tuple[int, ...], ...], ...], factor: int, draw: random.Random
) -> tuple[tuple[tuple[int, ...], ...], ...]:
    changed = list(tensors)
    index = draw.randrange(len(changed))
    dims = list(changed[index])
    if dims and draw.random() < 0.7:
        place = draw.randrange(len(dims))
        dims[place] = draw.choice([(*dims[place], factor), (factor,), (), dims[place][::-1]])
    elif draw.random() < 0.5:
        dims.append((factor,))
    else:
        changed.append(())
    changed[index] = tuple(dims)
    return tuple(changed)
