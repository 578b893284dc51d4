"""Gathers and scatters over one microbatch: what is looked up, where, and what comes of it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.accumulation.held import Held, Rows, Shared, Total
from autoshard.accumulation.op_over_batch import LocalOp, OpOverBatch


@dataclass(frozen=True, slots=True)
class _Places:
    """The dimensions of a gather or a scatter: what is looked up, where, and what comes of it.

    Args:
        table: The dimensions that are taken whole or by window, in order, of the operand.
        window: Those of the result (or updates) that they are.
        batching: By batching dimension of the operand, that of the indices.
        outside: The other dimensions of the result, in the order of those of the indices.
    """

    table: list[int]
    window: list[int]
    batching: dict[int, int] = field(default_factory=dict)
    outside: list[int] = field(default_factory=list)


def gathered(op: OpOverBatch) -> LocalOp:
    """A gather over one microbatch."""
    numbers, sizes = op.params["dimension_numbers"], op.params["slice_sizes"]
    gone = {*numbers.collapsed_slice_dims, *numbers.operand_batching_dims}
    places = _Places(
        [dim for dim in range(len(op.shape(0))) if dim not in gone],
        list(numbers.offset_dims),
        _batching(numbers.operand_batching_dims, numbers.start_indices_batching_dims),
        [d for d in range(len(op.result_shape)) if d not in numbers.offset_dims],
    )
    table, indices = op.rows(0), op.rows(1)
    if table and table.dim in places.table and not indices:
        if not op.batch.has(sizes, table):
            raise op.mixed("takes some of the examples")
        after = table.at(places.window[places.table.index(table.dim)])
        return op.one(0, after, {"slice_sizes": op.batch.piece(sizes, table)})
    wanted = _looked_up(op, places, table, indices)
    return LocalOp(wanted, (_outside(op, places, wanted[1]),))


def scattered(op: OpOverBatch) -> LocalOp:
    """A scatter over one microbatch, or its sum over all of them."""
    numbers = op.params["dimension_numbers"]
    gone = {*numbers.inserted_window_dims, *numbers.operand_batching_dims}
    places = _Places(
        [dim for dim in range(len(op.shape(0))) if dim not in gone],
        list(numbers.update_window_dims),
        _batching(numbers.operand_batching_dims, numbers.scatter_indices_batching_dims),
        [d for d in range(len(op.shape(2))) if d not in numbers.update_window_dims],
    )
    table, indices, updates = (op.rows(i) for i in range(3))
    in_window = (table and table.dim in places.table) or (updates and updates.dim in places.window)
    if in_window:
        rows = table or (updates and updates.at(places.table[places.window.index(updates.dim)]))
        assert rows is not None
        if rows.dim not in places.table or indices:
            raise op.mixed("writes some of the examples")
        inside = rows.at(places.window[places.table.index(rows.dim)])
        if updates not in (None, inside) or not op.batch.has(op.shape(2), inside):
            raise op.mixed("writes some of the examples")
        return LocalOp((rows, op.held[1], inside), (rows,))
    if indices is None and updates is not None:
        indices = updates.at(_index_dim(op, places, updates.dim))
    rows_of_table, index, _ = (*_looked_up(op, places, table, indices), None)
    inside = _outside(op, places, index)
    if updates not in (None, inside):
        raise op.mixed("has the examples in two dimensions")
    if isinstance(rows_of_table, Rows):
        return LocalOp((rows_of_table, index, inside), (rows_of_table,))
    if op.eqn.primitive.name != "scatter-add" or op.held[0] is not Shared.ZERO:
        raise op.mixed("writes examples of the batch over one another")
    return LocalOp((op.held[0], index, inside), (Total("add"),))


def _batching(table: Sequence[int], indices: Sequence[int]) -> dict[int, int]:
    return dict(zip(table, indices, strict=True))


def _looked_up(
    op: OpOverBatch, places: _Places, table: Rows | None, indices: Rows | None
) -> tuple[Held, Held]:
    """Rows of the table and of the indices, where examples look up in the same, or in their own."""
    back = {index: dim for dim, index in places.batching.items()}
    if table is not None:
        if table.dim not in places.batching or op.batch.full(table) != op.shape(0)[table.dim]:
            raise op.mixed("looks up examples of the batch")
        wanted = table.at(places.batching[table.dim])
        if indices not in (None, wanted):
            raise op.mixed("has the examples in two dimensions")
        return table, wanted
    if indices is None or indices.dim == len(op.shape(1)) - 1:
        raise op.mixed()
    return (indices.at(back[indices.dim]) if indices.dim in back else op.held[0]), indices


def _outside(op: OpOverBatch, places: _Places, index: Held) -> Rows:
    """Where the dimension of the indices is in the result."""
    if not isinstance(index, Rows):
        raise op.mixed()
    return index.at(places.outside[index.dim])


def _index_dim(op: OpOverBatch, places: _Places, dim: int) -> int:
    if dim not in places.outside:
        raise op.mixed()
    return places.outside.index(dim)
