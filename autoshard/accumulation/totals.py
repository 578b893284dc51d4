"""Ops on what is added up over microbatches: linear ones, which a sum may come after."""

from __future__ import annotations

from autoshard.accumulation.held import Held, Rows, Shared, Total
from autoshard.accumulation.op_over_batch import LocalOp, OpOverBatch

_ADDS = frozenset({"add", "add_any", "concatenate", "pad", "sub"})
_WRITES = frozenset({"dynamic_update_slice", "scatter-add"})
_LINEAR = (
    _ADDS
    | _WRITES
    | {
        *("broadcast_in_dim", "convert_element_type", "copy", "cumsum", "div", "dot_general"),
        *("dynamic_slice", "expand_dims", "gather", "mul", "name", "neg", "reduce_precision"),
        *("reduce_sum", "reshape", "rev", "select_n", "sharding_constraint", "slice", "split"),
        *("squeeze", "transpose"),
    }
)
"""Primitives that may be applied to the totals of microbatches, and these added up then."""


def of_totals(op: OpOverBatch) -> LocalOp:
    """Linear ops, which a sum over microbatches may come after."""
    totals = {one for one in op.held if isinstance(one, Total)}
    if any(isinstance(one, Rows) for one in op.held) or totals != {Total("add")}:
        raise op.mixed("reads a total over the batch beside single examples")
    name, count = op.eqn.primitive.name, sum(isinstance(one, Total) for one in op.held)
    others_are_zero = all(map(_is_part, op.held))
    is_linear = name in _LINEAR and (
        (name in _ADDS and others_are_zero)
        or (name in _WRITES and _adds_parts(op))
        or (name == "select_n" and _selects_parts(op))
        or (name not in (*_ADDS, *_WRITES, "select_n") and count == 1 and _is_factor(op))
    )
    if not is_linear:
        raise op.mixed("reads a total over the batch, which is not there before all microbatches")
    return LocalOp(op.held, (Total("add"),) * len(op.eqn.outvars))


def _adds_parts(op: OpOverBatch) -> bool:
    """True where data and updates are totals or zero, and no place is a total."""
    data = (0, 1) if op.eqn.primitive.name == "dynamic_update_slice" else (0, 2)
    return all(
        _is_part(one) if i in data else isinstance(one, Shared) for i, one in enumerate(op.held)
    )


def _selects_parts(op: OpOverBatch) -> bool:
    """True where all that is chosen from is a total or zero, and the choice is none."""
    first, *rest = op.held
    return isinstance(first, Shared) and all(map(_is_part, rest))


def _is_part(held: Held) -> bool:
    return isinstance(held, Total) or held is Shared.ZERO


def _is_factor(op: OpOverBatch) -> bool:
    """True where the total is what the op is linear in."""
    name = op.eqn.primitive.name
    if name in ("mul", "dot_general"):
        return True
    kind = getattr(op.eqn.outvars[0].aval.dtype, "kind", "f")
    before = getattr(op.eqn.invars[0].aval.dtype, "kind", "f")
    if name in ("div", "convert_element_type") and (kind in "iub") and before != kind:
        return False
    if name == "div" and kind in "iu":
        return False
    return isinstance(op.held[0], Total)
