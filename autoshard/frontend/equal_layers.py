"""A jaxpr in which runs of equal layers have few copies: what is lowered of a deep program."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence, Set
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.equal_equations import comparable, literal_key
from autoshard.frontend.jaxpr_paths import bodies, equations_of, open_jaxpr
from autoshard.graph.equal_layers import Run, equal_layers

_DIFFERENTIATED = frozenset({"custom_jvp_call", "custom_vjp_call", "custom_vjp_call_jaxpr"})
_CONTROL = frozenset({"scan", "while", "cond", "shard_map"})
_PLACES = {"slice": frozenset({"start_indices", "limit_indices"})}
"""By primitive, parameters in which equal layers differ, and that no graph holds."""


@dataclass(frozen=True, eq=False)
class FewEquations:
    """A program with few copies of each layer; what reads others reads copies of them.

    Args:
        whole: All equations.
        runs: Of them, with those left out.
    """

    whole: Jaxpr
    runs: tuple[Run, ...]

    @staticmethod
    def of(jaxpr: Jaxpr) -> FewEquations | None:
        """The program without layers that others stand for; None where too few repeat.

        None, too, where there are loops or branches, which no path tells apart.
        """
        if any(eqn.primitive.name in _CONTROL for _, eqn in equations_of(jaxpr)):
            return None
        made: dict[Var, int] = {}
        for number, eqn in enumerate(jaxpr.eqns):
            made.update(dict.fromkeys(eqn.outvars, number))
        for place, var in enumerate((*jaxpr.constvars, *jaxpr.invars)):
            made[var] = -1 - place
        reads = [[made[a] for a in eqn.invars if type(a) is not Literal] for eqn in jaxpr.eqns]
        colours = _Colours()
        ways = equal_layers([colours.of(eqn, made) for eqn in jaxpr.eqns], reads)
        few = (FewEquations(jaxpr, tuple(runs)) for runs in ways)
        return next((one for one in few if not one._is_read_in_a_call(reads)), None)

    @cached_property
    def kept_copy(self) -> dict[int, int]:
        """By equation that is left out, the one that stands for it."""
        return {one: run.kept_copy(one) for run in self.runs for one in run.left_out}

    @cached_property
    def numbers(self) -> tuple[int, ...]:
        """In the whole, of the equations that are left."""
        return tuple(n for n in range(len(self.whole.eqns)) if n not in self.kept_copy)

    @cached_property
    def equations(self) -> dict[int, JaxprEqn]:
        """Those that are left, by their number in the whole."""
        eqns = self.whole.eqns
        return {
            number: eqns[number].replace(invars=self._read(eqns[number].invars))
            for number in self.numbers
        }

    @cached_property
    def jaxpr(self) -> Jaxpr:
        """The smaller program."""
        eqns = list(self.equations.values())
        return self.whole.replace(eqns=eqns, outvars=self._read(self.whole.outvars))

    @cached_property
    def _copies(self) -> dict[Var, Var]:
        eqns = self.whole.eqns
        pairs = ((eqns[one].outvars, eqns[kept].outvars) for one, kept in self.kept_copy.items())
        return {var: copy for one, kept in pairs for var, copy in zip(one, kept, strict=True)}

    def _read(self, atoms: Sequence[Any]) -> list[Any]:
        copies = self._copies
        return [atom if type(atom) is Literal else copies.get(atom, atom) for atom in atoms]

    def _is_read_in_a_call(self, reads: Sequence[Sequence[int]]) -> bool:
        """An equation of no run, of more equations than a layer has, reads what is left out.

        Layers may go on in it: a backward pass may be one call.
        """
        in_runs = {number for run in self.runs for number in range(run.start, run.stop)}
        of_a_layer = max(run.period for run in self.runs)
        return any(
            number not in in_runs
            and not self.kept_copy.keys().isdisjoint(read)
            and _num_equations(self.whole.eqns[number]) > of_a_layer
            for number, read in enumerate(reads)
        )


def _num_equations(eqn: JaxprEqn) -> int:
    return 1 + sum(_num_equations(one) for _, body in bodies(eqn) for one in body.eqns)


@dataclass(slots=True)
class _Colours:
    """Numbers equations: those that lower to the same, but for what they read, have one number."""

    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _bodies: dict[int, int] = field(default_factory=dict)  # by identity; alive meanwhile

    def of(self, eqn: JaxprEqn, made: dict[Var, int]) -> int:
        """The number of an equation of the program.

        Args:
            eqn: The equation.
            made: By variable, the equation that makes it; below 0 for arguments.
        """
        return self._colour(eqn, [type(a) is not Literal and made[a] < 0 for a in eqn.invars])

    def _colour(self, eqn: JaxprEqn, reads: Sequence[Hashable]) -> int:
        operands = tuple(
            (literal_key(a) if type(a) is Literal else a.aval, read)
            for a, read in zip(eqn.invars, reads, strict=True)
        )
        results = tuple((var.aval, type(var)) for var in eqn.outvars)
        key = eqn.primitive, operands, results, tuple(self._params(eqn)), comparable(eqn.ctx)
        return self._numbers.setdefault(key, len(self._numbers))

    def _params(self, eqn: JaxprEqn) -> Iterator[Hashable]:
        name = eqn.primitive.name
        left_out: Set[str] = _PLACES.get(name, frozenset())
        for key, value in eqn.params.items():
            if key in left_out:
                continue
            members = value if isinstance(value, (tuple, list)) else (value,)
            if any(isinstance(member, (Jaxpr, ClosedJaxpr)) for member in members):
                yield key, tuple(map(self._body, members))
            elif name not in _DIFFERENTIATED:  # of others, how they are, which is done
                yield key, comparable(value)

    def _body(self, body: Any) -> Hashable:
        if not isinstance(body, (Jaxpr, ClosedJaxpr)):
            return comparable(body)
        found = self._bodies.get(id(body))
        if found is None:
            jaxpr = open_jaxpr(body)
            places: dict[Var, int] = {}
            for var in (*jaxpr.constvars, *jaxpr.invars):
                places[var] = len(places)
            types = tuple(var.aval for var in places)

            def read(atoms: Sequence[Any]) -> list[Hashable]:
                return [literal_key(a) if type(a) is Literal else places[a] for a in atoms]

            eqns = []
            for eqn in jaxpr.eqns:
                eqns.append(self._colour(eqn, read(eqn.invars)))
                for var in eqn.outvars:
                    places[var] = len(places)
            consts = tuple(map(id, getattr(body, "consts", ())))
            key = "body", types, tuple(eqns), tuple(read(jaxpr.outvars)), consts
            found = self._bodies[id(body)] = self._numbers.setdefault(key, len(self._numbers))
        return found
