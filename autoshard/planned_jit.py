"""`autoshard.jit`: functions that are planned at their first call, for the shapes they see."""

from __future__ import annotations

import copy
import difflib
import functools
import inspect
import threading
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, overload

import jax
import numpy as np

from autoshard.api import optimize
from autoshard.apply.planned_function import PlannedFunction
from autoshard.apply.wrapping import call_signature
from autoshard.argument_types import check_types
from autoshard.errors import InputError
from autoshard.frontend.argument_roles import ArgumentRoles, read_roles
from autoshard.frontend.meshes import mesh_in_context
from autoshard.frontend.signature import Call, flatten_call
from autoshard.plan import Plan

_OWN = frozenset({"fn", "args", "kwargs", "donate_argnums", "static_argnums"})
_OF_JIT = frozenset(
    {"compiler_options", "donate_argnames", "donate_argnums", "static_argnames", "static_argnums"}
)
_OPTIONS = frozenset(inspect.signature(optimize).parameters) - _OWN


@dataclass(eq=False)
class _Planned:
    """The plan of one signature, and the function under it."""

    plan: Plan
    jit_options: Mapping[str, Any]

    @functools.cached_property
    def function(self) -> PlannedFunction:
        return self.plan.jit(moves_arguments=True, retraces=False, **self.jit_options)


