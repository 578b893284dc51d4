"""A call of a user's function, laid flat: which leaves are traced, which stay as they are."""

from __future__ import annotations

import inspect
import itertools
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from types import CoroutineType, GeneratorType
from typing import Any

import jax
import numpy as np
from jax.tree_util import KeyPath, PyTreeDef

from autoshard.errors import InputError
from autoshard.frontend.nnx_objects import (
    NnxObjects,
    attribute_path,
    is_nnx_object,
    is_nnx_state,
    leaves_alone,
    readable_path,
    split_objects,
)
from autoshard.frontend.side_effects import check_side_effects, same_array, written_tracers
from autoshard.printable import printable

_MOST_NAME = 200  # letters; a report shows it in one line
_SCALARS = (bool, int, float, complex)


@dataclass(frozen=True, slots=True)
class StaticLeaf:
    """A leaf that is no array: a function, a string, a Python scalar of an Equinox module."""

    index: int
    value: Any


@dataclass(frozen=True, slots=True, eq=False)
class FlatTree:
    """A pytree as its array leaves, and the way back.

    Args:
        leaves: The array leaves, in flattening order.
        names: For each array leaf, the name of its root and its key path.
        tree: Structure with every leaf, static ones included; NNX objects are their states.
        statics: The other leaves, by their position among all leaves.
        num_by_root: How many array leaves each root has.
        objects: Its Flax NNX objects, if there are any.
        object_leaves: Which array leaves are theirs.
    """

    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    tree: PyTreeDef
    statics: tuple[StaticLeaf, ...]
    num_by_root: tuple[int, ...]
    objects: NnxObjects | None = None
    object_leaves: tuple[int, ...] = ()

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The pytree with these array leaves in place of the ones it was made from."""
        tree = self.with_states(leaves)
        return tree if self.objects is None else self.objects.merged(tree)

    def with_states(self, leaves: Sequence[Any]) -> Any:
        """The same, with the states of NNX objects in their places."""
        return rebuild_tree(self.tree, self.statics, leaves)

    @property
    def is_all_arrays(self) -> bool:
        """Whether `jax.jit` takes and returns the pytree as it is."""
        return not self.statics and self.objects is None

    @property
    def dynamic_tree(self) -> PyTreeDef:
        """Structure of the array leaves alone: each static leaf is a `None`."""
        holes = tuple(StaticLeaf(static.index, None) for static in self.statics)
        return jax.tree.structure(rebuild_tree(self.tree, holes, self.leaves))


def rebuild_tree(tree: PyTreeDef, statics: Sequence[StaticLeaf], leaves: Sequence[Any]) -> Any:
    everything = list(leaves)
    for static in statics:  # ascending positions, so each insert lands where it was taken out
        everything.insert(static.index, static.value)
    return jax.tree.unflatten(tree, everything)


def is_array_leaf(leaf: Any) -> bool:
    """Whether JAX can trace this leaf: an array, a typed key, an abstract array, a number."""
    return isinstance(leaf, (jax.Array, np.ndarray, np.generic, *_SCALARS)) or (
        hasattr(leaf, "shape") and hasattr(leaf, "dtype")
    )


def flatten_named(roots: Sequence[tuple[str, Any]], container: Any) -> FlatTree:
    """Flatten `container`, whose children are the `roots` in order.

    Python scalars are traced, as `jax.jit` does, except inside an Equinox module, where they are
    settings (`equinox.filter_jit` leaves them alone too).
    """
    pure, objects = split_objects(container)
    states = iter(objects.objects_of(pure) if objects else ())
    leaves: list[Any] = []
    names: list[str] = []
    statics: list[StaticLeaf] = []
    object_leaves: list[int] = []
    ends = [0]
    index = 0
    for name, root in roots:
        found = jax.tree_util.tree_leaves_with_path(root, is_leaf=_is_library_object)
        alone = leaves_alone(path for path, _ in found)
        for (path, leaf), is_alone in zip(found, alone, strict=True):
            for readable, value, is_static in _leaves_of(path, leaf, states, is_alone=is_alone):
                if is_static:
                    statics.append(StaticLeaf(index, value))
                else:
                    if is_nnx_object(leaf):
                        object_leaves.append(len(leaves))
                    leaves.append(value)
                    names.append(name + readable)
                index += 1
        ends.append(len(leaves))
    return FlatTree(
        tuple(leaves),
        tuple(names),
        jax.tree.structure(pure),
        tuple(statics),
        tuple(end - start for start, end in itertools.pairwise(ends)),
        objects,
        tuple(object_leaves),
    )


def _leaves_of(
    path: KeyPath, leaf: Any, states: Iterator[Any], *, is_alone: bool
) -> Iterator[tuple[str, Any, bool]]:
    """Path, value and whether it is static, of a leaf or of those of a library's object."""
    if _is_equinox_module(leaf):
        found = jax.tree_util.tree_leaves_with_path(leaf)
        alone = leaves_alone(inner for inner, _ in found)
        for (inner, value), is_alone in zip(found, alone, strict=True):
            is_static = isinstance(value, _SCALARS) or not is_array_leaf(value)
            yield readable_path(path + inner, is_alone=is_alone), value, is_static
    elif is_nnx_object(leaf):
        for inner, value in jax.tree_util.tree_leaves_with_path(next(states)):
            readable = readable_path(path) + attribute_path(inner)
            yield readable, value, not is_array_leaf(value)
    else:
        for inner, value in jax.tree_util.tree_leaves_with_path(leaf):
            readable = readable_path(path + inner, is_alone=is_alone or bool(inner))
            yield readable, value, not is_array_leaf(value)


