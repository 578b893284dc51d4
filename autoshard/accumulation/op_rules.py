"""The op over one microbatch that an op over a whole batch becomes, by primitive."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from jax._src.interpreters import batching  # private; checked on jax 0.10.2
from jax.extend.core import JaxprEqn, Literal

from autoshard.accumulation.held import Batch, Held, Rows, Shared, Total
from autoshard.accumulation.lookups import gathered, scattered
from autoshard.accumulation.op_over_batch import LocalOp, OpOverBatch
from autoshard.accumulation.totals import of_totals

_RULES: dict[str, Callable[[OpOverBatch], LocalOp]] = {
    "gather": gathered,
    "scatter": scattered,
    **{f"scatter-{kind}": scattered for kind in ("add", "mul", "min", "max", "sub")},
}


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
        return of_totals(op)
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
