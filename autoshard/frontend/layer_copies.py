"""All layers of a graph under construction, of which few were imported."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from jax.extend.core import JaxprEqn, Literal, Var

from autoshard.frontend.equal_layers import FewEquations
from autoshard.frontend.graph_builder import GraphBuilder, OpDraft, ValueDraft
from autoshard.frontend.importer import Importer
from autoshard.frontend.trail import BEFORE_ALL, Trail, equation_number, in_equation
from autoshard.graph.program import OpKind


class UnlikeLayersError(Exception):
    """The layer that was imported does not tell the ops of its copies."""


def with_all_layers(importer: Importer, few: FewEquations, returned: Sequence[int]) -> list[int]:
    """Puts the layers that were left out into the graph of an importer.

    Args:
        importer: Of the smaller module; its arguments and its block are imported, with a trail.
        few: The equations of the smaller module.
        returned: The values that it returns.

    Returns:
        The values that the whole program returns.

    Raises:
        UnlikeLayersError: There are loops, branches or groups, or reads that no path tells.
    """
    build, trail = importer.build, importer.trail
    assert trail is not None
    if len(build.regions) > 1 or importer.controls or build.has_ties or importer.dangling:
        raise UnlikeLayersError
    copies = _Copies(importer, trail, few)
    copies.run()
    importer.build = copies.whole
    importer.free = copies.free
    outvars = few.whole.outvars
    if len(outvars) != len(returned):
        raise UnlikeLayersError
    return [
        copies.known[value] if var is copy else copies.values[var]
        for var, copy, value in zip(outvars, few.jaxpr.outvars, returned, strict=True)
    ]


@dataclass(slots=True)
class _Copies:
    """Writes the whole graph, equation by equation.

    Attributes:
        whole: The graph so far.
        known: By value of the smaller graph, that of the whole that was made for the same equation.
        values: By variable of the program, its value.
        free: Those that every device makes itself.
    """

    importer: Importer
    trail: Trail
    few: FewEquations
    whole: GraphBuilder = field(init=False)
    known: dict[int, int] = field(default_factory=dict)
    values: dict[Var, int] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)
    _ops: dict[int, list[OpDraft]] = field(init=False)
    _paths: dict[int, list[tuple[str, int]]] = field(init=False)
    _made: dict[Var, int] = field(default_factory=dict)  # in the smaller graph
    _fills: dict[int, Any] = field(init=False)  # keys, by identity of the op
    _merged: dict[Any, int] = field(default_factory=dict)
    _copied: frozenset[int] = field(init=False)

    def __post_init__(self) -> None:
        build = self.importer.build
        self.whole = GraphBuilder(regions=build.regions)
        self._copied = frozenset(self.few.kept_copy.values())
        self._fills = {id(op): key for key, op in self.importer.fills.items()}
        self._ops, self._paths = self.trail.ops_by_equation(build.ops), defaultdict(list)
        for path, value in build.value_by_path.items():
            self._paths[equation_number(path)].append((path, value))

    def run(self) -> None:
        """Write all equations."""
        few, by_path = self.few, self.importer.build.value_by_path
        self._emit(BEFORE_ALL, BEFORE_ALL, {})
        jaxpr = few.whole
        for kind, variables in (("const", jaxpr.constvars), ("in", jaxpr.invars)):
            for place, var in enumerate(variables):
                value = by_path.get(f"{kind}.{place}")
                if value is not None:
                    self._made[var], self.values[var] = value, self.known[value]
        for number, eqn in enumerate(jaxpr.eqns):
            kept = few.kept_copy.get(number, number)
            inner = self._emit(number, kept, self._given(eqn, few.equations[kept]))
            if kept == number:
                self._learn(number, eqn)
            self._name(number, kept, inner)
            for var, copy in zip(eqn.outvars, few.equations[kept].outvars, strict=True):
                made = self._made.get(copy)
                if made is not None:
                    self.values[var] = self.value(made, inner)

    def value(self, value: int, inner: Mapping[int, int]) -> int:
        """The value of the whole graph in the place of one of the smaller graph.

        Args:
            value: Of the smaller graph.
            inner: Those of the equation, and what it reads.
        """
        found = inner.get(value)
        if found is not None:
            return found
        if self.importer.build.maker(value).kind is OpKind.FREE:
            found = self.known.get(value)
        if found is None:
            raise UnlikeLayersError
        return found

    def _given(self, eqn: JaxprEqn, copy: JaxprEqn) -> dict[int, int]:
        """By value that the copy of an equation reads, the one that the equation reads."""
        found: dict[int, int] = {}
        for mine, its in zip(eqn.invars, copy.invars, strict=True):
            if type(mine) is not Literal and its in self._made:
                value, copied = self.values.get(mine), self._made[its]
                if value is None or found.setdefault(copied, value) != value:
                    raise UnlikeLayersError
                if (value in self.free) != (copied in self.importer.free):
                    raise UnlikeLayersError
        return found

    def _learn(self, number: int, eqn: JaxprEqn) -> None:
        """Note which values the results of an equation that was imported are."""
        by_path, last = self.importer.build.value_by_path, self.trail.made.get(number, ())
        if len(last) == len(eqn.outvars):
            self._made.update(zip(eqn.outvars, last, strict=True))
        for place, var in enumerate(eqn.outvars):
            if f"{number}.{place}" in by_path:
                self._made[var] = by_path[f"{number}.{place}"]

    def _emit(self, number: int, kept: int, given: Mapping[int, int]) -> dict[int, int]:
        """Write the ops of an equation; what it reads and makes, by value of its copy."""
        inner, build, whole = dict(given), self.importer.build, self.whole
        has_copies = kept in self._copied
        for op in self._ops[kept]:
            operands = tuple([self.value(one, inner) for one in op.operands])
            key = self._fills.get(id(op))
            if key is not None:
                key = (operands, *key[1:])
                if key in self._merged:
                    inner[op.results[0]] = self._merged[key]
                    if number == kept:
                        self.known[op.results[0]] = self._merged[key]
                    continue
            first = len(whole.values)
            results = tuple(range(first, first + len(op.results)))
            for value in op.results:
                old = build.values[value]
                whole.values.append(ValueDraft(old.type, len(whole.ops), name=old.name))
            made = dict(zip(op.results, results, strict=True))
            inner |= made
            if number == kept:
                self.known |= made
            if key is not None:
                self._merged[key] = results[0]
            self.free.update(made[value] for value in op.results if value in self.importer.free)
            source, equation = self._place(op, number, kept)
            written = replace(op, operands=operands, results=results, source=source)
            written.equation = equation
            written.copies = op.results[0] if has_copies and op.results else -1
            whole.ops.append(written)
            if op.note:
                whole.note(f"{op.note} ({source or 'no source line'})")
        if number == BEFORE_ALL:
            self._name(number, kept, inner)
        return inner

    def _place(self, op: OpDraft, number: int, kept: int) -> tuple[str, str]:
        """The source line and the equation of an op, or of its copy."""
        if number == kept or not op.equation:
            return op.source, op.equation
        sources = self.importer.names.source_by_equation
        for path in (op.equation, str(kept)):
            if op.source and op.source == sources.get(path):
                own = f"{number}{path.removeprefix(str(kept))}"
                return sources.get(own, ""), in_equation(op.equation, number)
        return op.source, in_equation(op.equation, number)

    def _name(self, number: int, kept: int, inner: Mapping[int, int]) -> None:
        for path, value in self._paths[kept]:
            own = path if number == kept else in_equation(path, number)
            self.whole.name_path(own, self.value(value, inner))