class PlannedJit:
    """What `autoshard.jit` gives: a function planned once per signature, called like any other.

    A signature is what `jax.jit` traces anew for: shapes, types and weak types of arrays, the trees
    they are in, static arguments; and the mesh of `jax.set_mesh` where no other is given.
    """

    def __init__(
        self,
        fn: Callable[..., Any],
        arguments: ArgumentRoles,
        options: Mapping[str, Any],
        compiler_options: Mapping[str, Any] | None,
    ) -> None:
        self._fn = fn
        self._arguments = arguments
        self._options = dict(options)
        self._jit_options = {"compiler_options": compiler_options} if compiler_options else {}
        self._instance: tuple[Any, ...] = ()
        self._planned: dict[Hashable, _Planned] = {}
        self._by_types: dict[Hashable, _Planned] = {}
        self._lock = threading.RLock()
        functools.update_wrapper(self, fn, updated=())

    def __get__(self, instance: Any, owner: type | None = None) -> PlannedJit:
        if instance is None:
            return self
        method = copy.copy(self)  # of the same plans
        method._instance = (instance,)
        return method

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        planned, args, kwargs = self._planned_for(args, kwargs)
        return planned.function(*args, **kwargs)

    def plan(self, *args: Any, **kwargs: Any) -> Plan:
        """Returns the plan for these arguments, arrays or `jax.ShapeDtypeStruct`s; makes it once.

        Raises:
            InputError, ExportError, ConstraintError: As `optimize`.
        """
        return self._planned_for(args, kwargs)[0].plan

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Traces the function under its plan for these arguments, as `jax.jit`'s `trace` does."""
        planned, args, kwargs = self._planned_for(args, kwargs)
        return planned.function.trace(*args, **kwargs)

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lowers the function under its plan for these arguments, as `jax.jit`'s `lower` does."""
        planned, args, kwargs = self._planned_for(args, kwargs)
        return planned.function.lower(*args, **kwargs)

    @property
    def plans(self) -> tuple[Plan, ...]:
        """Those made so far, in the order of their signatures' first calls."""
        return tuple(planned.plan for planned in self._planned.values())

    def clear_cache(self) -> None:
        """Forget all plans; the next call makes one."""
        with self._lock:
            self._planned.clear()
            self._by_types.clear()

    def _planned_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[_Planned, tuple[Any, ...], dict[str, Any]]:
        """The plan of a call, and the call's arguments without the static keyword arguments."""
        args, kwargs, settings = self._bound(args, kwargs)
        static = tuple(sorted(place for place in self._arguments.static if place < len(args)))
        values = (*(args[place] for place in static), *sorted(settings.items()), self._context())
        dynamic = [argument for place, argument in enumerate(args) if place not in static]
        types = _types((dynamic, kwargs), values)
        found = None if types is None else self._by_types.get(types)
        if found is None:
            call = flatten_call(self._fn, args, kwargs, static)
            found = self._find(call, args, kwargs, settings)
            if types is not None and call.arguments.is_all_arrays:
                self._by_types[types] = found
        return found, args, kwargs

    def _find(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: dict[str, Any],
    ) -> _Planned:
        signature = call_signature(call)
        key = (signature, tuple(sorted(settings.items())), self._context())
        try:
            hash(key)
        except TypeError:
            signature = None
        if signature is None:
            raise _not_hashable(call, settings)
        with self._lock:
            if key not in self._planned:
                self._planned[key] = self._made(call, args, kwargs, settings)
            return self._planned[key]

    def _made(
        self,
        call: Call,
        args: tuple[Any, ...],
        kwargs: dict[str, Any],
        settings: dict[str, Any],
    ) -> _Planned:
        fn = functools.partial(self._fn, **settings) if settings else self._fn
        plan = optimize(
            fn,
            *args,
            kwargs=kwargs,
            donate_argnums=tuple(sorted(n for n in self._arguments.donated if n < len(args))),
            static_argnums=tuple(place for place, _ in call.static_arguments),
            **self._options,
        )
        return _Planned(plan, self._jit_options)

    def _bound(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[tuple[Any, ...], dict[str, Any], dict[str, Any]]:
        """Positional arguments, keyword arguments, and static keyword arguments of a call.

        Keyword arguments that may be positional become so: donated and static ones go by position.
        """
        args = (*self._instance, *args)
        names = self._arguments.names
        if kwargs:
            kwargs = dict(kwargs)
            while len(args) < len(names) and names[len(args)] in kwargs:
                args = (*args, kwargs.pop(names[len(args)]))
        static = [name for name in kwargs if name in self._arguments.static_names]
        settings = {name: kwargs.pop(name) for name in static}
        return args, kwargs, settings

    def _context(self) -> Hashable:
        """The mesh of `jax.set_mesh`, where plans are for that."""
        is_given = self._options.get("mesh") is not None or self._options.get("devices") is not None
        return None if is_given else mesh_in_context()


@overload
def jit(
    fn: Callable[..., Any],
    *,
    mesh: Any = ...,
    donate_argnums: int | Sequence[int] = ...,
    donate_argnames: str | Sequence[str] = ...,
    static_argnums: int | Sequence[int] = ...,
    static_argnames: str | Sequence[str] = ...,
    compiler_options: Mapping[str, Any] | None = ...,
    **options: Any,
) -> PlannedJit: ...


@overload
def jit(
    fn: None = ...,
    *,
    mesh: Any = ...,
    donate_argnums: int | Sequence[int] = ...,
    donate_argnames: str | Sequence[str] = ...,
    static_argnums: int | Sequence[int] = ...,
    static_argnames: str | Sequence[str] = ...,
    compiler_options: Mapping[str, Any] | None = ...,
    **options: Any,
) -> Callable[[Callable[..., Any]], PlannedJit]: ...


def jit(
    fn: Callable[..., Any] | None = None,
    *,
    mesh: Any = None,
    donate_argnums: int | Sequence[int] = (),
    donate_argnames: str | Sequence[str] = (),
    static_argnums: int | Sequence[int] = (),
    static_argnames: str | Sequence[str] = (),
    compiler_options: Mapping[str, Any] | None = None,
    **options: Any,
) -> PlannedJit | Callable[[Callable[..., Any]], PlannedJit]:
    """`jax.jit` of a function that is planned at its first call, once per signature.

    In place of `jax.jit(train_step, donate_argnums=0)`:
    `autoshard.jit(train_step, mesh=mesh, hardware="tpu-v5p", donate_argnums=0)`. Arrays that lie on
    the devices in another sharding than the plan's are moved by a call. Within another `jit`, the
    shardings of the plan become constraints of that program.

    Args:
        fn: Any JAX function; left out, what is returned decorates one.
        mesh: As for `optimize`; that of `jax.set_mesh` at the call if not given.
        donate_argnums: Arguments whose buffers the step may reuse; of a `jax.jit` function, those
            that it donates unless others are given. Likewise the static ones.
        donate_argnames: The same by name.
        static_argnums: Arguments that are no arrays; they must be hashable.
        static_argnames: The same by name, keyword-only ones too.
        compiler_options: As for `jax.jit`.
        options: Any other option of `optimize`: `hardware`, `memory_budget`, `constraints`, ...

    Raises:
        InputError: There is no such option or argument.
    """
    options = {"mesh": mesh, **options}
    for name in options:
        if name not in _OPTIONS:
            known = sorted(_OPTIONS | _OF_JIT)
            close = difflib.get_close_matches(name, known, n=1)
            hint = f"did you mean {close[0]}?" if close else f"there are {', '.join(known)}"
            raise InputError(
                f"there is no option {name!r}",
                where=f"autoshard.jit({name}={options[name]!r})",
                fix=f"give options of autoshard.optimize; {hint}",
            )
    check_types(
        donate_argnums=donate_argnums,
        donate_argnames=donate_argnames,
        static_argnums=static_argnums,
        static_argnames=static_argnames,
        compiler_options=compiler_options,
    )

    def planned(fn: Callable[..., Any]) -> PlannedJit:
        if not callable(fn):
            raise InputError(
                f"expected a function, found {type(fn).__name__}",
                where="autoshard.jit(...)",
                fix="pass the function to plan first, or only options to decorate one",
            )
        arguments = read_roles(fn, donate_argnums, donate_argnames, static_argnums, static_argnames)
        return PlannedJit(fn, arguments, options, compiler_options)

    return planned if fn is None else planned(fn)


def _types(tree: Any, values: Hashable) -> Hashable | None:
    """What tells calls apart, in a microsecond a leaf; None where leaves are no arrays.

    Args:
        tree: The arguments that are traced.
        values: All else that counts.
    """
    leaves, structure = jax.tree.flatten(tree)
    types: list[Hashable] = []
    for leaf in leaves:
        if isinstance(leaf, jax.Array):
            types.append((leaf.shape, leaf.dtype, getattr(leaf, "weak_type", False)))
        elif isinstance(leaf, (np.ndarray, np.generic)):
            types.append((leaf.shape, leaf.dtype))
        elif isinstance(leaf, (bool, int, float, complex)):
            types.append(str(type(leaf)))
        else:
            return None
    key = (structure, tuple(types), values)
    try:
        hash(key)
    except TypeError:
        return None
    return key


def _not_hashable(call: Call, settings: Mapping[str, Any]) -> InputError:
    values = [value for _, value in call.static_arguments]
    values += [static.value for static in call.arguments.statics]
    for value in (*values, *settings.values()):
        try:
            hash(value)
        except TypeError:
            return InputError(
                f"a static argument of `{call.name}` is a {type(value).__name__}, which cannot be"
                " hashed: plans are kept by the static arguments they were made with",
                where=f"`{call.name}`, {value!r:.80}",
                fix="make it hashable (a tuple for a list, a frozen dataclass), or pass arrays",
            )
    return InputError(
        f"the trees of the arguments of `{call.name}` cannot be hashed",
        where=f"`{call.name}`",
        fix="give custom pytree nodes auxiliary data that is hashable",
    )
