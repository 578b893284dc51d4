"""Op sharding rules: how the dimensions of an op's operands and results share factors."""

from __future__ import annotations

from dataclasses import dataclass, field
from functools import cached_property

from autoshard.sharding import OpShardingRule, format_op_sharding_rule

Dims = tuple[tuple[int, ...], ...]  # per dimension, its factors, major to minor


def factors_of(dims: Dims) -> set[int]:
    """All factors of a tensor's dimensions."""
    return {factor for factors in dims for factor in factors}


@dataclass(frozen=True)
class Rule:
    """Which factor cuts which dimension of each operand and result.

    Printed as Shardy prints it, but for the angle brackets around it:
    `([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}`.

    Args:
        factor_sizes: Size of every factor, by factor index.
        operands: Per operand, per dimension, its factors from major to minor.
        results: Likewise for results.
        reduction: Factors summed away; cutting one leaves partial sums.
        need_replication: Factors that must not be cut.
        permutation: Factors whose cut costs an exchange between neighbours (halos).
    """

    factor_sizes: tuple[int, ...]
    operands: tuple[Dims, ...]
    results: tuple[Dims, ...]
    reduction: frozenset[int] = field(default_factory=frozenset)
    need_replication: frozenset[int] = field(default_factory=frozenset)
    permutation: frozenset[int] = field(default_factory=frozenset)

    @cached_property
    def _hash(self) -> int:
        return hash(
            (
                self.factor_sizes,
                self.operands,
                self.results,
                self.reduction,
                self.need_replication,
                self.permutation,
            )
        )

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def majors(self) -> tuple[tuple[int | None, ...], ...]:
        """Per operand, then per result, per dimension, its most major factor larger than 1."""
        sizes = self.factor_sizes
        return tuple(
            tuple([next((f for f in factors if sizes[f] > 1), None) for factors in dims])
            for dims in (*self.operands, *self.results)
        )

    def __str__(self) -> str:
        text = format_op_sharding_rule(
            OpShardingRule(
                self.factor_sizes,
                self.operands,
                self.results,
                reduction=tuple(sorted(self.reduction)),
                need_replication=tuple(sorted(self.need_replication)),
                permutation=tuple(sorted(self.permutation)),
            )
        )
        return text[1:-1]


def identity_rule(shape: tuple[int, ...], num_operands: int = 1, num_results: int = 1) -> Rule:
    """The rule of an op whose operands and results all have `shape` and stay aligned."""
    dims: Dims = tuple((index,) for index in range(len(shape)))
    return Rule(shape, (dims,) * num_operands, (dims,) * num_results)


def aligned_rule(
    operand_shapes: tuple[tuple[int, ...], ...],
    result_shapes: tuple[tuple[int, ...], ...],
    whole_dims: frozenset[int] = frozenset(),
) -> Rule:
    """Dimension `d` of every tensor is one factor when all sizes agree, else it is kept whole.

    Scalars take no part. `whole_dims` are kept whole even where the sizes agree.
    """
    shapes = [s for s in (*operand_shapes, *result_shapes) if s]
    rank = max((len(s) for s in shapes), default=0)
    same = [
        dim not in whole_dims
        and all(len(s) == rank for s in shapes)
        and len({s[dim] for s in shapes}) == 1
        for dim in range(rank)
    ]
    sizes: list[int] = []
    whole: set[int] = set()
    shared: dict[int, int] = {}

    def factor(shape: tuple[int, ...], dim: int) -> int:
        if dim < len(same) and same[dim] and len(shape) == rank:
            if dim not in shared:
                shared[dim] = len(sizes)
                sizes.append(shape[dim])
            return shared[dim]
        sizes.append(shape[dim])
        whole.add(len(sizes) - 1)
        return len(sizes) - 1

    def dims(shape: tuple[int, ...]) -> Dims:
        return tuple((factor(shape, dim),) for dim in range(len(shape)))

    operands = tuple(dims(s) for s in operand_shapes)
    results = tuple(dims(s) for s in result_shapes)
    return Rule(tuple(sizes), operands, results, need_replication=frozenset(whole))


def batched_rule(
    operand_shapes: tuple[tuple[int, ...], ...],
    result_shapes: tuple[tuple[int, ...], ...],
    num_batch_dims: int,
) -> Rule:
    """Leading dimensions go together, all others are kept whole.

    The leading dimensions are those of the first operand; a tensor that does not begin with the
    same sizes, a scalar setting for one, is kept whole.
    """
    batch = operand_shapes[0][:num_batch_dims] if operand_shapes else ()
    sizes = list(batch)
    whole: set[int] = set()

    def dims(shape: tuple[int, ...]) -> Dims:
        found = []
        leads = shape[: len(batch)] == batch
        for dim, size in enumerate(shape):
            if leads and dim < len(batch):
                found.append((dim,))
                continue
            whole.add(len(sizes))
            found.append((len(sizes),))
            sizes.append(size)
        return tuple(found)

    operands = tuple(map(dims, operand_shapes))
    results = tuple(map(dims, result_shapes))
    return Rule(tuple(sizes), operands, results, need_replication=frozenset(whole))


def summed_rows(rule: Rule) -> frozenset[int]:
    """The factors over which the gradient of a convolution's kernel moves its window.

    Shardy numbers them before the batch. The window is in no operand, or, of a strided convolution,
    a permutation factor.
    """
    if len(rule.operands) < 2 or len(rule.results) != 1:
        return frozenset()
    read = {f for dims in rule.operands for factors in dims for f in factors} - rule.permutation
    num_windows = sum(read.isdisjoint(factors) for factors in rule.results[0])
    return frozenset(sorted(rule.reduction)[:num_windows])
