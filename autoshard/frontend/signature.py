"""A call of a user's function, laid flat: which leaves are traced, which stay as they are."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import jax
import numpy as np
from jax.tree_util import GetAttrKey, KeyPath, PyTreeDef, keystr

from autoshard.errors import InputError
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
        tree: Structure with every leaf, static ones included.
        statics: The other leaves, by their position among all leaves.
    """

    leaves: tuple[Any, ...]
    names: tuple[str, ...]
    tree: PyTreeDef
    statics: tuple[StaticLeaf, ...]

    def rebuild(self, leaves: Sequence[Any]) -> Any:
        """The pytree with these array leaves in place of the ones it was made from."""
        return rebuild_tree(self.tree, self.statics, leaves)

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
    leaves: list[Any] = []
    names: list[str] = []
    statics: list[StaticLeaf] = []
    index = 0
    for name, root in roots:
        for path, leaf in jax.tree_util.tree_leaves_with_path(root, is_leaf=_is_equinox_module):
            if _is_equinox_module(leaf):
                found = [
                    (path + inner, value, isinstance(value, _SCALARS) or not is_array_leaf(value))
                    for inner, value in jax.tree_util.tree_leaves_with_path(leaf)
                ]
            else:
                found = [(path, leaf, not is_array_leaf(leaf))]
            for full_path, value, is_static in found:
                if is_static:
                    statics.append(StaticLeaf(index, value))
                else:
                    leaves.append(value)
                    names.append(name + _readable(full_path))
                index += 1
    return FlatTree(tuple(leaves), tuple(names), jax.tree.structure(container), tuple(statics))


def _readable(path: KeyPath) -> str:
    """`['params'].w1[0]`; a Flax variable's own `.value` says nothing and is left out."""
    if path and isinstance(path[-1], GetAttrKey) and path[-1].name == "value":
        path = path[:-1]
    return str(keystr(path))


def _is_equinox_module(node: Any) -> bool:
    equinox = sys.modules.get("equinox")
    return equinox is not None and isinstance(node, equinox.Module)


@dataclass(frozen=True, slots=True, eq=False)
class Call:
    """One call of `fn`, with its static arguments taken out.

    Args:
        fn: The user's function.
        arguments: The traced leaves of `(positional arguments, keyword arguments)`.
        static_arguments: `(position, value)` of the arguments named in `static_argnums`.
        num_leaves_by_argument: For each positional argument, then each keyword argument, how many
            array leaves it has.
    """

    fn: Callable[..., Any]
    arguments: FlatTree
    static_arguments: tuple[tuple[int, Any], ...]
    num_leaves_by_argument: tuple[int, ...]

    def arguments_from(self, leaves: Sequence[Any]) -> tuple[list[Any], dict[str, Any]]:
        positional, keywords = self.arguments.rebuild(leaves)
        everything = list(positional)
        for position, value in self.static_arguments:
            everything.insert(position, value)
        return everything, keywords

    @property
    def name(self) -> str:
        return function_name(self.fn)


@dataclass(slots=True)
class Results:
    """Where a flat function leaves the structure of what it returned, once traced."""

    flat: FlatTree | None = field(default=None)


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
        InputError: A static argument number is out of range, or an argument is a Flax module that
            is not a pytree.
    """
    positions = argument_positions(static_argnums, len(args), "static_argnums", fn)
    names = _parameter_names(fn, len(args))
    static = tuple((position, args[position]) for position in positions)
    traced = [(names[i], arg) for i, arg in enumerate(args) if i not in positions]
    roots = [*traced, *sorted(kwargs.items())]
    for name, arg in roots:
        _refuse_non_pytree_modules(name, arg)
    container = (tuple(arg for _, arg in traced), kwargs)
    return Call(
        fn,
        flatten_named(roots, container),
        static,
        tuple(len(flatten_named([root], root[1]).leaves) for root in roots),
    )


def argument_positions(
    numbers: int | Sequence[int], num_args: int, option: str, fn: Callable[..., Any]
) -> tuple[int, ...]:
    """Argument numbers as ascending positions from 0.

    Raises:
        InputError: One of them is not below the number of arguments.
    """
    found = (numbers,) if isinstance(numbers, int) else tuple(numbers)
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

    The structure of its result appears in the second value once the function has run.
    """
    results = Results()

    def run(*leaves: Any) -> tuple[Any, ...]:
        args, kwargs = call.arguments_from(leaves)
        returned = call.fn(*args, **kwargs)
        flat = flatten_named([("result", returned)], returned)
        _refuse_text(call, flat)
        # Traced values must not outlive the trace: jax.checking_leaks would find them here.
        results.flat = replace(flat, leaves=(None,) * len(flat.leaves))
        return flat.leaves

    run.__name__ = run.__qualname__ = call.name
    return run, results


def _refuse_text(call: Call, results: FlatTree) -> None:
    texts = [leaf.value for leaf in results.statics if isinstance(leaf.value, (str, bytes))]
    if texts:
        raise InputError(
            f"`{call.name}` returns text, and a result can only be an array: {texts[0]!r}",
            where="its result",
            fix="return arrays, and keep text out of the function",
        )


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


def _refuse_non_pytree_modules(name: str, arg: Any) -> None:
    nnx = sys.modules.get("flax.nnx")
    if nnx is not None and isinstance(arg, nnx.Module) and jax.tree_util.all_leaves([arg]):
        raise InputError(
            f"a Flax module of type {type(arg).__name__} is not a pytree here",
            where=f"argument `{name}`",
            fix="pass its state: graphdef, state = flax.nnx.split(module), and merge inside",
        )
