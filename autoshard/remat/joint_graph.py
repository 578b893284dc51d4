"""A forward and a backward pass as one graph: what the backward reads, and what makes that."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence, Set
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
from jax.extend.core import JaxprEqn, Literal, Var

from autoshard.errors import PlanError
from autoshard.remat.choice import ON_HOST

RECOMPUTED = "rematted_computation"
"""The scope in which `jax.checkpoint` computes again; selectors and profiles know it."""


class Kept(NamedTuple):
    """Values that are kept for a backward pass.

    Args:
        values: All of them.
        on_host: Those in host memory between the passes.
    """

    values: Set[Var]
    on_host: Set[Var] = frozenset()


@dataclass(frozen=True, eq=False, kw_only=True)
class JointGraph:
    """The forward equations that a backward pass depends on.

    Every value that the backward reads is either kept from the forward pass, or computed again
    from values that are.

    Args:
        forward: Equations without cotangents, in an order in which they can run. Those that stood
            in a region of `jax.checkpoint` are here once.
        carried: Values that a loop carries into its body: they can be kept, and not computed again.
        free: Values that are there in the backward pass anyway.
        required: What the backward reads of all others.
        never_again: Positions of the forward equations that are never copied.
        segments: By forward equation; what one segment computes again is there at one time.
        stack_length: Of the stacks in which a scan keeps what it makes; None without a scan.
    """

    forward: tuple[JaxprEqn, ...]
    carried: tuple[Var, ...]
    free: Set[Var]
    required: tuple[Var, ...]
    never_again: Set[int]
    segments: tuple[int, ...]
    stack_length: int | None

    @cached_property
    def names(self) -> dict[Var, str]:
        """Of what can be kept: `in.0` of what a loop carries, `7.0` of what an equation makes."""
        found = {var: f"in.{position}" for position, var in enumerate(self.carried)}
        for position, eqn in enumerate(self.forward):
            for number, var in enumerate(eqn.outvars):
                found[var] = f"{position}.{number}"
        return found

    @cached_property
    def maker(self) -> dict[Var, int]:
        """Position of the equation that makes each value."""
        return {var: i for i, eqn in enumerate(self.forward) for var in eqn.outvars}

    @cached_property
    def constants(self) -> frozenset[int]:
        """Positions of the equations that depend on no input: nothing is won by keeping them."""
        return constant_equations(self.forward)

    @cached_property
    def everything(self) -> frozenset[Var]:
        """What is kept where nothing is computed again."""
        return frozenset(v for v in self.required if self.maker.get(v) not in self.constants)

    @cached_property
    def crossing(self) -> frozenset[Var]:
        """Values that the forward equations of another segment read: they are kept, if needed."""
        return frozenset(
            atom
            for position, eqn in enumerate(self.forward)
            for atom in variables(eqn.invars)
            if atom in self.maker and self.segments[self.maker[atom]] != self.segments[position]
        )

    def is_recomputable(self, var: Var) -> bool:
        """Whether the backward pass may compute a value again."""
        position = self.maker.get(var)
        if position is None or position in self.never_again:
            return False
        return var not in self.crossing

    def saved_by(self, policy: Callable[..., Any]) -> list[str]:
        """Names of what a policy of `jax.checkpoint` saves.

        A named value and that without its name are one.
        """
        saved = (
            eqn
            for eqn in self.forward
            if policy(eqn.primitive, *(atom.aval for atom in eqn.invars), **eqn.params)
        )
        made = (
            var
            for eqn in saved
            for var in (*eqn.outvars, *(eqn.invars if eqn.primitive.name == "name" else ()))
        )
        return [self.names[var] for var in made if var in self.names]

    def kept(self, names: Iterable[str]) -> Kept:
        """The values of these names, `7.0` on the device and `7.0@host` in host memory.

        Values that cross segments are kept too where they are needed: what is kept in bodies
        inside changes the segments around them.

        Raises:
            PlanError: There is no value of a name.
        """
        by_name = {name: var for var, name in self.names.items()}
        names = frozenset(names)
        try:
            values = {by_name[name.removesuffix(ON_HOST)] for name in names}
            on_host = {by_name[n.removesuffix(ON_HOST)] for n in names if n.endswith(ON_HOST)}
        except KeyError as error:
            raise PlanError(
                f"the program has no residual called {error.args[0]}",
                where="what the plan keeps for the backward pass",
                fix="plan again for this program",
            ) from None
        _, lacking = self._computed_again(values)
        return Kept(frozenset(values | (self.crossing & lacking)), frozenset(on_host))

    def again(self, kept: Set[Var]) -> list[int]:
        """Positions of the equations that the backward pass computes again, in forward order.

        Raises:
            PlanError: The backward needs a value that is neither kept nor can be computed.
        """
        found, lacking = self._computed_again(kept)
        for var in lacking:
            raise PlanError(
                f"the backward pass needs {self.names.get(var, var)}, which is not kept and"
                " cannot be computed again",
                where="what the plan keeps for the backward pass",
                fix="plan again for this program",
            )
        return sorted(found)

    def _computed_again(self, kept: Set[Var]) -> tuple[set[int], set[Var]]:
        """Positions of equations to compute again, and values needed for it that cannot be."""
        found: set[int] = set()
        lacking: set[Var] = set()
        todo = [var for var in self.required if var not in kept]
        while todo:
            var = todo.pop()
            if not self.is_recomputable(var):
                lacking.add(var)
                continue
            position = self.maker[var]
            if position not in found:
                found.add(position)
                read = variables(self.forward[position].invars)
                todo += [atom for atom in read if atom not in kept and atom not in self.free]
        return found, lacking


def constant_equations(eqns: Sequence[JaxprEqn]) -> frozenset[int]:
    """Positions of the equations that depend on no input."""
    found: set[int] = set()
    constants: set[Var] = set()
    for position, eqn in enumerate(eqns):
        if not eqn.effects and constants.issuperset(variables(eqn.invars)):
            found.add(position)
            constants.update(eqn.outvars)
    return frozenset(found)


def is_array(var: Var) -> bool:
    """Whether a value is an ordinary array: it can stand behind a barrier, and lie on the host."""
    return isinstance(getattr(var.aval, "dtype", None), np.dtype)


def variables(atoms: Sequence[Any]) -> list[Var]:
    return [atom for atom in atoms if not isinstance(atom, Literal)]


def copied(eqns: Iterable[JaxprEqn], atom_of: dict[Var, Any]) -> list[JaxprEqn]:
    """Copies of equations with results of their own, which `atom_of` maps the old ones to."""
    made = []
    for eqn in eqns:
        results = [Var(var.aval) for var in eqn.outvars]
        source = eqn.source_info
        made.append(
            eqn.replace(
                invars=[read(atom, atom_of) for atom in eqn.invars],
                outvars=results,
                source_info=source.replace(name_stack=source.name_stack.extend(RECOMPUTED)),
            )
        )
        atom_of.update(zip(eqn.outvars, results, strict=True))
    return made


def read(atom: Any, atom_of: dict[Var, Any]) -> Any:
    return atom if isinstance(atom, Literal) else atom_of.get(atom, atom)
