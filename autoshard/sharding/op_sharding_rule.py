"""Op sharding rules as Shardy attaches them to operations."""

from __future__ import annotations

from dataclasses import dataclass

DimFactors = tuple[tuple[int, ...], ...]
"""For each dimension of one tensor, the indices of its factors, major to minor."""


@dataclass(frozen=True, slots=True)
class OpShardingRule:
    """How the dimensions of an operation's operands and results share factors.

    Prints as `<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}>`: cutting a factor cuts
    every dimension it is in. A factor that is in no set below passes a cut through.

    The sets are tuples because Shardy's text has an order, which `verify_op_sharding_rule` checks.

    Args:
        factor_sizes: Size of every factor, by index.
        operands: One for each operand.
        results: One for each result.
        reduction: Factors that are summed away; cutting one leaves partial sums.
        need_replication: Factors along which every device needs all of the data.
        permutation: Factors whose cut costs an exchange between neighbours.
        blocked_propagation: Factors along which a cut does not spread.
        is_custom: Whether the user wrote the rule; only a custom call may have such a rule.
    """

    factor_sizes: tuple[int, ...] = ()
    operands: tuple[DimFactors, ...] = ()
    results: tuple[DimFactors, ...] = ()
    reduction: tuple[int, ...] = ()
    need_replication: tuple[int, ...] = ()
    permutation: tuple[int, ...] = ()
    blocked_propagation: tuple[int, ...] = ()
    is_custom: bool = False

    @property
    def factor_sets(self) -> dict[str, tuple[int, ...]]:
        """The special factors by the keyword of their set, in the order they print."""
        return {
            "reduction": self.reduction,
            "need_replication": self.need_replication,
            "permutation": self.permutation,
            "blocked_propagation": self.blocked_propagation,
        }
