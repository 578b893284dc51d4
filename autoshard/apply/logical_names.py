"""Logical names of dimensions: from Flax's metadata in the argument trees, or as the user says."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from autoshard.apply.logical_rules import NamedDims
from autoshard.constraints import PathSelector, parse_selector
from autoshard.constraints.program import Program
from autoshard.constraints.select import Chooser
from autoshard.errors import ConstraintError, InputError, PlanError
from autoshard.frontend.annotations import LogicalNames
from autoshard.sharding import Sharding, format_sharding


def names_by_pattern(
    program: Program, given: Mapping[str, Sequence[str | None]]
) -> tuple[LogicalNames | None, ...]:
    """Per flat argument, the names of the first pattern that selects it, or None.

    Args:
        program: What patterns select from.
        given: By selector of arguments, a name or None for each dimension.

    Raises:
        InputError: A pattern selects no argument, or has another number of names.
    """
    chooser = Chooser(program)
    found: list[LogicalNames | None] = [None] * len(program.arguments)
    for pattern, names in given.items():
        where = f"logical names of `{pattern}`"
        selector = parse_selector(pattern)
        try:
            tensors = chooser.tensors(selector, where)
        except ConstraintError as error:
            raise InputError(error.what, where=error.where, fix=error.fix) from error
        numbers = [int(t.path[3:]) for t in tensors if t.path.startswith("in.")]
        if not isinstance(selector, PathSelector) or not numbers:
            raise InputError(
                f"`{pattern}` selects no argument",
                where=where,
                fix='name arguments by path, as in params**["kernel"]',
            )
        for number in numbers:
            rank = len(program.argument_types[number].shape)
            if rank != len(names):
                raise InputError(
                    f"`{program.arguments[number]}` has {rank} dimensions, and {len(names)} names"
                    " are given",
                    where=where,
                    fix="give a name or None for each dimension",
                )
            if found[number] is None:
                found[number] = tuple(names)
    return tuple(found)


def named_dims(
    names: Sequence[str], logical: Sequence[LogicalNames | None], shardings: Sequence[Sharding]
) -> list[NamedDims]:
    """The arguments that have logical names, with what cuts them.

    Raises:
        PlanError: None has; or one is cut by part of a mesh axis, which no rule can say.
    """
    found = []
    for name, own, sharding in zip(names, logical, shardings, strict=True):
        if own is None:
            continue
        if sharding.inlined_mesh is not None or not all(r.is_whole for r in sharding.axis_refs()):
            raise PlanError(
                f"{name} is cut by part of a mesh axis or on another mesh, which no rule can say",
                where=format_sharding(sharding),
                fix="plan on a mesh with that part as an axis of its own",
            )
        cuts = tuple(tuple(ref.name for ref in dim.axes) for dim in sharding.dims)
        found.append(NamedDims(name=name, logical=own, cuts=cuts))
    if not found:
        raise PlanError(
            "no argument has logical names",
            where="logical axis rules",
            fix='give them: plan.logical_rules({"params**[\'kernel\']": ("embed", "mlp")}), or keep'
            " them with Flax (nn.with_logical_partitioning, nnx.with_partitioning)",
        )
    return found
