"""`jax.jit` of a function under a plan: constraints inside, shardings at the boundary."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, cast

import jax
from jax._src.core import trace_state_clean
from jax.sharding import AbstractMesh, NamedSharding

from autoshard.apply.axis_types import (
    explicit_mesh_of,
    lies_elsewhere,
    placed_as,
    to_auto_axes,
    to_given_axes,
    without_explicit_axes,
)
from autoshard.apply.named_shardings import AnyJaxMesh, flat_named_shardings
from autoshard.apply.wrapping import Prepared, WrappedFunction, argument_numbers, wrap
from autoshard.errors import InputError, PlanError
from autoshard.frontend.meshes import mesh_context
from autoshard.frontend.program_record import ProgramRecord
from autoshard.frontend.signature import Call, flatten_call, function_name
from autoshard.frontend.trace import Traced, donated_leaves
from autoshard.loops.dot_schedule import DotSchedule
from autoshard.loops.on_examples import OnExamples
from autoshard.rewriting import AS_WRITTEN, Rewriting
from autoshard.sharding import HOST_MEMORY, Sharding


class PlannedFunction:
    """A function under `jax.jit` with the shardings of a plan: call it, or `lower` it.

    It is built on the first call, when the trees of arguments and results are known. Where every
    leaf is an array, arguments go to one `jax.jit` function as they are. Keyword arguments,
    leaves that are no arrays (Equinox modules have them) and Flax NNX objects are taken apart
    first; that costs some microseconds per leaf and call.

    Arrays on a mesh with Explicit axes are taken as lying on the same mesh with Auto axes, at no
    copy; results come back with the axis types of the mesh.
    """

    def __init__(
        self,
        wrapped: WrappedFunction,
        in_shardings: Sequence[Sharding | None],
        out_shardings: Sequence[Sharding | None],
        donate_argnums: int | Sequence[int],
        jit_options: Mapping[str, Any],
        own_compiler_options: Mapping[str, Any] | None = None,
        *,
        moves_arguments: bool = False,
    ) -> None:
        self._wrapped = wrapped
        self._in_shardings = tuple(in_shardings)
        self._out_shardings = tuple(out_shardings)
        self._donate_argnums = argument_numbers(donate_argnums)
        self._jit_options = dict(jit_options)
        self._own_compiler_options = own_compiler_options or {}
        self._moves_arguments = moves_arguments
        is_any_on_host = any(one is not None and one.memory_kind for one in self._in_shardings)
        self._places_arguments = moves_arguments or is_any_on_host
        self._jitted: dict[bool, Any] = {}  # by whether nothing is traced around the call
        self._jitted_flat: dict[tuple[Prepared, bool], Any] = {}
        functools.update_wrapper(self, wrapped.fn, updated=())

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        mesh = self._wrapped.mesh
        if isinstance(mesh.auto, AbstractMesh):
            raise InputError(
                f"{mesh.base} is abstract: there are no devices to run on",
                where=f"`{function_name(self._wrapped.fn)}`",
                fix="pass a mesh of devices; planning, saving and lowering work without",
            )
        if not trace_state_clean() and explicit_mesh_of(jax.tree.leaves((args, kwargs))):
            return self._wrapped(*args, **kwargs)
        if self._donate_argnums and not trace_state_clean():
            self._warn_of_donation()
        if mesh.platform == "cpu" and trace_state_clean():
            self._refuse_deleted(args, kwargs)
        function, leaves_in, finish = self._function_for(args, kwargs)
        leaves_in = to_auto_axes(leaves_in, mesh)
        try:
            with mesh_context(mesh.abstract):
                results = function(*leaves_in)
        except (TypeError, ValueError):
            self._check(args, kwargs)
            raise
        return finish(to_given_axes(results, mesh))

    def _refuse_deleted(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Refuse arrays without a buffer, at which jaxlib 0.10.2 ends the process on CPUs.

        Raises:
            InputError: An earlier call was given one to reuse.
        """
        if not any(map(_is_deleted, jax.tree.leaves((args, kwargs)))):
            return
        call = self._flat_call(args, kwargs)
        gone = zip(call.arguments.names, call.arguments.leaves, strict=True)
        name = next(name for name, leaf in gone if _is_deleted(leaf))
        raise InputError(
            f"`{name}` was donated to an earlier call, and its buffer is gone",
            where=f"`{call.name}`",
            fix="go on with what the call returns, as in state = step(state, batch); to keep the"
            " argument, plan without donating it",
        )

    def _check(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Tell why a call failed, where that is another program or sharding than the one planned.

        Raises:
            ExportError: The function does not trace for these arguments.
            PlanError: It is another program.
            InputError: An argument lies on the devices otherwise than planned.
        """
        call = self._flat_call(args, kwargs)
        self._wrapped.check(self._wrapped.trace(call))
        given = zip(call.arguments.names, call.arguments.leaves, self._argument_places, strict=True)
        for name, leaf, place in given:
            if place is not None and lies_elsewhere(leaf, place):
                raise InputError(
                    f"`{name}` lies on the devices as {_placement(leaf.sharding)}, and is planned"
                    f" as {_placement(place)}",
                    where=f"`{call.name}`",
                    fix="place it as planned, plan.shard(tree, argument), or let calls move"
                    " arguments: plan.jit(moves_arguments=True)",
                )

    def _flat_call(self, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Call:
        return flatten_call(self._wrapped.fn, args, kwargs, self._wrapped.static_argnums)

    def trace(self, *args: Any, **kwargs: Any) -> jax.stages.Traced:
        """Trace for these arguments, arrays or `jax.ShapeDtypeStruct`s, as `jax.jit` does.

        With keyword arguments, or leaves that are no arrays, the traced function takes and returns
        the flat array leaves.
        """
        function, leaves_in, _ = self._function_for(args, kwargs)
        leaves_in = jax.tree.map(without_explicit_axes, leaves_in)
        try:
            with mesh_context(self._wrapped.mesh.abstract):
                return cast("jax.stages.Traced", function.trace(*leaves_in))
        except (TypeError, ValueError):
            self._check(args, kwargs)
            raise

    def lower(self, *args: Any, **kwargs: Any) -> jax.stages.Lowered:
        """Lower what `trace` gives; an abstract mesh lowers for the platform of this machine."""
        staged, mesh = self.trace(*args, **kwargs), self._wrapped.mesh
        platforms = (jax.default_backend(),) if isinstance(mesh.auto, AbstractMesh) else None
        with mesh_context(mesh.abstract):
            return staged.lower(lowering_platforms=platforms)

    def _function_for(
        self, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> tuple[Any, Sequence[Any], Callable[[Any], Any]]:
        """The jitted function, what to call it with, and what to do with its result."""
        is_outermost = trace_state_clean()
        if is_outermost in self._jitted and not kwargs:
            return self._jitted[is_outermost], self._moved_trees(args), _identity
        wrapped = self._wrapped
        call = self._flat_call(args, kwargs)
        prepared = wrapped.prepare(call)
        if not kwargs and call.arguments.is_all_arrays and prepared.results.is_all_arrays:
            self._jitted[is_outermost] = self._jit_trees(call, prepared)
            return self._jitted[is_outermost], self._moved_trees(args), _identity
        key = (prepared, is_outermost)
        if key not in self._jitted_flat:
            self._jitted_flat[key] = self._jit_leaves(call, prepared)
        call = self._moved_leaves(call)
        return (
            self._jitted_flat[key],
            call.arguments.leaves,
            lambda leaves: call.finish(prepared.results.rebuild(leaves)),
        )

    def _moved_trees(self, args: tuple[Any, ...]) -> tuple[Any, ...]:
        """The arguments, all of whose leaves are arrays or static, with arrays moved if wanted."""
        if not self._places_arguments:
            return args
        static = {number % len(args) for number in self._wrapped.static_argnums}
        places = [place for place in range(len(args)) if place not in static]
        leaves, tree = jax.tree.flatten([args[place] for place in places])
        moved = placed_as(leaves, self._argument_places, committed=self._moves_arguments)
        found = dict(zip(places, jax.tree.unflatten(tree, moved), strict=True))
        return tuple(found.get(place, argument) for place, argument in enumerate(args))

    def _moved_leaves(self, call: Call) -> Call:
        if not self._places_arguments:
            return call
        leaves = call.arguments.leaves
        moved = placed_as(leaves, self._argument_places, committed=self._moves_arguments)
        return replace(call, arguments=replace(call.arguments, leaves=tuple(moved)))

    @functools.cached_property
    def _argument_places(self) -> tuple[NamedSharding | None, ...]:
        names = [f"argument {place}" for place in range(len(self._in_shardings))]
        return flat_named_shardings(self._in_shardings, self._wrapped.mesh, names)

    def _warn_of_donation(self) -> None:
        name, numbers = function_name(self._wrapped.fn), self._donate_argnums
        warnings.warn(
            f"`{name}` donates arguments {numbers} and is called inside another jax.jit, where JAX"
            " gives up no buffer: donate them there, and call plan.wrap()",
            stacklevel=3,
        )

    def _options(self) -> dict[str, Any]:
        """For `jax.jit`, which takes compiler options only where nothing is traced around it."""
        options = dict(self._jit_options)
        if self._own_compiler_options and trace_state_clean():
            given = options.get("compiler_options") or {}
            options["compiler_options"] = {**self._own_compiler_options, **given}
        return options

    def _jit_trees(self, call: Call, prepared: Prepared) -> Any:
        in_shardings, out_shardings = self._named(call, prepared)
        positional, _ = jax.tree.unflatten(call.arguments.dynamic_tree, in_shardings)
        return jax.jit(
            self._wrapped,
            in_shardings=positional,
            out_shardings=jax.tree.unflatten(prepared.results.dynamic_tree, out_shardings),
            donate_argnums=self._donate_argnums,
            static_argnums=self._wrapped.static_argnums,
            **self._options(),
        )

    def _jit_leaves(self, call: Call, prepared: Prepared) -> Any:
        in_shardings, out_shardings = self._named(call, prepared)
        donated = donated_leaves(call, prepared.updated, self._donate_argnums)
        return jax.jit(
            prepared.run,
            in_shardings=in_shardings,
            out_shardings=out_shardings,
            donate_argnums=tuple(i for i, given in enumerate(donated) if given),
            **self._options(),
        )

    def _named(
        self, call: Call, prepared: Prepared
    ) -> tuple[tuple[NamedSharding | None, ...], tuple[NamedSharding | None, ...]]:
        for kind, shardings, names in (
            ("argument", self._in_shardings, call.arguments.names),
            ("result", self._out_shardings, prepared.results.names),
        ):
            if len(shardings) != len(names):
                raise PlanError(
                    f"the plan has shardings for {len(shardings)} {kind} arrays, the function has"
                    f" {len(names)}",
                    where=f"`{call.name}`",
                    fix="call it with the arguments it was planned with, or plan again",
                )
        mesh = self._wrapped.mesh
        return (
            flat_named_shardings(
                self._in_shardings, mesh, [f"argument `{n}`" for n in call.arguments.names]
            ),
            flat_named_shardings(
                self._out_shardings, mesh, [f"result `{n}`" for n in prepared.results.names]
            ),
        )


def jit_with(
    fn: Callable[..., Any],
    constraints: Mapping[str, Sharding],
    mesh: AnyJaxMesh,
    in_shardings: Sequence[Sharding | None],
    out_shardings: Sequence[Sharding | None],
    *,
    record: ProgramRecord | None = None,
    donate_argnums: int | Sequence[int] = (),
    static_argnums: int | Sequence[int] = (),
    schedules: Mapping[str, DotSchedule | OnExamples] | None = None,
    rewriting: Rewriting = AS_WRITTEN,
    own_compiler_options: Mapping[str, Any] | None = None,
    moves_arguments: bool = False,
    known: Traced | None = None,
    **jit_options: Any,
) -> PlannedFunction:
    """`jax.jit` of the function with a plan's constraints inside and shardings at its boundary.

    Args:
        fn: The function the plan was made for.
        constraints: By path; see `constrain_jaxpr`.
        mesh: The mesh to run on.
        in_shardings: By flat argument; None leaves it to the partitioner.
        out_shardings: By flat result.
        record: The program the plan was made for; None skips the check.
        donate_argnums: As in `jax.jit`.
        static_argnums: As given when planning.
        schedules: By path of an equation; see `constrain_jaxpr`.
        rewriting: As for `wrap`.
        own_compiler_options: Set where the function is compiled by itself, and not within another.
        moves_arguments: Move arrays that lie on the devices in another sharding, which `jax.jit`
            refuses.
        known: As for `wrap`.
        jit_options: Passed on to `jax.jit`.
    """
    wrapped = wrap(
        fn,
        constraints,
        mesh,
        record=record,
        static_argnums=static_argnums,
        schedules=schedules,
        rewriting=rewriting,
        known=known,
        out_shardings=out_shardings,
    )
    return PlannedFunction(
        wrapped,
        in_shardings,
        out_shardings,
        donate_argnums,
        jit_options,
        own_compiler_options,
        moves_arguments=moves_arguments,
    )


def _identity(value: Any) -> Any:
    return value


def _is_deleted(leaf: Any) -> bool:
    return isinstance(leaf, jax.Array) and leaf.is_deleted()


def _placement(sharding: jax.sharding.Sharding) -> str:
    place = str(sharding.spec if isinstance(sharding, NamedSharding) else sharding)
    return f"{place} in {HOST_MEMORY} memory" if sharding.memory_kind == HOST_MEMORY else place
