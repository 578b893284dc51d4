"""What a traced function does to its arguments in vain: refused, by name.

`jax.jit` drops what a function writes into a list or dict that is its argument, and leaves tracers
in other objects. A list or dict may serve the function itself: `batch["mask"] = ...`, read again.
"""

from __future__ import annotations

import types
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import jax

# Private; checked on jax 0.10.2.
from jax._src.interpreters.partial_eval import DynamicJaxprTracer
from jax.core import Tracer
from jax.tree_util import keystr

from autoshard.errors import InputError
from autoshard.frontend.nnx_objects import leaves_beside_objects, readable_path

_DEPTH = 4
"""Objects within objects are looked at so deep."""
_NO_STATE = (type, types.ModuleType, types.FunctionType, types.BuiltinFunctionType)

Roots = Sequence[tuple[str, Any]]


class Written(NamedTuple):
    """A tracer in an argument.

    Args:
        name: Where it stands, `batch['mask']`.
        is_pytree: Whether that is a pytree.
        array: The tracer.
    """

    name: str
    is_pytree: bool
    array: Any


def same_array(one: Any, other: Any) -> bool:
    """Whether two traced arrays are one; what a `jax.jit` inside passes through stays the same."""
    return _identity(one) == _identity(other)


def written_tracers(roots: Roots) -> dict[int, Written]:
    """By identity, the tracers in arguments.

    Args:
        roots: Arguments by name; their NNX objects are not looked into.
    """
    found: dict[int, Written] = {}
    for root, tree in roots:
        for path, leaf in leaves_beside_objects(tree):
            name = root + readable_path(path)
            if isinstance(leaf, Tracer):
                found.setdefault(_identity(leaf), Written(name, True, leaf))
            else:
                for inner, tracer in _held(leaf, name, _DEPTH):
                    found.setdefault(_identity(tracer), Written(inner, False, tracer))
    return found


def check_side_effects(
    before: Iterable[int],
    after: dict[int, Written],
    returned: Iterable[Any],
    function: str,
) -> None:
    """Refuse arrays that a function left in its arguments, and that no result depends on.

    In objects that are no pytrees those that results depend on too: their tracers outlive the call.

    Args:
        before: Tracers in the arguments when it was called, by identity.
        after: Those in them after it, as `written_tracers` has them.
        returned: The arrays it returned, and those it put into its NNX objects.
        function: Its name.

    Raises:
        InputError: There are some; names the first.
    """
    returned = tuple(returned)
    known = {*before, *map(_identity, returned)}
    left = {identity: found for identity, found in after.items() if identity not in known}
    used = _depended_on(returned) if any(found.is_pytree for found in left.values()) else set()
    for name, is_pytree, array in left.values():
        if is_pytree:
            recorded = _recorded(array)
            if recorded is None or id(recorded.val) in used:
                continue
            raise InputError(
                f"`{function}` changes its argument in place, and traced functions do so in vain:"
                f" `{name}` is written and not returned",
                where=f"argument `{name}` of `{function}`",
                fix="return the new value, or write to a copy of the argument",
            )
        raise InputError(
            f"`{function}` leaves a traced array in an object: `{name}` is written and would hold"
            " no array after the call",
            where=f"argument `{name}` of `{function}`",
            fix="return the new value, and write it into the object outside",
        )


def _depended_on(arrays: Iterable[Any]) -> set[int]:
    """By identity, the traced values that arrays are computed from, and these."""
    found: set[int] = set()
    left = list(arrays)
    while left:
        array = _recorded(left.pop())
        if array is not None and id(array.val) not in found:
            found.add(id(array.val))
            if array.parent is not None:
                left += array.parent.in_tracers
    return found


def _recorded(array: Any) -> DynamicJaxprTracer | None:
    """What an array is in the traced program; None where that cannot be told.

    A tracer of `jax.grad` goes beside the value that it differentiates.
    """
    while not isinstance(array, DynamicJaxprTracer):
        array = getattr(array, "primal", None)
        if array is None:
            return None
    return array


def _held(holder: Any, name: str, depth: int) -> Iterator[tuple[str, Tracer]]:
    """Tracers in the attributes of an object that is no pytree, by name."""
    if depth == 0 or isinstance(holder, _NO_STATE) or not hasattr(holder, "__dict__"):
        return
    for attribute, value in vars(holder).items():
        for path, leaf in jax.tree_util.tree_leaves_with_path(value):
            inner = f"{name}.{attribute}{keystr(path)}"
            if isinstance(leaf, Tracer):
                yield inner, leaf
            else:
                yield from _held(leaf, inner, depth - 1)


def _identity(array: Any) -> int:
    """Equal for the same traced array; what a `jax.jit` inside passes through is its operand."""
    while isinstance(array, DynamicJaxprTracer) and array.parent is not None:
        made_by = array.parent
        if made_by.primitive.name != "jit":
            break
        body = made_by.params["jaxpr"].jaxpr
        passed = body.outvars[made_by.outvars.index(array.val)]
        if passed not in body.invars:
            break
        array = made_by.in_tracers[body.invars.index(passed)]
    return id(array.val if isinstance(array, DynamicJaxprTracer) else array)
