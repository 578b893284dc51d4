"""Look-ups of each example in its own part of a table, `x[arange(batch), labels]`, said as such."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

from jax.extend.core import JaxprEqn, Literal, Var

_NAMES = {
    "gather": ("collapsed_slice_dims", "start_index_map", "start_indices_batching_dims"),
    "scatter": (
        "inserted_window_dims",
        "scatter_dims_to_operand_dims",
        "scatter_indices_batching_dims",
    ),
}
"""Fields of gathers and scatters: dimensions of one element, those looked up, and a batch's."""


def with_batched_lookups(eqns: Sequence[JaxprEqn]) -> Iterator[JaxprEqn]:
    """The equations with gathers and scatters along an iota as those of a batch of tables."""
    made_by: dict[Var, JaxprEqn] = {}
    for eqn in eqns:
        made_by.update(dict.fromkeys(eqn.outvars, eqn))
        names = _NAMES.get(eqn.primitive.name.partition("-")[0])
        if names is None:
            yield eqn
        else:
            yield from _batched(eqn, names, made_by)


def _batched(
    eqn: JaxprEqn, names: tuple[str, str, str], made_by: dict[Var, JaxprEqn]
) -> Iterator[JaxprEqn]:
    """A look-up without the components of its indices that are their own place."""
    gone, looked_up, batching = names
    numbers, table = eqn.params["dimension_numbers"], eqn.invars[0].aval
    components = _components(eqn.invars[1], made_by)
    if components is None or len(components) != len(getattr(numbers, looked_up)):
        yield eqn
        return
    kept: list[tuple[Any, int]] = []
    dims: dict[int, int] = {}
    for component, dim in zip(components, getattr(numbers, looked_up), strict=True):
        place = _iota_dim(component, made_by) if dim in getattr(numbers, gone) else None
        if place is None or component.aval.shape[place] != table.shape[dim]:
            kept.append((component, dim))
        else:
            dims[dim] = place
    is_one_to_one = len({*dims.values()}) == len(dims)
    if not dims or not kept or not is_one_to_one or getattr(numbers, batching):
        yield eqn
        return
    indices = kept[0][0]
    if len(kept) > 1:
        join = made_by[eqn.invars[1]]
        shape = (*indices.aval.shape[:-1], len(kept))
        indices = Var(join.outvars[0].aval.update(shape=shape))
        yield join.replace(invars=[one for one, _ in kept], outvars=[indices])
    in_order = sorted(dims)
    changed = numbers._replace(
        **{
            gone: tuple(dim for dim in getattr(numbers, gone) if dim not in dims),
            looked_up: tuple(dim for _, dim in kept),
            "operand_batching_dims": tuple(in_order),
            batching: tuple(dims[dim] for dim in in_order),
        }
    )
    params = {**eqn.params, "dimension_numbers": changed, "indices_are_sorted": False}
    yield eqn.replace(invars=[eqn.invars[0], indices, *eqn.invars[2:]], params=params)


def _components(indices: Any, made_by: dict[Var, JaxprEqn]) -> list[Any] | None:
    """The parts of indices along their last dimension, one for each dimension looked up."""
    eqn = None if isinstance(indices, Literal) else made_by.get(indices)
    if eqn is None or eqn.primitive.name != "concatenate":
        return None
    is_last = eqn.params["dimension"] == len(indices.aval.shape) - 1
    is_single = all(atom.aval.shape[-1] == 1 for atom in eqn.invars)
    return list(eqn.invars) if is_last and is_single else None


def _iota_dim(atom: Any, made_by: dict[Var, JaxprEqn]) -> int | None:
    """The dimension whose own place each element is; None where they are something else."""
    eqn = None if isinstance(atom, Literal) else made_by.get(atom)
    if eqn is None:
        return None
    name, params = eqn.primitive.name, eqn.params
    if name == "iota":
        dim: int = params["dimension"]
        return dim
    if name == "select_n" and len(eqn.invars) == 3 and _is_below_zero(eqn, made_by):
        return _iota_dim(eqn.invars[1], made_by)
    if name not in ("convert_element_type", "broadcast_in_dim", "reshape"):
        return None
    before = _iota_dim(eqn.invars[0], made_by)
    if before is None or name == "convert_element_type":
        return before
    source, target = eqn.invars[0].aval.shape, eqn.outvars[0].aval.shape
    if name == "broadcast_in_dim":
        after: int = params["broadcast_dimensions"][before]
        is_whole: bool = source[before] == target[after]
        return after if is_whole else None
    wide = [d for d, size in enumerate(target) if size != 1]
    narrow = [d for d, size in enumerate(source) if size != 1]
    if [source[d] for d in narrow] != [target[d] for d in wide] or before not in narrow:
        return None
    return wide[narrow.index(before)]


def _is_below_zero(eqn: JaxprEqn, made_by: dict[Var, JaxprEqn]) -> bool:
    """True where a selection wraps negative indices around."""
    test = made_by.get(eqn.invars[0]) if isinstance(eqn.invars[0], Var) else None
    return (
        test is not None
        and test.primitive.name == "lt"
        and test.invars[0] is eqn.invars[1]
        and isinstance(test.invars[1], Literal)
        and test.invars[1].val == 0
    )
