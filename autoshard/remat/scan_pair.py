"""A forward scan and the reverse scan that reads what it stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax._src.core import unmapped_aval  # private; checked on jax 0.10.2
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Var

from autoshard.frontend.inline_calls import inline_calls
from autoshard.frontend.jaxpr_paths import scan_params
from autoshard.remat.forward_order import ForwardOrder
from autoshard.remat.host_memory import moved, on_host
from autoshard.remat.joint_graph import JointGraph, Kept, copied, read, variables
from autoshard.remat.value_numbers import ValueNumbers


class ScanParts(NamedTuple):
    """What a scan reads, carries and stacks: inside its body and outside, one by one."""

    consts: list[tuple[Any, Any]]
    carries: list[tuple[Any, Any]]
    xs: list[tuple[Any, Any]]

    @staticmethod
    def of(eqn: JaxprEqn, outer: Sequence[Any]) -> ScanParts:
        """The inputs of a scan as `(variable of the body, operand)`."""
        body, params = eqn.params["jaxpr"].jaxpr, eqn.params
        pairs = list(zip(body.invars, outer, strict=True))
        first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
        return ScanParts(pairs[:first], pairs[first:last], pairs[last:])

    @property
    def inside(self) -> list[Any]:
        return [inside for part in self for inside, _ in part]

    @property
    def outside(self) -> list[Any]:
        return [outside for part in self for _, outside in part]


@dataclass(frozen=True, eq=False)
class ScanPair:
    """A forward scan, its reverse scan, and what of the forward body the reverse body reads.

    Args:
        forward: The forward scan.
        backward: The reverse scan.
        graph: Of the bodies.
        inputs: Of the forward scan; with what the reverse scan alone reads and could be read there.
        ends: What the forward body returns: carries, then slices of its stacks.
        cotangents: Of the reverse scan, what cannot come from the forward one.
        reads: The equations of the reverse body that depend on cotangents.
        returns: What the reverse body returns.
    """

    forward: JaxprEqn
    backward: JaxprEqn
    graph: JointGraph
    inputs: ScanParts
    ends: list[Any]
    cotangents: ScanParts
    reads: list[JaxprEqn]
    returns: list[Any]

    def keeping(self, kept: Kept) -> tuple[JaxprEqn, JaxprEqn, dict[Var, Var]]:
        """Both scans, with stacks of these values alone kept for the reverse one, and the copies.

        Stacks that something else reads stay results of the forward scan; what nothing reads is
        left to dead code elimination. What lies in host memory leaves at the end of the forward
        body, slice by slice, and comes back at the start of the reverse one.
        """
        num_carry = len(self.inputs.carries)
        slices = zip(self.ends[num_carry:], self.forward.outvars[num_carry:], strict=True)
        stack_of = {end: stack for end, stack in slices if isinstance(end, Var)}
        in_order = [var for var in self.graph.names if var in kept.values]
        sent = {var: Var(on_host(var.aval)) for var in in_order if var in kept.on_host}
        sends = [moved(var, slice_, like=self._maker(var)) for var, slice_ in sent.items()]
        ends = {var: sent.get(var, var) for var in in_order if var in sent or var not in stack_of}
        length = self.forward.params["length"]
        new = {var: Var(unmapped_aval(length, 0, end.aval)) for var, end in ends.items()}
        stack_of.update(new)
        forward = _scan(
            self.forward,
            self.inputs,
            [*self.graph.forward, *sends],
            [*self.ends, *ends.values()],
            [*self.forward.outvars, *new.values()],
        )
        atom_of: dict[Var, Any] = {var: Var(var.aval) for var in in_order}
        read_slices = {
            var: Var(on_host(var.aval)) if var in sent else atom_of[var] for var in in_order
        }
        fetches = [moved(read_slices[v], atom_of[v], like=self._maker(v)) for v in sent]
        kept_slices = [(read_slices[var], stack_of[var]) for var in in_order]
        again = self.graph.again(kept.values)
        block = [self.graph.forward[position] for position in again]
        copies = copied(block, atom_of)
        reads = [
            eqn.replace(invars=[read(atom, atom_of) for atom in eqn.invars]) for eqn in self.reads
        ]
        parts = ScanParts(
            self.inputs.consts + self.cotangents.consts,
            self.cotangents.carries,
            self.inputs.xs + self.cotangents.xs + kept_slices,
        )
        returns = [read(atom, atom_of) for atom in self.returns]
        backward = _scan(
            self.backward, parts, [*fetches, *copies, *reads], returns, self.backward.outvars
        )
        return forward, backward, {var: atom_of[var] for eqn in block for var in eqn.outvars}

    def _maker(self, var: Var) -> JaxprEqn:
        """The equation that makes a forward value; the scan of what it carries."""
        position = self.graph.maker.get(var)
        return self.forward if position is None else self.graph.forward[position]


def _scan(
    like: JaxprEqn,
    parts: ScanParts,
    eqns: Sequence[JaxprEqn],
    ends: Sequence[Any],
    outvars: Sequence[Var],
) -> JaxprEqn:
    old = like.params["jaxpr"]
    body = Jaxpr(
        [],
        parts.inside,
        ends,
        eqns,
        old.jaxpr.effects,
        old.jaxpr.debug_info.with_unknown_names(),
        old.jaxpr.is_high,
    )
    closed = ClosedJaxpr(body, [])
    params = scan_params(like.params, closed, len(parts.consts), len(parts.carries))
    return like.replace(invars=parts.outside, outvars=list(outvars), params=params)


def scan_pairs(eqns: Sequence[JaxprEqn]) -> Iterator[tuple[int, int]]:
    """Positions of forward scans and of the reverse scans that read their stacks."""
    made_by: dict[Var, int] = {}
    taken: set[int] = set()
    for position, eqn in enumerate(eqns):
        if eqn.primitive.name != "scan" or eqn.params["jaxpr"].consts:
            continue
        xs = variables(eqn.invars[eqn.params["num_consts"] + eqn.params["num_carry"] :])
        for forward in dict.fromkeys(made_by[var] for var in xs if var in made_by):
            ours, theirs = eqn.params, eqns[forward].params
            turned = ours["reverse"] != theirs["reverse"] and ours["length"] == theirs["length"]
            if turned and forward not in taken:
                taken |= {forward, position}
                yield forward, position
                break
        if position not in taken:
            stacks = eqn.outvars[eqn.params["num_carry"] :]
            made_by.update(dict.fromkeys(stacks, position))


def read_pair(
    forward: JaxprEqn,
    backward: JaxprEqn,
    numbers: ValueNumbers,
    is_there: Callable[[Any], bool],
) -> ScanPair:
    """A pair of scans as one graph.

    Args:
        forward: The forward scan.
        backward: Its reverse scan.
        numbers: Of the values around them.
        is_there: Whether an operand of the reverse scan is there before the forward scan runs.
    """
    return _PairReader(forward, backward, numbers, is_there).pair()


class _PairReader:
    def __init__(
        self,
        forward: JaxprEqn,
        backward: JaxprEqn,
        numbers: ValueNumbers,
        is_there: Callable[[Any], bool],
    ) -> None:
        self.forward, self.backward = forward, backward
        self.numbers, self.is_there = numbers, is_there
        self.inputs = ScanParts.of(forward, forward.invars)
        self.order = ForwardOrder()
        self.by_number: dict[int, Any] = {}  # the forward value of each number
        self.alias: dict[Var, Any] = {}  # forward values by what the reverse body calls them

    def pair(self) -> ScanPair:
        self.number_inputs()
        flat, ends = inline_calls(self.forward.params["jaxpr"].jaxpr)
        for position, one in enumerate(flat):
            self.order.add(one.eqn, position)
            self.number(one.eqn)
        num_carry = len(self.inputs.carries)
        end_of_stack = dict(zip(self.forward.outvars[num_carry:], ends[num_carry:], strict=True))
        cotangents = self.read_inputs(end_of_stack)
        reads, returns = self.read_body()
        graph = self.graph(reads, returns)
        return ScanPair(
            self.forward, self.backward, graph, self.inputs, ends, cotangents, reads, returns
        )

    def number_inputs(self) -> None:
        for inside, outside in self.inputs.consts:
            self.bind(inside, self.numbers.of(outside))
        for inside, _ in self.inputs.carries:
            self.bind(inside, self.numbers.of(inside))
        for inside, outside in self.inputs.xs:
            self.bind(inside, self.slice_number(outside))

    def slice_number(self, stack: Any) -> int:
        return self.numbers.interned(("slice", self.numbers.of(stack), id(self.forward)))

    def bind(self, var: Var, number: int) -> None:
        self.numbers.bind(var, number)
        self.by_number.setdefault(number, var)

    def number(self, eqn: JaxprEqn) -> None:
        self.numbers.equation(eqn)
        for var in eqn.outvars:
            self.by_number.setdefault(self.numbers.of(var), var)

    def read_inputs(self, end_of_stack: dict[Var, Any]) -> ScanParts:
        """What of the inputs of the reverse scan does not come from the forward one."""
        theirs = ScanParts.of(self.backward, self.backward.invars)
        consts = [
            (inside, outside)
            for inside, outside in theirs.consts
            if not self.take(inside, outside, self.numbers.of(outside), self.inputs.consts)
        ]
        xs = []
        for inside, outside in theirs.xs:
            end = None if not isinstance(outside, Var) else end_of_stack.get(outside)
            if end is not None:
                self.alias[inside] = self.canonical(end)
            elif not self.take(inside, outside, self.slice_number(outside), self.inputs.xs):
                xs.append((inside, outside))
        return ScanParts(consts, theirs.carries, xs)

    def canonical(self, atom: Any) -> Any:
        """The first forward value that equals one."""
        return self.by_number.get(self.numbers.of(atom), atom) if isinstance(atom, Var) else atom

    def take(self, inside: Var, outside: Any, number: int, inputs: list[tuple[Any, Any]]) -> bool:
        """Read an input of the reverse body as one of the forward body, if it can be one."""
        if number not in self.by_number:
            if not self.is_there(outside):
                return False
            var = Var(inside.aval)
            inputs.append((var, outside))
            self.bind(var, number)
        self.alias[inside] = self.by_number[number]
        return True

    def read_body(self) -> tuple[list[JaxprEqn], list[Any]]:
        """The equations of the reverse body that stay in it, and what it returns."""
        reads: list[JaxprEqn] = []
        stays: set[Var] = {var for part in self.own_inputs() for var in part}
        flat, returns = inline_calls(self.backward.params["jaxpr"].jaxpr)
        for eqn, is_recomputed in flat:
            given = eqn.replace(invars=[read(atom, self.alias) for atom in eqn.invars])
            is_forward = not given.effects and not any(
                var in stays for var in variables(given.invars)
            )
            if is_forward:
                self.numbers.equation(given)
                known = [self.by_number.get(self.numbers.of(var)) for var in given.outvars]
                if variables(given.invars) and all(known):
                    self.alias.update(zip(given.outvars, known, strict=True))
                    continue
                if is_recomputed:
                    self.hoist(given, known)
                    continue
            stays.update(given.outvars)
            reads.append(given)
        return reads, [read(atom, self.alias) for atom in returns]

    def hoist(self, eqn: JaxprEqn, known: list[Any]) -> None:
        """Let the forward body compute what the reverse body does from forward values alone."""
        if all(known):
            self.alias.update(zip(eqn.outvars, known, strict=True))
            return
        self.order.add_early(eqn)
        self.number(eqn)

    def own_inputs(self) -> Iterator[list[Var]]:
        theirs = ScanParts.of(self.backward, self.backward.invars)
        for part in theirs:
            yield [inside for inside, _ in part if inside not in self.alias]

    def graph(self, reads: Sequence[JaxprEqn], returns: Sequence[Any]) -> JointGraph:
        forward = [eqn for _, eqn in self.order.in_order()]
        carried = tuple(inside for inside, _ in self.inputs.carries)
        free = frozenset(v for part in (self.inputs.consts, self.inputs.xs) for v, _ in part)
        made = {*carried, *(var for eqn in forward for var in eqn.outvars)}
        atoms = [atom for eqn in reads for atom in eqn.invars] + list(returns)
        return JointGraph(
            forward=tuple(forward),
            carried=carried,
            free=free,
            required=tuple(dict.fromkeys(var for var in variables(atoms) if var in made)),
            never_again=frozenset(i for i, eqn in enumerate(forward) if eqn.effects),
            segments=(0,) * len(forward),
            stack_length=self.forward.params["length"],
        )
