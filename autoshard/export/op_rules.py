"""The sharding rule of an op as the export passes and the verifier read it."""

from __future__ import annotations

from math import prod
from typing import Any

from jaxlib.mlir.dialects import sdy

from autoshard.collectives import OpWork
from autoshard.frontend import op_kinds
from autoshard.frontend.op_flops import op_flops
from autoshard.frontend.op_rules import has_all_reduce, own_rule
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.graph.rule import Rule
from autoshard.mlir_modules import RULE, MlirOp, Module, factor_indices, run_passes, shape_of

# Ops that hold or hand on values, or say something of them; no rule cuts them.
WITHOUT_RULE = frozenset(
    """func.func func.return func.call sdy.mesh sdy.return sdy.manual_computation
    sdy.named_computation sdy.sharding_constraint sdy.sharding_group sdy.reshard sdy.data_flow_edge
    sdy.propagation_barrier sdy.func_data_flow_edge sdy.all_gather sdy.all_slice sdy.all_to_all
    sdy.collective_permute sdy.all_reduce sdy.reduce_scatter sdy.sharded_to_unreduced
    sdy.replicated_to_unreduced stablehlo.while stablehlo.case stablehlo.if stablehlo.return
    stablehlo.optimization_barrier stablehlo.custom_call_layout builtin.module""".split()
)

SOURCES = frozenset("stablehlo.constant sdy.constant stablehlo.iota".split())
"""Every device makes its own piece of their results, cut as they may be."""


def write_rules(module: Module) -> None:
    """Put Shardy's rule on every op it has one for."""
    run_passes(
        module,
        "func.func(sdy-populate-op-sharding-rules)",
        step="finding the sharding rules of ops",
    )


def rule_of(op: MlirOp) -> tuple[Rule | None, bool]:
    """The rule of an op that works on tensors; None where it must be whole.

    Shardy's where it is written on the op, else that of autoshard's own (chlo ops).

    Returns:
        The rule, and whether a cut of a summed factor can be undone by summing: not where several
        results are reduced together, as in an argmax, nor where compilers have no such all-reduce.
    """
    is_summable = not (op.name == "stablehlo.reduce" and len(op.results) > 1) and has_all_reduce(op)
    if RULE in op.attributes:
        return _read(op.attributes[RULE]), is_summable
    shapes = tuple(shape_of(value) or () for value in op.operands)
    results = tuple(shape_of(value) or () for value in op.results)
    if op.name.startswith("chlo."):
        rule, is_whole = own_rule(op, shapes, results)
        return (None if is_whole else rule), is_summable
    if 0 in map(prod, (*shapes, *results)) and op.name == "stablehlo.reshape":
        return own_rule(op, shapes, results)[0], is_summable
    return None, is_summable


def _read(attribute: Any) -> Rule:
    rule = sdy.OpShardingRuleAttr(attribute)

    return Rule(
        tuple(rule.factor_sizes),
        factor_indices(rule.operand_mappings),
        factor_indices(rule.result_mappings),
        frozenset(rule.reduction_factors),
        frozenset(rule.need_replication_factors),
        frozenset(rule.permutation_factors),
    )


def work_of(op: MlirOp) -> OpWork:
    """What an op does when it is run whole, as far as a price of it needs it."""
    name = op.name.partition(".")[2]
    types = [read_tensor_type(value.type) for value in op.operands]
    made = [read_tensor_type(value.type) for value in op.results]
    kind = op_kinds.op_class(name)
    dtype = (types or made)[0][1]
    return OpWork(flops=op_flops(op, name, kind, types, made), dtype=dtype, op_class=kind.value)
