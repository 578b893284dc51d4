"""Constraints as JAX users give them, as terms."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from jax.sharding import NamedSharding, PartitionSpec

from autoshard.constraints import (
    AnyRank,
    Group,
    Pin,
    ResidualTerm,
    Resolved,
    Term,
    resolve,
    sharding_of,
    with_sharding,
)
from autoshard.constraints.constraints_file import load_constraints
from autoshard.errors import InputError
from autoshard.frontend.asked_inside import AskedInside
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.program_facts import read_program
from autoshard.frontend.trace import Traced
from autoshard.frontend.user_shardings import read_named_sharding, spec_to_sharding
from autoshard.sharding import Mesh, Sharding, format_sharding

_FIX = (
    "give a mapping from selector to sharding, a list of Pin, Uses, Group, Keep, Recompute and"
    " Offload, or the path of a YAML file"
)


@dataclass(frozen=True, slots=True)
class SpecOfAnyRank:
    """A `PartitionSpec` or `NamedSharding`, which leaves out what it does not cut."""

    given: PartitionSpec | NamedSharding
    order: DeviceOrder

    def for_rank(self, rank: int) -> Sharding:
        if isinstance(self.given, NamedSharding):
            return read_named_sharding(self.given, self.order, rank)
        return spec_to_sharding(self.given, rank)

    def __str__(self) -> str:
        return str(self.given.spec if isinstance(self.given, NamedSharding) else self.given)


def read_constraints(given: Any, order: DeviceOrder) -> tuple[Term, ...]:
    """The terms of `optimize(constraints=...)`.

    Args:
        given: None; a mapping from selector to `Sharding`, its text, `PartitionSpec` or
            `NamedSharding`; a term; the path of a YAML file, as text or `Path`; or a sequence of
            any of these, in which a path is a `Path`.
        order: The plan's mesh and devices.

    Raises:
        InputError: Something else, or a file or selector that cannot be read.
        ShardingError: The text of a sharding cannot be read.
    """
    if given is None:
        return ()
    if isinstance(given, (str, os.PathLike)):
        return load_constraints(given)
    if isinstance(given, Mapping):
        return tuple(_read(Pin(select, sharding), order) for select, sharding in given.items())
    if isinstance(given, Term):
        return (_read(given, order),)
    if not isinstance(given, (list, tuple)):
        raise InputError(
            f"expected constraints, found {type(given).__name__}", where="constraints", fix=_FIX
        )
    terms: list[Term] = []
    for number, item in enumerate(given):
        if isinstance(item, str):
            raise InputError(
                "expected a Pin, Uses or Group, found str",
                where=f"constraints[{number}]={item!r}",
                fix=_FIX,
            )
        terms += read_constraints(item, order)
    return tuple(terms)


def _read(term: Term, order: DeviceOrder) -> Term:
    if isinstance(term, Group | ResidualTerm):
        return term
    said: Any = sharding_of(term)
    if isinstance(said, tuple) and all(map(_is_entry, said)):
        said = PartitionSpec(*said)
    if isinstance(said, (PartitionSpec, NamedSharding)):
        return with_sharding(term, SpecOfAnyRank(said, order))
    if not isinstance(said, (Sharding, AnyRank)):
        raise InputError(
            f"expected a sharding, found {type(said).__name__}",
            where=str(term),
            fix="give an autoshard.Sharding, its text, a PartitionSpec (or a tuple of its entries:"
            " names of axes, or None) or a NamedSharding",
        )
    return term


def _is_entry(entry: Any) -> bool:
    """Whether a `PartitionSpec` takes it for a dimension."""
    names = entry if isinstance(entry, tuple) else (entry,)
    return entry is None or all(isinstance(name, str) for name in names)


def resolve_constraints(terms: Sequence[Term], traced: Traced, mesh: Mesh) -> Resolved:
    """What is asked of every tensor of a traced function.

    Raises:
        ConstraintError: As `constraints.resolve`.
    """
    of_boundary = (*traced.user_in, *traced.user_out)
    is_any_on_host = any(one is not None and one.memory_kind for one in of_boundary)
    if not terms and not is_any_on_host:
        return Resolved(arguments=traced.user_in, results=traced.user_out)
    program = read_program(traced.jaxpr, traced.in_names, traced.out_names)
    return resolve(terms, program, mesh, traced.user_in, traced.user_out)


def asked_inside(resolved: Resolved, traced: Traced, mesh: Mesh) -> AskedInside:
    """Of what is asked, that of values and reads inside the program."""

    def text(sharding: Sharding) -> str:
        return format_sharding(
            sharding
            if sharding.inlined_mesh is not None
            else replace(sharding, inlined_mesh=Mesh(mesh.axes))
        )

    return AskedInside(
        values={path: text(sharding) for path, sharding in resolved.values.items()},
        uses={path: text(sharding) for path, sharding in resolved.uses.items()},
        held=frozenset(path for group in resolved.groups for path in group.paths),
        operand_paths=traced.operand_paths,
        said={path: term.text for term in resolved.asked for path in term.paths},
    )
