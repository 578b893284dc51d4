"""The call that made a plan, arrays by shape: made again with a change, from the plan's answer."""

from __future__ import annotations

import dataclasses
import difflib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import jax

from autoshard.errors import InputError
from autoshard.frontend.signature import flatten_call, function_name
from autoshard.frontend.trace import Traced, abstract_leaf
from autoshard.graph.dimension_classes import dimension_classes
from autoshard.planning.tensor_parallel import examples_class
from autoshard.planning.traced_program import TracedProgram
from autoshard.rewriting import AS_WRITTEN

_TRACED = frozenset(
    {
        "mesh",
        "hardware",
        "in_shardings",
        "out_shardings",
        "donate_argnums",
        "static_argnums",
        "kwargs",
    }
)
"""Options that another trace comes of."""


@dataclass(frozen=True, slots=True, eq=False)
class PlannedCall:
    """A call of `optimize`.

    Args:
        fn: The function.
        args: Its positional arguments, arrays by shape.
        options: The keyword arguments, a dataclass.
        program: Builds the graph of the planned program.
        plan: Plans a function, arguments and options, with their trace if there is one.
    """

    fn: Callable[..., Any]
    args: tuple[Any, ...]
    options: Any
    program: Callable[[], TracedProgram]
    plan: Callable[[Callable[..., Any], Sequence[Any], Any, Traced | None], Any]

    @staticmethod
    def of(
        fn: Callable[..., Any],
        args: Sequence[Any],
        options: Any,
        program: Callable[[], TracedProgram],
        plan: Callable[[Callable[..., Any], Sequence[Any], Any, Traced | None], Any],
    ) -> PlannedCall:
        """Returns the call with shapes in place of its arrays, which may be donated meanwhile."""
        shaped, kwargs = _with_leaves(fn, args, options, abstract_leaf)
        kept = dataclasses.replace(options, kwargs=kwargs, start=None)
        return PlannedCall(fn, shaped, kept, program, plan)

    def again(
        self,
        before: Any,
        args: Sequence[Any],
        batch: int | None,
        changes: Mapping[str, Any],
    ) -> Any:
        """Plans with changes, on the mesh of the earlier plan unless that changes.

        Args:
            before: The earlier plan; the search starts from it, and its trace stays where no change
                asks for another.
            args: Other positional arguments; none for those of the call.
            batch: Another number of examples.
            changes: Of options; constraints are added to those of the call.

        Raises:
            InputError: There is no such option, or nothing tells where the examples are.
        """
        options = self._options_with(before, changes)
        if batch is not None and args:
            raise InputError(
                "a batch size and other arguments are given, and both say how large they are",
                where=f"plan.replan(..., batch={batch!r})",
                fix="leave one of them out",
            )
        given, known = tuple(args) or self.args, None
        if batch is not None:
            given, kwargs = self._with_examples(batch)
            options = dataclasses.replace(options, kwargs=kwargs)
        elif (
            not args
            and _TRACED.isdisjoint(changes)
            and options.devices is None
            and before.data.rewriting == AS_WRITTEN  # else its trace is not the program as written
        ):
            known = before.traced
        return self.plan(self.fn, given, options, known)

    def _options_with(self, before: Any, changes: Mapping[str, Any]) -> Any:
        known = {field.name for field in dataclasses.fields(self.options)} - {"start"}
        for name in changes:
            if name not in known:
                close = difflib.get_close_matches(name, known, n=1)
                raise InputError(
                    f"there is no option {name!r}",
                    where=f"plan.replan({name}={changes[name]!r})",
                    fix=f"did you mean {close[0]}?" if close else "give options of optimize",
                )
        found = {"devices": None, "mesh": before.mesh or before.data.mesh, **changes}
        if "devices" in changes:
            found["mesh"] = changes.get("mesh")
        if "constraints" in changes:
            said = (self.options.constraints, changes["constraints"])
            found["constraints"] = [one for one in said if one is not None]
        return dataclasses.replace(self.options, start=before, **found)

    def _with_examples(self, count: int) -> tuple[tuple[Any, ...], Any]:
        """Arguments with another size of the dimensions that examples are along.

        Raises:
            InputError: Nothing tells which these are.
        """
        if isinstance(count, bool) or not isinstance(count, int) or count < 1:
            raise InputError(
                f"a batch of {count!r} has no examples",
                where=f"batch={count!r}",
                fix="give a whole number of at least 1",
            )
        dims = example_dims(self.program())
        if not dims:
            raise InputError(
                "nothing in the program tells which dimension of its arguments examples are along",
                where=f"`{function_name(self.fn)}`, batch={count}",
                fix="pass the arguments: plan.replan(state, batch); or donate the state that a step"
                " gives back, which tells parameters from examples",
            )
        places = iter(range(len(dims)))

        def resized(leaf: Any) -> Any:
            own = dims[next(places)]
            shape = (count if d in own else size for d, size in enumerate(leaf.shape))
            return jax.ShapeDtypeStruct(tuple(shape), leaf.dtype, weak_type=leaf.weak_type)

        return _with_leaves(self.fn, self.args, self.options, resized)


def _with_leaves(
    fn: Callable[..., Any], args: Sequence[Any], options: Any, change: Callable[[Any], Any]
) -> tuple[tuple[Any, ...], Any]:
    """Positional and keyword arguments with other arrays."""
    call = flatten_call(fn, args, dict(options.kwargs or {}), options.static_argnums)
    positional, kwargs = call.arguments.rebuild([change(leaf) for leaf in call.arguments.leaves])
    return tuple(call.with_static(positional)), kwargs or None


def example_dims(program: TracedProgram, *, guess: bool = False) -> tuple[frozenset[int], ...]:
    """By argument, the dimensions that examples are along; nothing where that is not told.

    A state that a step gives back tells parameters from examples, matmuls the dimension.

    Args:
        program: As it is written.
        guess: Leave it to matmuls alone where no state is given back.
    """
    graph = program.graph
    given_back = {argument for argument, _ in program.wishes.alike}
    others = [place for place in range(len(graph.arguments)) if place not in given_back]
    classes = dimension_classes(graph)
    if guess and not given_back:  # weights share dimensions with others, examples are first ones
        own = [classes[op.results[0]] for op in graph.arguments]
        further = {dim for dims in own for dim in dims[1:]}
        others = [place for place in others if own[place] and own[place][0] not in further]
    examples = examples_class(graph, classes, others) if given_back or guess else None
    if examples is None:
        return ()
    arguments = graph.arguments[graph.num_captured :]
    return tuple(
        frozenset(d for d, own in enumerate(classes[op.results[0]]) if own == examples)
        for op in arguments
    )
