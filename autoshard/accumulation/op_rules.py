"""The op over one microbatch that an op over a whole batch becomes, by primitive."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax._src.interpreters import batching  # private; checked on jax 0.10.2
from jax.extend.core import JaxprEqn, Literal

from autoshard.accumulation.held import Batch, Held, MixedExamplesError, Rows, Shape, Shared, Total


class LocalOp(NamedTuple):
    """An op over one microbatch.

    Args:
        operands: How it reads each operand; `Rows` of one that examples share is a piece of it.
        results: How each result depends on examples.
        params: That differ from those of the op over the whole batch.
    """

    operands: tuple[Held, ...]
    results: tuple[Held, ...]
    params: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class OpOverBatch:
    """An op some of whose operands depend on examples.

    Args:
        eqn: The op.
        held: By operand.
        batch: The batch.
    """

    eqn: JaxprEqn
    held: tuple[Held, ...]
    batch: Batch

    @property
    def params(self) -> Mapping[str, Any]:
        params: Mapping[str, Any] = self.eqn.params
        return params

    def shape(self, operand: int) -> Shape:
        return tuple(getattr(self.eqn.invars[operand].aval, "shape", ()))

    @property
    def result_shape(self) -> Shape:
        return tuple(self.eqn.outvars[0].aval.shape)

    def mixed(self, why: str = "takes examples of the batch together") -> MixedExamplesError:
        return MixedExamplesError(self.eqn, why)

    def rows(self, operand: int) -> Rows | None:
        found = self.held[operand]
        return found if isinstance(found, Rows) else None

    def only_rows(self, allowed: Sequence[int]) -> None:
        """Refuse examples in other operands than these."""
        if any(self.rows(i) and i not in allowed for i in range(len(self.held))):
            raise self.mixed()

    def one(self, operand: int, result: Rows, params: Mapping[str, Any] | None = None) -> LocalOp:
        """An op of which one operand carries the examples."""
        self.only_rows([operand])
        return LocalOp(self.held, (result,) * len(self.eqn.outvars), params or {})


_RULES: dict[str, Callable[[OpOverBatch], LocalOp]] = {}


def _rule(*names: str) -> Callable[[Callable[[OpOverBatch], LocalOp]], Callable[..., LocalOp]]:
    def register(rule: Callable[[OpOverBatch], LocalOp]) -> Callable[..., LocalOp]:
        _RULES.update(dict.fromkeys(names, rule))
        return rule

    return register


BY_ELEMENT = frozenset(
    primitive.name
    for primitive, batcher in batching.fancy_primitive_batchers.items()
    if getattr(batcher, "func", None) in (batching.vectorized_batcher, batching.broadcast_batcher)
) | {
    *("add_any", "clamp", "convert_element_type", "copy", "copy_p", "name", "random_wrap"),
    *("select_n", "sharding_constraint", "stop_gradient"),
}
"""Primitives that compute each element of the leading dimensions by itself."""

LEADING = frozenset(
    {"cholesky", "eig", "eigh", "fft", "householder_product", "lu", "qr", "svd", "tridiagonal"}
    | {"triangular_solve"}
)
"""Primitives that compute along the last dimensions and have a batch in front."""

_RANK = {"fft": lambda params: len(params["fft_lengths"])}
_REDUCTIONS = {
    "reduce_sum": "add",
    "reduce_max": "max",
    "reduce_min": "min",
    "reduce_and": "and",
    "reduce_or": "or",
}
_EACH_BY_ITSELF = frozenset({"optimization_barrier", "device_put"})
_KEEPS_ZERO = BY_ELEMENT & {
    *("add_any", "convert_element_type", "copy", "mul", "name", "neg", "stop_gradient")
} | {"broadcast_in_dim", "expand_dims", "reshape", "reduce_sum", "slice", "squeeze", "transpose"}
_LINEAR = frozenset(
    {
        *("add", "add_any", "broadcast_in_dim", "concatenate", "convert_element_type", "copy"),
        *("cumsum", "div", "dot_general", "dynamic_slice", "dynamic_update_slice", "expand_dims"),
        *(
            "gather",
            "mul",
            "name",
            "neg",
            "pad",
            "reduce_precision",
            "reduce_sum",
            "reshape",
            "rev",
        ),
        *("scatter-add", "select_n", "sharding_constraint", "slice", "split", "squeeze", "sub"),
        *("transpose",),
    }
)
"""Primitives that may be applied to the totals of microbatches, and these added up then."""
_ADDS = frozenset({"add", "add_any", "concatenate", "pad", "sub"})
_WRITES = frozenset({"dynamic_update_slice", "scatter-add"})


def local_op(eqn: JaxprEqn, held: tuple[Held, ...], batch: Batch) -> LocalOp:
    """An op without a body over one microbatch.

    Raises:
        MixedExamplesError: It takes examples together otherwise than to add them up.
    """
    if all(isinstance(one, Shared) for one in held):
        return LocalOp(held, (_shared_result(eqn, held),) * len(eqn.outvars))
    name = eqn.primitive.name
    if name in _EACH_BY_ITSELF:
        return LocalOp(held, held)
    op = OpOverBatch(eqn, held, batch)
    if any(isinstance(one, Total) for one in held):
        return _of_totals(op)
    if eqn.effects:
        raise op.mixed("has effects, which a loop over microbatches would repeat")
    if name in BY_ELEMENT:
        return _by_element(op)
    rule = _RULES.get(name)
    if rule is None:
        raise op.mixed("is an op that nobody has told how to run on some of the examples")
    return rule(op)


def _shared_result(eqn: JaxprEqn, held: tuple[Held, ...]) -> Shared:
    if eqn.primitive.name not in _KEEPS_ZERO or not held:
        return Shared.ANY
    if eqn.primitive.name == "mul":
        return Shared.ZERO if Shared.ZERO in held else Shared.ANY
    return Shared.ZERO if all(one is Shared.ZERO for one in held) else Shared.ANY


def held_literal(literal: Literal) -> Held:
    """Zero, or some other number that all examples share."""
    try:
        return Shared.ZERO if not literal.aval.shape and literal.val == 0 else Shared.ANY
    except TypeError:
        return Shared.ANY


def piece_of_result(eqn: JaxprEqn, rows: Rows, batch: Batch) -> LocalOp | None:
    """An op on what examples share that makes one microbatch's piece of its result.

    None where the result has to be made whole, and sliced.
    """
    name, params = eqn.primitive.name, eqn.params
    shapes = [tuple(getattr(atom.aval, "shape", ())) for atom in eqn.invars]
    results = (rows,) * len(eqn.outvars)
    if name == "broadcast_in_dim" and len(shapes) == 1:
        places = params["broadcast_dimensions"]
        held: Held = Shared.ANY
        if rows.dim in places:
            own = rows.at(places.index(rows.dim))
            held = own if batch.has(shapes[0], own) else Shared.ANY
        return LocalOp((held,), results, {"shape": batch.piece(params["shape"], rows)})
    if name in BY_ELEMENT and not name.startswith("random") and name != "sharding_constraint":
        operands = tuple(rows if batch.has(shape, rows) else Shared.ANY for shape in shapes)
        return LocalOp(operands, results) if rows in operands else None
    if name == "transpose":
        return LocalOp((rows.at(params["permutation"][rows.dim]),), results)
    return None


# -- ops on totals ----------------------------------------------------------------------------


def _of_totals(op: OpOverBatch) -> LocalOp:
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


# -- ops on rows ------------------------------------------------------------------------------


def _by_element(op: OpOverBatch) -> LocalOp:
    rows = next(one for one in op.held if isinstance(one, Rows))
    operands: list[Held] = []
    for i, one in enumerate(op.held):
        if isinstance(one, Rows):
            if one != rows:
                raise op.mixed("has the examples in two dimensions")
            operands.append(rows)
        else:
            operands.append(rows if op.batch.has(op.shape(i), rows) else one)
    return LocalOp(tuple(operands), (rows,) * len(op.eqn.outvars))


@_rule(*_REDUCTIONS, "reduce_prod", "reduce_xor", "argmax", "argmin", "reduce")
def _reduction(op: OpOverBatch) -> LocalOp:
    axes = op.params["dimensions" if op.eqn.primitive.name == "reduce" else "axes"]
    rows = op.rows(0)
    if rows is None or (op.eqn.primitive.name == "reduce" and len(op.held) > 2):
        raise op.mixed()
    if rows.dim not in axes:
        return op.one(0, rows.at(rows.dim - sum(axis < rows.dim for axis in axes)))
    kind = _REDUCTIONS.get(op.eqn.primitive.name)
    if kind is None:
        raise op.mixed()
    return LocalOp(op.held, (Total(kind),))


@_rule("cumsum", "cumprod", "cummax", "cummin", "cumlogsumexp")
def _cumulative(op: OpOverBatch) -> LocalOp:
    return _untouched(op, (op.params["axis"],))


@_rule("rev")
def _reversed(op: OpOverBatch) -> LocalOp:
    return _untouched(op, op.params["dimensions"])


@_rule("top_k", "approx_top_k")
def _top(op: OpOverBatch) -> LocalOp:
    rank = len(op.shape(0))
    axis = op.params.get("axis", op.params.get("reduction_dimension", -1))
    return _untouched(op, (axis % rank,))


def _untouched(op: OpOverBatch, touched: Sequence[int]) -> LocalOp:
    rows = op.rows(0)
    if rows is None or rows.dim in touched:
        raise op.mixed()
    return op.one(0, rows)


@_rule("transpose")
def _transpose(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0)
    assert rows is not None
    return op.one(0, rows.at(op.params["permutation"].index(rows.dim)))


@_rule("squeeze")
def _squeeze(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0)
    assert rows is not None
    return op.one(0, rows.at(rows.dim - sum(dim < rows.dim for dim in op.params["dimensions"])))


@_rule("expand_dims")
def _expand(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0)
    assert rows is not None
    dims = set(op.params["dimensions"])
    kept = [dim for dim in range(len(op.result_shape)) if dim not in dims]
    return op.one(0, rows.at(kept[rows.dim]))


@_rule("broadcast_in_dim")
def _broadcast(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0)
    if rows is None or len(op.held) > 1:
        raise op.mixed()
    after = rows.at(op.params["broadcast_dimensions"][rows.dim])
    return op.one(0, after, {"shape": op.batch.piece(op.params["shape"], after)})


@_rule("reshape")
def _reshape(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0)
    if rows is None or op.params["dimensions"] is not None:
        raise op.mixed()
    after = op.batch.reshaped(op.shape(0), rows, op.result_shape)
    if after is None:
        raise op.mixed("splits the examples over several dimensions")
    return op.one(0, after, {"new_sizes": op.batch.piece(op.result_shape, after)})


@_rule("concatenate", "sort")
def _along_dimension(op: OpOverBatch) -> LocalOp:
    found = _by_element(op)
    if any(isinstance(one, Rows) and one.dim == op.params["dimension"] for one in op.held):
        raise op.mixed()
    return found


@_rule("stack")
def _stack(op: OpOverBatch) -> LocalOp:
    found = _by_element(op)
    (rows,) = {one for one in found.operands if isinstance(one, Rows)}
    return found._replace(results=(rows.at(rows.dim + (rows.dim >= op.params["axis"])),))


@_rule("unstack")
def _unstack(op: OpOverBatch) -> LocalOp:
    found = _untouched(op, (op.params["axis"],))
    rows = op.rows(0)
    assert rows is not None
    after = rows.at(rows.dim - (rows.dim > op.params["axis"]))
    return found._replace(results=(after,) * len(op.eqn.outvars))


@_rule("split")
def _split(op: OpOverBatch) -> LocalOp:
    return _untouched(op, (op.params["axis"],))


@_rule("pad")
def _pad(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0)
    if rows is None or tuple(op.params["padding_config"][rows.dim]) != (0, 0, 0):
        raise op.mixed()
    return op.one(0, rows)


@_rule("slice")
def _slice(op: OpOverBatch) -> LocalOp:
    rows, params = op.rows(0), op.params
    assert rows is not None
    size, strides = op.shape(0)[rows.dim], params["strides"]
    first, last = params["start_indices"][rows.dim], params["limit_indices"][rows.dim]
    if (first, last) != (0, size) or (strides is not None and strides[rows.dim] != 1):
        raise op.mixed("takes some of the examples")
    return op.one(0, rows, {"limit_indices": op.batch.piece(params["limit_indices"], rows)})


@_rule("dynamic_slice")
def _dynamic_slice(op: OpOverBatch) -> LocalOp:
    rows, sizes = op.rows(0), op.params["slice_sizes"]
    if rows is None or not op.batch.has(sizes, rows):
        raise op.mixed("takes some of the examples")
    return op.one(0, rows, {"slice_sizes": op.batch.piece(sizes, rows)})


@_rule("dynamic_update_slice")
def _dynamic_update_slice(op: OpOverBatch) -> LocalOp:
    rows = op.rows(0) or op.rows(1)
    if rows is None or not all(op.batch.has(op.shape(i), rows) for i in (0, 1)):
        raise op.mixed("writes some of the examples")
    if any(op.rows(i) not in (None, rows) for i in (0, 1)):
        raise op.mixed("has the examples in two dimensions")
    op.only_rows([0, 1])
    return LocalOp((rows, rows, *op.held[2:]), (rows,))


@_rule(*LEADING)
def _leading(op: OpOverBatch) -> LocalOp:
    found = _by_element(op)
    along = _RANK.get(op.eqn.primitive.name, lambda _: 2)(op.params)
    for i, one in enumerate(found.operands):
        if isinstance(one, Rows) and one.dim >= len(op.shape(i)) - along:
            raise op.mixed()
    return found


@_rule("reduce_window", "reduce_window_sum", "reduce_window_max", "reduce_window_min")
def _window(op: OpOverBatch) -> LocalOp:
    return _windowed(op, op.held[:1])


@_rule("select_and_scatter_add", "select_and_gather_add")
def _window_of_two(op: OpOverBatch) -> LocalOp:
    return _windowed(op, op.held[:2])


def _windowed(op: OpOverBatch, data: Sequence[Held]) -> LocalOp:
    rows, params = next((one for one in data if isinstance(one, Rows)), None), op.params
    if rows is None:
        raise op.mixed()
    dim, ones = rows.dim, ("window_dimensions", "window_strides", "base_dilation")
    if any(name in params and params[name][dim] != 1 for name in ones) or tuple(
        params["padding"][dim]
    ) != (0, 0):
        raise op.mixed()
    return LocalOp((*(rows for _ in data), *op.held[len(data) :]), (rows,) * len(op.eqn.outvars))


@_rule("dot_general")
def _dot(op: OpOverBatch) -> LocalOp:
    (contracted, (left_batch, right_batch)) = op.params["dimension_numbers"]
    pairs = [list(zip(*dims, strict=True)) for dims in (contracted, (left_batch, right_batch))]
    side = 0 if op.rows(0) else 1
    rows = op.rows(side)
    assert rows is not None
    for is_batch, together in enumerate(pairs):
        for place, dims in enumerate(together):
            if dims[side] == rows.dim:
                other = rows.at(dims[1 - side])
                if op.rows(1 - side) not in (None, other):
                    raise op.mixed("has the examples in two dimensions")
                operands = (rows, other) if side == 0 else (other, rows)
                return LocalOp(operands, (rows.at(place) if is_batch else Total("add"),))
    if op.rows(1 - side):
        raise op.mixed("multiplies each example with every other")
    taken = [{dims[i] for together in pairs for dims in together} for i in (0, 1)]
    free = [[d for d in range(len(op.shape(i))) if d not in taken[i]] for i in (0, 1)]
    place = len(left_batch) + free[side].index(rows.dim) + (len(free[0]) if side else 0)
    return op.one(side, rows.at(place))


@_rule("conv_general_dilated")
def _convolution(op: OpOverBatch) -> LocalOp:
    numbers, params = op.params["dimension_numbers"], op.params
    image, kernel = op.rows(0), op.rows(1)
    left, right, out = numbers.lhs_spec, numbers.rhs_spec, numbers.out_spec
    if image and image.dim == left[0] and not kernel and params["batch_group_count"] == 1:
        return op.one(0, image.at(out[0]))
    is_summed = (image and image.dim == left[1]) or (kernel and kernel.dim == right[1])
    if is_summed and params["feature_group_count"] == 1:
        rows = image or kernel
        assert rows is not None
        wanted = (rows.at(left[1]), rows.at(right[1]))
        if all(own in (None, one) for own, one in zip((image, kernel), wanted, strict=True)):
            return LocalOp(wanted, (Total("add"),))
    if kernel and kernel.dim == right[0] and not image and params["feature_group_count"] == 1:
        return op.one(1, kernel.at(out[1]))
    raise op.mixed()


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


@_rule("gather")
def _gather(op: OpOverBatch) -> LocalOp:
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


@_rule("scatter", "scatter-add", "scatter-mul", "scatter-min", "scatter-max", "scatter-sub")
def _scatter(op: OpOverBatch) -> LocalOp:
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
