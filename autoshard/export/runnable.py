"""A sharded module in the form that XLA compiles.

XLA's own round trip keeps shardings of arguments and results, sharding constraints and manual
computations; what it does not know (data-flow edges, reshards, Shardy's collectives) makes it
refuse the module. On global values those are all the identity, so each becomes a constraint. So do
the shardings of what convolutions, FFTs, pools, pads, slices and concatenations read and make: cut
as other ops ask, within a group, in space by some of the axes alone, along a transform, or in
shards of the size of a slice of them, they are wrong, or end the process (jaxlib 0.10.2). Likewise
of a reduction that no all-reduce computes: cut along what it reduces, it does not compile. Host
CPUs compute an FFT in the dimension order of its shape alone: it keeps that.
"""

from __future__ import annotations

import numpy as np
from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy, stablehlo

from autoshard.apply.nested_ops import operations_of
from autoshard.export.collective_ops import KIND_BY_OP
from autoshard.export.named_computations import inline_named_computations
from autoshard.frontend.op_rules import has_all_reduce
from autoshard.mlir_modules import (
    RULE,
    SHARDING,
    MlirOp,
    MlirValue,
    Module,
    module_bytecode,
    module_context,
    number_of,
    parse_module,
    result_shardings,
    sharding_attribute,
)

_AS_CONSTRAINT = frozenset({*KIND_BY_OP, "sdy.reshard"})
_HELD = frozenset(
    {
        "stablehlo.concatenate",
        "stablehlo.convolution",
        "stablehlo.fft",
        "stablehlo.pad",
        "stablehlo.reduce_window",
        "stablehlo.slice",
    }
)


def runnable_module(module: str | bytes) -> bytes:
    """A module after any export step, as bytecode that XLA compiles and that computes the same.

    Raises:
        ExportError: It does not parse.
    """
    with module_context():
        parsed = parse_module(module)
        make_runnable(parsed)
        return module_bytecode(parsed)


def make_runnable(module: Module) -> None:
    """As `runnable_module`, of a parsed module, in place."""
    inline_named_computations(module.operation)
    for op in list(operations_of(module.operation)):
        if op.name == "stablehlo.fft":
            _keep_order(op)
        if op.name in _HELD or not has_all_reduce(op):
            _hold(op)
    for op in list(operations_of(module.operation)):
        if op.name == "sdy.data_flow_edge":
            op.results[0].replace_all_uses_with(op.operands[0])
            op.erase()
        elif op.name in _AS_CONSTRAINT:
            made = _constrained(op.operands[0], op.results[0], ir.InsertionPoint(op))
            op.results[0].replace_all_uses_with(made)
            op.erase()
        else:
            for name in (SHARDING, RULE):
                # XLA looks at them on arguments and results alone, and a loop that has them may
                # make it crash (seen in 0.10.2, where it takes loop invariants out).
                if name in op.attributes and not (
                    name == RULE and op.name == "stablehlo.custom_call"
                ):
                    del op.attributes[name]


def _hold(op: MlirOp) -> None:
    """Constrain what an op reads and makes to the shardings that are written on it."""
    for place, operand in enumerate(op.operands):
        if _has_sharding(operand):
            op.operands[place] = _constrained(operand, operand, ir.InsertionPoint(op))
    for result in op.results:
        if _has_sharding(result):
            made = _constrained(result, result, ir.InsertionPoint.after(op))
            result.replace_all_uses_except(made, made.owner.operation)


def _keep_order(op: MlirOp) -> None:
    """Keep the result of an op in the dimension order of its shape."""
    (result,) = op.results
    rank = ir.RankedTensorType(result.type).rank
    minor_first = ir.DenseElementsAttr.get(
        np.arange(rank)[::-1].astype(np.int64), type=ir.IndexType.get()
    )
    made = stablehlo.CustomCallOp(
        [result.type],
        [result],
        "LayoutConstraint",
        operand_layouts=ir.ArrayAttr.get([minor_first]),
        result_layouts=ir.ArrayAttr.get([minor_first]),
        ip=ir.InsertionPoint.after(op),
        loc=op.location,
    )
    result.replace_all_uses_except(made.operation.results[0], made.operation)


def _has_sharding(value: MlirValue) -> bool:
    return not isinstance(value.owner, ir.Block) and SHARDING in value.owner.attributes


def _constrained(value: MlirValue, like: MlirValue, place: ir.InsertionPoint) -> MlirValue:
    """A value with the sharding that is written on the result of an op."""
    maker = like.owner.operation
    sharding = result_shardings(maker)[number_of(like)]
    assert sharding is not None
    made = sdy.ShardingConstraintOp(
        value, sharding_attribute(sharding), ip=place, loc=maker.location
    )
    return made.operation.results[0]
