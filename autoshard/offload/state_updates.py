"""Where a program updates states element by element, and nothing else reads them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import JaxprEqn, Literal, Var

_ELEMENTWISE = frozenset(
    """abs add add_any and cbrt ceil clamp convert_element_type copy div eq erf exp exp2 expm1
    floor ge gt integer_pow is_finite le log log1p logistic lt max min mul ne neg not or pow
    reduce_precision rem round rsqrt select_n sign sin cos sqrt square stop_gradient sub tanh
    xor""".split()
)
"""Primitives whose operands have the shape of their result, or are scalars (jax 0.10.2)."""

CAST = "convert_element_type"


@dataclass(frozen=True, slots=True)
class StateUpdate:
    """Equations that compute new states from old ones, element by element.

    Args:
        shape: Of all arrays in it.
        positions: Of the equations, in order.
        states: What lies in host memory, with the new one.
        inputs: Arrays and scalars that other equations make, states left out.
        replaced: Arguments among them, with the output that can be written in its place.
        outputs: What others read, new states left out.
        early: Positions of what reads states before it, part by part: scans that run over them, and
            copies of them in another type.
    """

    shape: tuple[int, ...]
    positions: tuple[int, ...]
    states: Mapping[Var, Var]
    inputs: tuple[Var, ...]
    replaced: Mapping[Var, Var]
    outputs: tuple[Var, ...]
    early: frozenset[int]


def state_updates(
    eqns: Sequence[JaxprEqn],
    new_of: Mapping[Var, Any],
    results: Sequence[Any],
    *,
    with_parameters: bool,
) -> list[StateUpdate]:
    """The updates of a flat program, in order.

    States that one equation puts together are updated together. A state that something else reads
    too, or whose new value something else reads or its update does not make, is none: it is left
    out, and all is looked at again.

    Args:
        eqns: Of the program, each with results of its own.
        new_of: By argument that may lie in host memory, the result that the next step is given.
        results: Of the program.
        with_parameters: Before an update, scans may run over states of it, as layers do over
            parameters, and copies in another type may be made.
    """
    program = _Program.of(eqns, results, with_parameters)
    states: Sequence[Var] = [*new_of]
    while True:
        regions, left = _Regions(states), {*states}
        for position, eqn in enumerate(eqns):
            if not program.is_cast_of(position, left):
                regions.add(position, eqn)
        members = regions.by_root()
        found = [
            program.update(members[root], {one: new_of[one] for one in regions.states_of(root)})
            for root in members
        ]
        others = {one for update in found if not isinstance(update, StateUpdate) for one in update}
        if not others:
            updates = [one for one in found if isinstance(one, StateUpdate)]
            return sorted(updates, key=lambda one: one.positions)
        states = [one for one in states if one not in others]


@dataclass(frozen=True, slots=True)
class _Program:
    """The equations of a flat program.

    Args:
        eqns: In order.
        readers: By value, positions of those that read it.
        computed: Values that they make.
        returned: Results of the program, with how often each is one.
        with_parameters: Scans may run over states, and casts be made of them.
    """

    eqns: Sequence[JaxprEqn]
    readers: Mapping[Var, Set[int]]
    computed: Set[Var]
    returned: Mapping[Var, int]
    with_parameters: bool

    @staticmethod
    def of(eqns: Sequence[JaxprEqn], results: Sequence[Any], with_parameters: bool) -> _Program:
        readers: dict[Var, set[int]] = {}
        for position, eqn in enumerate(eqns):
            for atom in eqn.invars:
                if isinstance(atom, Var):
                    readers.setdefault(atom, set()).add(position)
        computed = {var for eqn in eqns for var in eqn.outvars}
        returned = Counter(one for one in results if isinstance(one, Var))
        return _Program(eqns, readers, computed, returned, with_parameters)

    def is_read_by(self, var: Var, positions: Set[int]) -> bool:
        """True where no other equations read a value."""
        return self.readers.get(var, set()) <= positions

    def is_cast_of(self, position: int, states: Set[Var]) -> bool:
        """True of a copy of a state in another type, which more than its update reads."""
        eqn = self.eqns[position]
        if not self.with_parameters or eqn.primitive.name != CAST:
            return False
        (given,), (result,) = eqn.invars, eqn.outvars
        shape = tuple(result.aval.shape)
        is_state = isinstance(given, Var) and given in states
        return is_state and not all(
            _is_elementwise(self.eqns[at], shape) for at in self.readers.get(result, ())
        )

    def is_early(self, position: int, var: Var) -> bool:
        """True of what reads an array in host memory part by part, and in no other way."""
        if self.is_cast_of(position, {var}):
            return True
        eqn = self.eqns[position]
        if not self.with_parameters or eqn.primitive.name != "scan":
            return False
        first = eqn.params["num_consts"] + eqn.params["num_carry"]
        return all(atom is not var for atom in eqn.invars[:first])

    def update(self, members: list[int], states: Mapping[Var, Any]) -> StateUpdate | Set[Var]:
        """The update of these equations, or those of the states that are none."""
        inside = {*members}
        others = {one: self.readers.get(one, set()) - inside for one in states}
        early = frozenset(at for positions in others.values() for at in positions)
        read_elsewhere = {
            one
            for one, positions in others.items()
            if one in self.returned
            or not all(at < members[0] and self.is_early(at, one) for at in positions)
        }
        if read_elsewhere:
            return read_elsewhere
        shape = tuple(next(iter(states)).aval.shape)
        self._take_in_makers(inside, shape)
        positions = tuple(sorted(inside))
        made = [var for at in positions for var in self.eqns[at].outvars]
        read = dict.fromkeys(
            atom for at in positions for atom in self.eqns[at].invars if isinstance(atom, Var)
        )
        ends = [var for var in made if var in self.returned or not self.is_read_by(var, inside)]
        own = {one for one in ends if self.returned[one] == 1 and self.is_read_by(one, inside)}
        if not_replaced := {old for old, new in states.items() if new not in own}:
            return not_replaced
        outputs = [var for var in ends if var not in states.values()]
        inputs = tuple(var for var in read if var not in made and var not in states)
        given = [var for var in inputs if var not in self.computed]
        replaced = _replaced([self.eqns[at] for at in positions], read, given, outputs)
        return StateUpdate(shape, positions, states, inputs, replaced, tuple(outputs), early)

    def _take_in_makers(self, inside: set[int], shape: tuple[int, ...]) -> None:
        """Add what converts or scales one array for the update alone, so that it is not written."""
        for position in range(max(inside), -1, -1):
            eqn = self.eqns[position]
            if position in inside or not _is_elementwise(eqn, shape):
                continue
            (result,) = eqn.outvars
            arrays = [one for one in eqn.invars if isinstance(one, Var) and one.aval.shape]
            is_read = result in self.readers and result not in self.returned
            if len(arrays) <= 1 and is_read and self.is_read_by(result, inside):
                inside.add(position)


def _replaced(
    eqns: Sequence[JaxprEqn], read: Iterable[Var], olds: Sequence[Var], ends: Sequence[Var]
) -> dict[Var, Var]:
    """By old value the new one in its place: of its type, made of it and of few others.

    Args:
        eqns: Of the update.
        read: What other equations make.
        olds: Arguments among it.
        ends: What others read of the update.
    """
    origins = {var: frozenset((var,)) for var in read}  # by value, what of `read` it is made of
    for eqn in eqns:
        of = (origins[one] for one in eqn.invars if isinstance(one, Var))
        origins.update(dict.fromkeys(eqn.outvars, frozenset[Var]().union(*of)))
    pairs: dict[Var, Var] = {}
    for end in sorted(ends, key=lambda one: len(origins[one])):
        alike = (
            old
            for old in olds
            if old in origins[end] and old not in pairs and _type(old) == _type(end)
        )
        old = next(alike, None)
        if old is not None:
            pairs[old] = end
    return pairs


def _type(var: Var) -> tuple[Any, Any]:
    return var.aval.shape, var.aval.dtype


def _is_elementwise(eqn: JaxprEqn, shape: tuple[int, ...]) -> bool:
    """True of an equation that makes one array of a shape, of such arrays and scalars alone."""
    if len(eqn.outvars) != 1 or tuple(eqn.outvars[0].aval.shape) != shape or eqn.effects:
        return False
    shapes = {tuple(atom.aval.shape) for atom in eqn.invars}
    if eqn.primitive.name == "broadcast_in_dim":
        return shapes == {()}
    return eqn.primitive.name in _ELEMENTWISE and shapes <= {(), shape}


@dataclass(eq=False)
class _Regions:
    """Element-wise equations that states flow through; those that meet in one become one region.

    Args:
        states: Where regions start.
    """

    states: Sequence[Var]
    _parent: dict[Var, Var] = field(default_factory=dict)  # a region is named by a state of it
    _region: dict[Var, Var] = field(default_factory=dict)  # that makes a value
    _needs: dict[Var, set[Var]] = field(default_factory=dict)  # by root, regions it comes after
    _after: dict[Var, frozenset[Var]] = field(default_factory=dict)  # by value outside, likewise
    _members: dict[Var, list[int]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for state in self.states:
            self._parent[state] = self._region[state] = state
            self._needs[state] = set()

    def root(self, region: Var) -> Var:
        while self._parent[region] is not region:
            self._parent[region] = region = self._parent[self._parent[region]]
        return region

    def add(self, position: int, eqn: JaxprEqn) -> None:
        """Put an equation into the region of its operands, or after theirs."""
        read = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        joined = {self.root(self._region[one]) for one in read if one in self._region}
        waits = [one for var in read for one in self._after.get(var, ())]
        after = self._all_before([*waits, *(one for root in joined for one in self._needs[root])])
        if joined and not after & joined and self._fits(eqn, joined):
            root = self._union(joined, after)
            self._members.setdefault(root, []).append(position)
            self._region[eqn.outvars[0]] = root
            return
        made = [one for one in read if one in self._region and one not in self._parent]
        if made or after:
            before = after.union(self.root(self._region[one]) for one in made)
            self._after.update(dict.fromkeys(eqn.outvars, frozenset(before)))

    def _all_before(self, regions: Iterable[Var]) -> set[Var]:
        """Regions, and those that they come after."""
        found: set[Var] = set()
        todo = [self.root(one) for one in regions]
        while todo:
            root = todo.pop()
            if root not in found:
                found.add(root)
                todo += [self.root(one) for one in self._needs[root]]
        return found

    def _fits(self, eqn: JaxprEqn, joined: Set[Var]) -> bool:
        shapes = {tuple(one.aval.shape) for one in joined}
        return len(shapes) == 1 and _is_elementwise(eqn, next(iter(shapes)))

    def _union(self, joined: Set[Var], after: set[Var]) -> Var:
        root = next(iter(joined))
        for other in joined - {root}:
            self._parent[other] = root
            self._members.setdefault(root, []).extend(self._members.pop(other, ()))
        self._needs[root] = after
        return root

    def by_root(self) -> dict[Var, list[int]]:
        """Positions of equations, by region."""
        return {root: sorted(members) for root, members in self._members.items()}

    def states_of(self, root: Var) -> list[Var]:
        return [state for state in self.states if self.root(state) is root]
