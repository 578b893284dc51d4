"""Writing one value's sharding where Shardy's passes look for it."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

_SHARDING = "sdy.sharding"
_OWN_ATTRIBUTE = frozenset({"sdy.sharding_constraint", "sdy.reshard"})


def write_sharding(op: Any, index: int, attribute: Any, *, is_argument: bool) -> None:
    """Give one value of an op a sharding.

    What a loop, branch or barrier hands on has it on its data-flow edge, where there is one.

    Args:
        op: The op that makes the value, or holds the block whose argument it is.
        index: Which result or block argument.
        attribute: An `sdy.sharding`.
        is_argument: Whether it is a block argument.
    """
    if op.name == "func.func" or op.name == "sdy.manual_computation":
        return  # said at the border of the function or region
    if op.name in _OWN_ATTRIBUTE:
        op.attributes["sharding"] = attribute
        return
    if index >= len(op.results):
        return
    value = op.results[index]
    edges = [
        use.owner.operation
        for use in value.uses
        if use.owner.operation.name == "sdy.data_flow_edge"
    ]
    if edges:
        edges[0].attributes["sharding"] = attribute
        return
    if is_argument:
        return
    _set_result(op, index, attribute)


def _set_result(op: Any, index: int, attribute: Any) -> None:
    if _SHARDING in op.attributes:
        given = sdy.TensorShardingPerValueAttr(op.attributes[_SHARDING])
        shardings = list(given.shardings)
    else:
        mesh = sdy.TensorShardingAttr(attribute).mesh_or_ref
        shardings = [_open(result, mesh) for result in op.results]
    shardings[index] = attribute
    op.attributes[_SHARDING] = sdy.TensorShardingPerValueAttr.get(shardings)


def _open(value: Any, mesh: Any) -> Any:
    """A sharding that says nothing of a value."""
    is_tensor = isinstance(value.type, ir.RankedTensorType)
    rank = len(value.type.shape) if is_tensor else 0
    dims = [sdy.DimensionShardingAttr.get([], is_closed=False) for _ in range(rank)]
    return sdy.TensorShardingAttr.get(mesh, dims)
