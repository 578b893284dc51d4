"""A whole program with its forward and backward passes, and the same keeping other residuals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from jax import checkpoint_policies

# Private; checked on jax 0.10.2.
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.errors import PlanError
from autoshard.frontend.dead_code import without_dead_equations
from autoshard.frontend.inline_calls import Inlined, inline_calls
from autoshard.frontend.jaxpr_paths import rewrite_bodies
from autoshard.remat.joint_graph import JointGraph, Kept
from autoshard.remat.scan_pair import read_pair, scan_pairs
from autoshard.remat.unrolled_pass import read_unrolled
from autoshard.remat.value_numbers import ValueNumbers

_HOLDS_PASSES = frozenset({"scan", "while", "cond", "shard_map", "jit"})
"""Primitives in whose bodies forward and backward passes are looked for."""
_POLICIES = (
    checkpoint_policies.everything_saveable,
    checkpoint_policies.dots_saveable,
    checkpoint_policies.dots_with_no_batch_dims_saveable,
    checkpoint_policies.save_any_names_but_these(),
)


class Written(NamedTuple):
    """A program with chosen residuals.

    Args:
        closed: Without dead code.
        graphs: As those of the joint program, in the variables of this one.
        copies: By forward value, that which a backward pass computes again.
    """

    closed: ClosedJaxpr
    graphs: tuple[JointGraph, ...]
    copies: Mapping[Var, Var]


@dataclass(frozen=True, eq=False)
class JointProgram:
    """A program in which what is kept for backward passes can be chosen.

    Args:
        closed: As it was traced.
        graphs: Of every forward and backward pass, in the order in which they are found.
    """

    closed: ClosedJaxpr
    graphs: tuple[JointGraph, ...]

    @staticmethod
    def of(closed: ClosedJaxpr) -> JointProgram:
        """Find the forward and backward passes of a program.

        Regions of `jax.checkpoint` are taken back: what they compute a second time is computed
        once, and can be kept.
        """
        writer = _Writer(None)
        writer.level(closed.jaxpr)
        return JointProgram(closed, tuple(writer.graphs))

    @property
    def has_residuals(self) -> bool:
        """Whether there is anything to choose."""
        return any(graph.everything for graph in self.graphs)

    @property
    def everything(self) -> tuple[str, ...]:
        """Names of all that is kept where nothing is computed again: `0:7.0`."""
        return tuple(
            f"{number}:{graph.names[var]}"
            for number, graph in enumerate(self.graphs)
            for var in graph.required
            if var in graph.everything
        )

    @property
    def saved_by_policies(self) -> tuple[tuple[str, ...], ...]:
        """Names of what each policy of `jax.checkpoint` saves, of those without arguments."""
        return tuple(
            tuple(
                f"{number}:{name}"
                for number, graph in enumerate(self.graphs)
                for name in graph.saved_by(policy)
            )
            for policy in _POLICIES
        )

    def keeping(self, names: Sequence[str]) -> ClosedJaxpr:
        """The program with these residuals kept, all others computed again where they are read.

        Those whose names end in `@host` lie in host memory between the passes.

        Raises:
            PlanError: A name is unknown, or what is kept does not suffice.
        """
        return self.written(names).closed

    def written(self, names: Sequence[str]) -> Written:
        """The program with these residuals kept, and its graphs in its own variables.

        Raises:
            PlanError: A name is unknown, or what is kept does not suffice.
        """
        kept: dict[int, set[str]] = {number: set() for number in range(len(self.graphs))}
        for name in names:
            number, _, value = name.partition(":")
            if not number.isdigit() or int(number) not in kept:
                raise PlanError(
                    f"the program has no residual called {name}",
                    where="what the plan keeps for the backward pass",
                    fix="plan again for this program",
                )
            kept[int(number)].add(value)
        writer = _Writer(kept)
        live = without_dead_equations(writer.level(self.closed.jaxpr))
        closed = ClosedJaxpr(live, self.closed.consts)
        return Written(closed, tuple(writer.graphs), writer.copies)


def keeping_residuals(closed: ClosedJaxpr, names: Sequence[str] | None) -> ClosedJaxpr:
    """A traced program with these residuals kept; None leaves it as it is written.

    Raises:
        PlanError: A name is unknown, or what is kept does not suffice.
    """
    return closed if names is None else JointProgram.of(closed).keeping(names)


@dataclass(eq=False)
class _Writer:
    """Reads the passes of a program, level by level, and writes it with what is kept.

    Args:
        kept: Names of what is kept, by number of the graph; None for everything.
    """

    kept: Mapping[int, Set[str]] | None
    numbers: ValueNumbers = field(default_factory=ValueNumbers)
    graphs: list[JointGraph] = field(default_factory=list)
    copies: dict[Var, Var] = field(default_factory=dict)

    def level(self, jaxpr: Jaxpr) -> Jaxpr:
        flat, outvars = inline_calls(jaxpr)
        pairs = dict(scan_pairs([one.eqn for one in flat]))
        in_pairs = {*pairs, *pairs.values()}
        flat = [
            one if position in in_pairs else one._replace(eqn=self.inside(one.eqn))
            for position, one in enumerate(flat)
        ]
        flat = self.with_pairs(flat, pairs)
        inputs = frozenset((*jaxpr.constvars, *jaxpr.invars))
        whole = read_unrolled(flat, inputs, set(pairs), self.numbers)
        has_residuals = bool(whole.graph.required)
        choice = self.choice(whole.graph) if has_residuals else Kept(frozenset())
        eqns, copies = whole.keeping(choice)
        self.copies.update(copies)
        return jaxpr.replace(eqns=eqns, outvars=outvars)

    def inside(self, eqn: JaxprEqn) -> JaxprEqn:
        """An equation with the passes in its bodies rewritten."""
        if eqn.primitive.name not in _HOLDS_PASSES:
            return eqn
        params = rewrite_bodies(eqn, lambda _, body: self.level(body))
        return eqn if params is None else eqn.replace(params=params)

    def with_pairs(self, flat: list[Inlined], pairs: Mapping[int, int]) -> list[Inlined]:
        """The equations with forward and reverse scans that keep what is chosen."""
        made_at: dict[Var, int] = {}
        for position, (eqn, _) in enumerate(flat):
            self.numbers.equation(eqn)
            made_at.update(dict.fromkeys(eqn.outvars, position))
        for first, last in pairs.items():

            def is_there(atom: Any, first: int = first) -> bool:
                return isinstance(atom, Literal) or made_at.get(atom, -1) < first

            pair = read_pair(flat[first].eqn, flat[last].eqn, self.numbers, is_there)
            forward, backward, copies = pair.keeping(self.choice(pair.graph))
            self.copies.update(copies)
            flat[first] = flat[first]._replace(eqn=forward)
            flat[last] = flat[last]._replace(eqn=backward)
        return flat

    def choice(self, graph: JointGraph) -> Kept:
        """What is kept of a graph, the next one that is found."""
        number = len(self.graphs)
        self.graphs.append(graph)
        if self.kept is None:
            return Kept(graph.everything)
        return graph.kept(self.kept.get(number, ()))
