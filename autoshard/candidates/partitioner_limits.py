"""Layouts that XLA's SPMD partitioner gets wrong, or gathers: the ones no plan may ask for.

Each entry is a fact of one compiler version, shown by a program in JAX alone in
`tests/end_to_end/test_partitioner_limits.py`; one that a later version mends is dropped with it.
`tests/soak/op_net.py` looks for more.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from enum import Enum
from math import prod

from autoshard.backends import CollectivePolicy
from autoshard.candidates.candidate import Candidate
from autoshard.graph.program import Op, OpClass
from autoshard.graph.rule import Rule, factors_of, summed_rows
from autoshard.layouts import Layout, MeshParts


class Effect(Enum):
    """What the partitioner makes of a layout."""

    WRONG_NUMBERS = "wrong numbers"
    GATHERED = "operands gathered that the sharding rule leaves in place"


@dataclass(frozen=True, slots=True)
class PartitionerLimit:
    """A family of layouts that is not compiled as the sharding rule says.

    Args:
        name: What is cut, in words.
        op_name: The StableHLO op.
        effect: What comes out.
        compiler: The versions it was seen with.
        shown_by: True for compilers that do so.
        holds: Whether a way to cut an op, with its rule, is one of them.
    """

    name: str
    op_name: str
    effect: Effect
    compiler: str
    shown_by: Callable[[CollectivePolicy], bool]
    holds: Callable[[MeshParts, Rule, Candidate], bool]


def compiled_as_asked(
    parts: MeshParts, op: Op, collectives: CollectivePolicy, candidates: tuple[Candidate, ...]
) -> tuple[Candidate, ...]:
    """The candidates of an op that no limit holds for; the first one, which cuts nothing, stays."""
    limits = [
        limit
        for limit in PARTITIONER_LIMITS
        if limit.op_name == op.name and limit.shown_by(collectives)
    ]
    rule = op.rule
    if not limits or rule is None:
        return candidates
    kept = tuple(
        one for one in candidates if not any(limit.holds(parts, rule, one) for limit in limits)
    )
    return kept or candidates[:1]


def _group(rule: Rule) -> int | None:
    """The factor that counts the groups of a convolution: both operands and the result have it."""
    image, kernel = rule.operands[:2]
    shared = factors_of(image) & factors_of(kernel) & factors_of(rule.results[0])
    return next((factor for factor in shared if rule.factor_sizes[factor] > 1), None)


def whole_within_groups(rule: Rule) -> Rule:
    """The rule of a convolution, of which no device has a part of the features of one group."""
    group = _group(rule)
    within = {
        factor
        for dims in (*rule.operands, *rule.results)
        for factors in dims
        if len(factors) > 1 and factors[0] == group
        for factor in factors[1:]
    }
    return replace(rule, need_replication=rule.need_replication | within)


def _makes_within_a_group(parts: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """A device has some of the features that one group of a convolution makes."""
    made = candidate.partial or candidate.results[0]
    return _is_cut_within_a_group(parts, rule, rule.results[0], made)


def _reads_within_a_group(parts: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """A device reads some of the features of one group of a convolution."""
    return any(
        _is_cut_within_a_group(parts, rule, dims, read)
        for dims, read in zip(rule.operands, candidate.operands, strict=True)
    )


def _is_cut_within_a_group(
    parts: MeshParts, rule: Rule, dims: Sequence[Sequence[int]], layout: Layout
) -> bool:
    group = _group(rule)
    return group is not None and any(
        len(factors) > 1
        and factors[0] == group
        and parts.num_shards(cut) > rule.factor_sizes[group]
        for factors, cut in zip(dims, layout, strict=True)
    )


def _cuts_space_and_kernel(_: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """A convolution is cut along space, and its kernel in features."""
    image = zip(rule.operands[0], candidate.operands[0], strict=True)
    is_in_space = any(cut and factors[0] in rule.permutation for factors, cut in image)
    return is_in_space and any(candidate.operands[1])


def _cuts_groups_of_many(_: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """A convolution whose groups have several input features each is cut, in whatever dimension."""
    group = _group(rule)
    return candidate.cut > 1 and any(
        factors[0] == group and any(rule.factor_sizes[f] > 1 for f in factors[1:])
        for factors in rule.operands[0]
        if factors and set(factors) <= factors_of(rule.operands[1]) | {group}
    )


def _sums_over_some_devices(parts: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """A sum over rows, or between the groups of a convolution, is cut over part of the mesh."""
    summed = {*candidate.reduced, *candidate.scattered}
    if not summed or parts.num_shards(summed) == parts.mesh.num_devices:
        return False
    group, rows = _group(rule), summed_rows(rule)
    return any(
        not summed.isdisjoint(cut)
        for factors, cut in zip(rule.operands[0], candidate.operands[0], strict=True)
        if (group is not None and group not in factors) or rows.intersection(factors)
    )


def _scatters_some_onto_batch(_: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """Some of the axes that a matmul sums over go to a batch dimension that others already cut."""
    batch = factors_of(rule.operands[0]) & factors_of(rule.operands[1])
    summed = {*candidate.reduced, *candidate.scattered}
    if not summed:
        return False
    cuts = zip(rule.results[0], candidate.partial, candidate.results[0], strict=True)
    return any(
        not batch.isdisjoint(factors)
        and bool(before)
        and before != after
        and not summed <= {*after}
        for factors, before, after in cuts
    )


def _updates_rows_of_cut_length(_: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """An update of several rows goes into an array that is cut along their number."""
    array, update = rule.operands[:2]
    return any(
        bool(cut) and whole != taken and prod(rule.factor_sizes[f] for f in taken) > 1
        for whole, taken, cut in zip(array, update, candidate.operands[0], strict=True)
    )


def _updates_single_columns(parts: MeshParts, rule: Rule, candidate: Candidate) -> bool:
    """Rows of an array are written of which a device has one column of several.

    A matmul with one column makes a vector. XLA writes rows of it over others in place, and then
    reads what it has written.
    """
    columns = prod(rule.factor_sizes[factor] for factor in rule.operands[0][-1])
    return len(rule.operands[0]) > 1 and 1 < columns <= parts.num_shards(candidate.operands[0][-1])


_SEEN = "jaxlib 0.10.2 on host devices"


def _all(_: CollectivePolicy) -> bool:
    """One partitioner serves all: also machines on which nobody ran this avoid it."""
    return True


PARTITIONER_LIMITS = (
    PartitionerLimit(
        "features of a convolution, within a group",
        "convolution",
        Effect.WRONG_NUMBERS,
        _SEEN,
        _all,
        _makes_within_a_group,
    ),
    PartitionerLimit(
        "a convolution along space and in features: taken for the gradient of a kernel",
        "convolution",
        Effect.WRONG_NUMBERS,
        _SEEN,
        _all,
        _cuts_space_and_kernel,
    ),
    PartitionerLimit(
        "rows or groups that a convolution sums over part of the mesh: summed over all of it",
        "convolution",
        Effect.WRONG_NUMBERS,
        _SEEN,
        _all,
        _sums_over_some_devices,
    ),
    PartitionerLimit(
        "a matmul's sum over several axes, some scattered onto a batch dimension that is cut",
        "dot_general",
        Effect.WRONG_NUMBERS,
        _SEEN,
        _all,
        _scatters_some_onto_batch,
    ),
    PartitionerLimit(
        "features of an operand of a convolution, within a group",
        "convolution",
        Effect.GATHERED,
        f"{_SEEN}, libtpu 0.0.52",
        _all,
        _reads_within_a_group,
    ),
    PartitionerLimit(
        "a convolution whose groups have several input features, in any dimension",
        "convolution",
        Effect.GATHERED,
        f"{_SEEN}, CUDA plugin 0.10.2; not libtpu 0.0.52",
        lambda collectives: collectives.gathers_grouped_convolutions,
        _cuts_groups_of_many,
    ),
    PartitionerLimit(
        "the length of an array that several rows are written into",
        "dynamic_update_slice",
        Effect.GATHERED,
        f"{_SEEN}, CUDA plugin 0.10.2, libtpu 0.0.52",
        _all,
        _updates_rows_of_cut_length,
    ),
    *(
        PartitionerLimit(
            "the columns of an array that rows are written into, one column a device",
            name,
            Effect.WRONG_NUMBERS,
            _SEEN,
            _all,
            _updates_single_columns,
        )
        for name in ("dynamic_update_slice", "scatter")
    ),
)
"""One entry a family."""

LIMITED_OPS = frozenset(limit.op_name for limit in PARTITIONER_LIMITS)


def misreads_slices(op: Op) -> bool:
    """Whether an op may read rows of another shard where its first operand is cut on the way to it.

    XLA's algebraic simplifier makes one dynamic slice of two and drops the clamp of the inner one.
    A scatter of one row becomes an update of its shard that first reads the row there, clamped into
    the shard; read through the slice that cut the operand, it is the row that was asked for, on
    every shard (jaxlib 0.10.2). Cutting the result instead is right, and moves as little.
    """
    return op.op_class is OpClass.SCATTER and len(op.operands) == 3 and op.rule is not None


def misread(parts: MeshParts, rule: Rule, candidate: Candidate, have: Layout) -> bool:
    """Whether a scatter, cut so, misreads its operand when that is last cut from another layout."""
    indices = factors_of(rule.operands[1]) - rule.need_replication
    num_indices = prod(rule.factor_sizes[factor] for factor in indices)
    if num_indices > parts.num_pieces(candidate.operands[1]):
        return False
    taken = factors_of(rule.operands[2])
    return any(
        len(after) > len(before) and after[: len(before)] == before and taken.isdisjoint(factors)
        for factors, before, after in zip(
            rule.operands[0], have, candidate.operands[0], strict=True
        )
    )