def _is_library_object(node: Any) -> bool:
    return _is_equinox_module(node) or is_nnx_object(node) or is_nnx_state(node)


def _is_equinox_module(node: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(node, equinox.Module)


@dataclass(frozen=True, slots=True)
class ArgumentObject:
    """An NNX object among the arguments that the function returns: the one at this place."""

    place: int


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of `fn`, with its static arguments taken out.

    Args:
        fn: The user's function.
        arguments: The traced leaves of `(positional arguments, keyword arguments)`.
        static_arguments: `(position, value)` of the arguments named in `static_argnums`.
        num_keywords: How many of the roots of `arguments`, the last ones, are keyword arguments.
    """

    fn: Callable[..., Any]
    arguments: FlatTree
    static_arguments: tuple[tuple[int, Any], ...]
    num_keywords: int

    def with_static(self, positional: Sequence[Any]) -> list[Any]:
        """Positional arguments with the static ones among them."""
        everything = list(positional)
        for position, value in self.static_arguments:
            everything.insert(position, value)
        return everything

    def finish(self, returned: Any) -> Any:
        """What the call returns, of what its flat function does; updates its NNX objects."""
        objects = self.arguments.objects
        if objects is None:
            return returned
        found, updates = returned
        leaves = list(self.arguments.leaves)
        for position, leaf in updates.items():
            leaves[position] = leaf
        objects.update(self.arguments.with_states(leaves))
        return jax.tree.map(
            lambda leaf: objects.objects[leaf.place] if isinstance(leaf, ArgumentObject) else leaf,
            found,
            is_leaf=lambda node: isinstance(node, ArgumentObject) or _is_library_object(node),
        )

    @property
    def name(self) -> str:
        return function_name(self.fn)


@dataclass(slots=True)
class Results:
    """Where a flat function leaves the structure of what it returned, once traced.

    Args:
        flat: What it returned; where arguments have NNX objects, with what replaces their arrays.
        updated: Flat arguments that the last leaves of it replace.
    """

    flat: FlatTree | None = field(default=None)
    updated: tuple[int, ...] = ()


def function_name(fn: Callable[..., Any]) -> str:
    """What errors call the function; a `functools.partial` goes by the function inside."""
    name = getattr(fn, "__name__", None) or getattr(getattr(fn, "func", None), "__name__", None)
    return printable(str(name or type(fn).__name__), _MOST_NAME)


def flatten_call(
    fn: Callable[..., Any],
    args: Sequence[Any],
    kwargs: dict[str, Any],
    static_argnums: int | Sequence[int] = (),
) -> Call:
    """Take a call apart into the leaves JAX traces and everything else.

    Raises:
        InputError: A static argument number is out of range.
    """
    positions = argument_positions(static_argnums, len(args), "static_argnums", fn)
    names = _parameter_names(fn, len(args))
    static = tuple((position, args[position]) for position in positions)
    traced = [(names[i], arg) for i, arg in enumerate(args) if i not in positions]
    container = (tuple(arg for _, arg in traced), kwargs)
    arguments = flatten_named([*traced, *sorted(kwargs.items())], container)
    return Call(fn, arguments, static, len(kwargs))


def argument_positions(
    numbers: int | Sequence[int], num_args: int, option: str, fn: Callable[..., Any]
) -> tuple[int, ...]:
    """Argument numbers as ascending positions from 0.

    Raises:
        InputError: One of them is not below the number of arguments.
    """
    found = tuple(numbers) if isinstance(numbers, Sequence) else (numbers,)
    for number in found:
        if not -num_args <= number < num_args:
            raise InputError(
                f"{option} names argument {number}, but the call has {num_args} positional"
                f" argument{'' if num_args == 1 else 's'}",
                where=f"{option}={numbers!r} of `{function_name(fn)}`",
                fix="count positional arguments from 0",
            )
    return tuple(sorted({number % num_args for number in found}))


def flat_function(call: Call) -> tuple[Callable[..., tuple[Any, ...]], Results]:
    """`fn` as a function of flat array leaves to flat array leaves.

    Where arguments have NNX objects, the arrays that replace theirs come after those it returns.
    The structure of its result appears in the second value once the function has run.
    """
    results = Results()

    def run(*leaves: Any) -> tuple[Any, ...]:
        given = call.arguments.rebuild(leaves)
        positional = call.with_static(given[0])
        names = _parameter_names(call.fn, len(positional))
        roots = [*zip(names, positional, strict=True), *given[1].items()]
        held = written_tracers(roots)
        returned = call.fn(*positional, **given[1])
        flat = flatten_named([("result", returned)], returned)
        _refuse_other_results(call, returned)
        updates = {} if call.arguments.objects is None else _updates(call, leaves, given)
        kept = (*flat.leaves, *updates.values())
        check_side_effects(held, written_tracers(roots), kept, call.name)
        if call.arguments.objects is not None:
            results.updated = tuple(updates)
            flat = _with_updates(call, given, returned, updates)
        # Traced values must not outlive the trace: jax.checking_leaks would find them here.
        results.flat = replace(flat, leaves=(None,) * len(flat.leaves))
        return flat.leaves

    run.__name__ = run.__qualname__ = call.name
    return run, results


def _refuse_other_results(call: Call, returned: Any) -> None:
    """Refuse text and generators among what is returned; text of an Equinox module is a setting."""
    leaves = jax.tree.leaves(returned, is_leaf=_is_library_object)
    texts = [leaf for leaf in leaves if isinstance(leaf, (str, bytes))]
    if any(isinstance(leaf, (GeneratorType, CoroutineType)) for leaf in leaves):
        raise InputError(
            f"`{call.name}` returns a generator or coroutine, of which nothing has run",
            where="its result",
            fix="return arrays: a tuple in the place of a generator, no async function",
        )
    if texts:
        raise InputError(
            f"`{call.name}` returns text, and a result can only be an array: {texts[0]!r}",
            where="its result",
            fix="return arrays, and keep text out of the function",
        )


def _updates(call: Call, leaves: Sequence[Any], given: Any) -> dict[int, Any]:
    """By flat argument, the new array of an NNX object that the function updated.

    Raises:
        InputError: More than arrays was changed, or the type of one.
    """
    arguments = call.arguments
    assert arguments.objects is not None
    before = [leaves[position] for position in arguments.object_leaves]
    found = arguments.objects.leaves_after(given, f"`{call.name}`")
    after = [leaf for leaf in found if is_array_leaf(leaf)]
    updates = {}
    for position, old, new in zip(arguments.object_leaves, before, after, strict=True):
        if same_array(old, new):
            continue
        if (old.shape, old.dtype) != (new.shape, new.dtype):
            raise InputError(
                f"`{call.name}` makes `{arguments.names[position]}` {_type(new)}, which was"
                f" {_type(old)}: no next call can take it",
                where=f"argument `{arguments.names[position]}` of `{call.name}`",
                fix="keep its shape and type, or return the new array instead",
            )
        updates[position] = new
    return updates


def _with_updates(call: Call, given: Any, returned: Any, updates: dict[int, Any]) -> FlatTree:
    """What a function returns and what it updates; its own objects are named, and not returned."""
    assert call.arguments.objects is not None
    objects = call.arguments.objects.objects_of(given)
    place_by_id = {id(found): place for place, found in enumerate(objects)}
    marked = jax.tree.map(
        lambda leaf: ArgumentObject(place_by_id[id(leaf)]) if id(leaf) in place_by_id else leaf,
        returned,
        is_leaf=_is_library_object,
    )
    flat = flatten_named([("result", marked), ("updated", updates)], (marked, updates))
    named = [f"updated.{call.arguments.names[position]}" for position in updates]
    return replace(flat, names=(*flat.names[: flat.num_by_root[0]], *named))


def _type(array: Any) -> str:
    return f"{array.dtype}[{','.join(map(str, array.shape))}]"


def _parameter_names(fn: Callable[..., Any], num_args: int) -> list[str]:
    """What the function calls each positional argument: `state`, `args[1]` of `*args`."""
    try:
        parameters = list(inspect.signature(fn).parameters.values())
    except (TypeError, ValueError):
        parameters = []
    names: list[str] = []
    for parameter in parameters:
        if parameter.kind is parameter.VAR_POSITIONAL:
            names += [f"{parameter.name}[{i}]" for i in range(num_args - len(names))]
        elif parameter.kind in (parameter.POSITIONAL_ONLY, parameter.POSITIONAL_OR_KEYWORD):
            names.append(parameter.name)
    names += [f"args[{i}]" for i in range(len(names), num_args)]
    return names[:num_args]
