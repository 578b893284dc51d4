"""The sharding rule of an op: Shardy's where it gives one, else ours.

Shardy gives none to `chlo` ops, to conditionals and loops (they are no ops here) and to custom
calls it does not know. An op that neither side has a rule for is kept whole.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from math import prod
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import chlo, sdy

from autoshard.frontend import op_kinds
from autoshard.graph.rule import Dims, Rule, aligned_rule, batched_rule, identity_rule
from autoshard.graph.window import Window
from autoshard.mlir_modules import factor_indices

Shape = tuple[int, ...]
Shapes = tuple[Shape, ...]


def read_rule(attribute: Any) -> Rule:
    """Shardy's rule attribute as a value.

    A factor whose propagation Shardy blocks is treated as one that must not be cut. So is a factor
    that no result has though it is not summed (the searched dimension of an approximate top-k), and
    a factor of one tensor alone in a rule that JAX or the user wrote for a custom call: nothing
    says that a device can work on a piece of it.
    """
    rule = sdy.OpShardingRuleAttr(attribute)

    operands, results = factor_indices(rule.operand_mappings), factor_indices(rule.result_mappings)
    reduction = frozenset(rule.reduction_factors)
    whole = frozenset(rule.need_replication_factors) | frozenset(rule.blocked_propagation_factors)
    permutation = frozenset(rule.permutation_factors)
    kept = {f for dims in results for dim in dims for f in dim}
    sizes = tuple(rule.factor_sizes)
    lost = {f for dims in operands for dim in dims for f in dim if sizes[f] > 1} - kept
    whole |= lost - reduction - permutation
    if rule.is_custom:
        uses = Counter(f for dims in (*operands, *results) for dim in dims for f in dim)
        whole |= {factor for factor, times in uses.items() if times == 1} - reduction
    return Rule(sizes, operands, results, reduction, whole, permutation)


def fitted_rule(rule: Rule, operands: Shapes, results: Shapes) -> Rule:
    """A rule whose factors make up each dimension, or stay whole.

    Shardy's rule of a strided convolution, for one, gives a kernel dimension of 3 the factor 2 by
    which its stride divides the image.
    """
    loose = rule.need_replication | rule.permutation
    misfits: set[int] = set()
    for tensors, shapes in ((rule.operands, operands), (rule.results, results)):
        for dims, shape in zip(tensors, shapes, strict=True):
            for factors, size in zip(dims, shape, strict=True):
                covered = prod([rule.factor_sizes[f] for f in factors])
                if covered not in (size, 1) and not loose.intersection(factors):
                    misfits.update(f for f in factors if rule.factor_sizes[f] > 1)
    if not misfits:
        return rule
    return replace(
        rule,
        reduction=rule.reduction - misfits,
        need_replication=rule.need_replication | misfits,
    )


def pooled_rule(rule: Rule, windows: Sequence[Window], image: Shape, source: Shape) -> Rule:
    """The rule of a `select_and_scatter`: where windows tile the image, the source is cut with it.

    Shardy keeps the source whole.
    """
    dims = list(rule.operands[1])
    for window in windows:
        dim = window.image
        is_tiled = window == Window(image=dim, made=dim, size=window.size, stride=window.size)
        if is_tiled and image[dim] == source[dim] * window.size:
            dims[dim] = rule.operands[0][dim]
    return replace(rule, operands=(rule.operands[0], tuple(dims), *rule.operands[2:]))


def unsummed(rule: Rule) -> Rule:
    """A rule that keeps whole the dimensions it reduces."""
    whole = rule.need_replication | rule.reduction
    return replace(rule, reduction=frozenset(), need_replication=whole)


def has_all_reduce(op: Any) -> bool:
    """False for a reduction of one tensor that compilers have no all-reduce for.

    XLA knows one of sums, products, minima and maxima, and of logical and, or; any other fails in
    the runtimes of CPUs and GPUs ("Unsupported reduction computation", jaxlib 0.10.2). A reduction
    of several tensors is gathered.
    """
    if op.name != "stablehlo.reduce" or len(op.results) != 1:
        return True
    combiner, *rest = [one.operation for one in op.regions[0].blocks[0]]
    if len(rest) != 1:
        return False
    is_logical = str(ir.ShapedType(op.results[0].type).element_type) == "i1"
    return combiner.name in (_LOGICAL_COMBINERS if is_logical else _COMBINERS)


_COMBINERS = frozenset(f"stablehlo.{name}" for name in ("add", "maximum", "minimum", "multiply"))
_LOGICAL_COMBINERS = _COMBINERS | {"stablehlo.and", "stablehlo.or"}


def own_rule(op: Any, operands: Shapes, results: Shapes) -> tuple[Rule, bool]:
    """Our rule for an op that Shardy gives none.

    Args:
        op: The MLIR operation.
        operands: Shapes of its operands.
        results: Shapes of its results.

    Returns:
        The rule, and whether it keeps the op whole because nothing better is known.
    """
    dialect, _, name = op.name.partition(".")
    if dialect == "chlo":
        if name in op_kinds.CHLO_ELEMENTWISE:
            return aligned_rule(operands, results), False
        if name == "top_k":
            return aligned_rule(operands, results, frozenset({len(operands[0]) - 1})), False
        if name == "ragged_dot":
            return ragged_dot_rule(op, operands, results), False
    if name in op_kinds.SHAPE_KEEPING_COLLECTIVES:
        return aligned_rule(operands, results), False
    if name == "custom_call":
        target = ir.StringAttr(op.attributes["call_target_name"]).value
        if target in op_kinds.IDENTITY_CUSTOM_CALLS:
            return aligned_rule(operands, results), False
    rule = batched_rule(operands, results, 0)
    return rule, any(prod(shape) > 1 for shape in (*operands, *results))


def ragged_dot_rule(op: Any, operands: Shapes, results: Shapes) -> Rule:
    """Rows sorted by group, each group with a matrix of its own: `chlo.ragged_dot`.

    The ragged dimension and the groups stay whole, because where a group begins depends on all
    group sizes. Batch and free dimensions are cut; so is the contracted one, leaving partial sums,
    unless it is the ragged one.
    """
    numbers = chlo.RaggedDotDimensionNumbers(op.attributes["ragged_dot_dimension_numbers"])
    lhs_shape, rhs_shape, groups_shape = operands
    lhs_batch = list(numbers.lhs_batching_dimensions)
    rhs_batch = list(numbers.rhs_batching_dimensions)
    lhs_summed = list(numbers.lhs_contracting_dimensions)
    rhs_summed = list(numbers.rhs_contracting_dimensions)
    ragged = set(numbers.lhs_ragged_dimensions)
    group_dims = list(numbers.rhs_group_dimensions)
    sizes: list[int] = []
    reduction: set[int] = set()
    whole: set[int] = set()

    def factor(size: int) -> int:
        sizes.append(size)
        return len(sizes) - 1

    lhs = {dim: factor(size) for dim, size in enumerate(lhs_shape)}
    whole.update(lhs[dim] for dim in ragged)
    rhs = {r: lhs[d] for d, r in zip(lhs_batch, rhs_batch, strict=True)}
    for d, r in zip(lhs_summed, rhs_summed, strict=True):
        rhs[r] = lhs[d]
        if d not in ragged:
            reduction.add(lhs[d])
    for dim, size in enumerate(rhs_shape):
        if dim not in rhs:
            rhs[dim] = factor(size)
            if dim in group_dims:
                whole.add(rhs[dim])
    # Result: group (when the contracted or a batch dimension is ragged), batch, free of both.
    kept = [lhs[d] for d in lhs_batch]
    kept += [lhs[d] for d in range(len(lhs_shape)) if d not in (*lhs_batch, *lhs_summed)]
    others = (*rhs_batch, *rhs_summed, *group_dims)
    kept += [rhs[d] for d in range(len(rhs_shape)) if d not in others]
    if len(kept) < len(results[0]):
        group = factor(results[0][0])
        whole.add(group)
        kept.insert(0, group)
    counts = [factor(size) for size in groups_shape]
    whole.update(counts)

    def dims(factors: list[int]) -> Dims:
        return tuple((f,) for f in factors)

    return Rule(
        tuple(sizes),
        (
            dims([lhs[d] for d in range(len(lhs_shape))]),
            dims([rhs[d] for d in range(len(rhs_shape))]),
            dims(counts),
        ),
        (dims(kept),),
        frozenset(reduction),
        frozenset(whole),
    )


def whole_rule(shape: tuple[int, ...]) -> Rule:
    """The rule of a source that every device holds whole."""
    rule = identity_rule(shape, 0)
    return Rule(rule.factor_sizes, (), rule.results, need_replication=frozenset(range(len(shape))))
