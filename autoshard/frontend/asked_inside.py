"""What the user asks of values and reads inside a program, put into its graph at import."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from autoshard.constraints.program import holder_of
from autoshard.frontend.graph_builder import GraphBuilder
from autoshard.graph.program import OpClass, OpKind
from autoshard.graph.rule import identity_rule


@dataclass(frozen=True, slots=True, kw_only=True)
class AskedInside:
    """Shardings asked for inside a program, by jaxpr path.

    Args:
        values: Of values, as text with the mesh written inline; the path then leads to a CONSTRAINT
            that all readers read.
        uses: Of single reads (`7.jaxpr/38<1`), likewise; only those read a CONSTRAINT.
        held: Values that have one sharding even if every device makes them itself.
        operand_paths: By equation path, the path of each operand.
        said: By path, who asks for it, for errors.
    """

    values: Mapping[str, str] = field(default_factory=dict)
    uses: Mapping[str, str] = field(default_factory=dict)
    held: frozenset[str] = frozenset()
    operand_paths: Mapping[str, tuple[str | None, ...]] = field(default_factory=dict)
    said: Mapping[str, str] = field(default_factory=dict)

    @property
    def is_empty(self) -> bool:
        """True where nothing is asked."""
        return not (self.values or self.uses or self.held)


@dataclass(frozen=True, slots=True)
class Place:
    """Where an op goes: its region, how often that runs, and what it comes from."""

    region: int
    repeat: float
    source: str = ""
    equation: str = ""


def add_constraint(build: GraphBuilder, value: int, sharding: str, place: Place) -> int:
    """A CONSTRAINT that reads a value; what it makes."""
    made = build.add(
        OpKind.CONSTRAINT,
        "sharding_constraint",
        (value,),
        [build.values[value].type],
        rule=identity_rule(build.shape(value)),
        region=place.region,
        repeat=place.repeat,
        source=place.source,
        equation=place.equation,
        pinned=sharding,
    )
    return made.results[0]


def add_copy(build: GraphBuilder, value: int, place: Place) -> int:
    """A copy of what every device makes itself, so that it takes time, memory and one sharding."""
    shape = build.shape(value)
    made = build.add(
        OpKind.COMPUTE,
        "copy",
        (value,),
        [build.values[value].type],
        rule=identity_rule(shape),
        region=place.region,
        repeat=place.repeat,
        source=place.source,
        equation=place.equation,
    )
    made.op_class = OpClass.COPY
    return made.results[0]


@dataclass(slots=True)
class AskedReads:
    """Lets the reads asked for, and no others, read a CONSTRAINT."""

    asked: AskedInside
    _uses_by_equation: dict[str, list[str]] = field(init=False)
    _made: dict[tuple[str, int], int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._uses_by_equation = {}
        for use in self.asked.uses:
            self._uses_by_equation.setdefault(use.rpartition("<")[0], []).append(use)

    def __bool__(self) -> bool:
        return bool(self._uses_by_equation)

    def redirect(self, build: GraphBuilder, env: dict[Any, int], place: Place) -> dict[Any, int]:
        """Let an op of `place.equation`, or of one that holds it, read what was asked for.

        Returns:
            What stood in `env` before, to be put back after the op.
        """
        uses = [
            use
            for equation in _with_holders(place.equation)
            for use in self._uses_by_equation.get(equation, ())
        ]
        values = {use: self._operand(build, use) for use in uses}
        wanted = set(values.values())
        before = {key: held for key, held in env.items() if held in wanted} if uses else {}
        read = set(before.values())
        made = {
            value: self._constrained(build, use, value, place)
            for use, value in values.items()
            if value is not None and value in read
        }
        env.update({key: made[value] for key, value in before.items()})
        return before

    def returned(self, build: GraphBuilder, number: int, value: int) -> int:
        """Flat result `number`, as its read is asked for."""
        use = f"out<{number}"
        if use not in self.asked.uses:
            return value
        return self._constrained(build, use, value, Place(0, 1.0))

    def _operand(self, build: GraphBuilder, use: str) -> int | None:
        equation, _, position = use.rpartition("<")
        operands = self.asked.operand_paths.get(equation, ())
        path = operands[int(position)] if int(position) < len(operands) else None
        return None if path is None else build.value_by_path.get(path)

    def _constrained(self, build: GraphBuilder, use: str, value: int, place: Place) -> int:
        key = (use.rpartition("<")[0] or use, value)
        if key not in self._made:
            self._made[key] = add_constraint(build, value, self.asked.uses[use], place)
        build.name_path(use, self._made[key])
        return self._made[key]


def _with_holders(equation: str) -> Iterator[str]:
    """An equation and those in whose bodies it stands, inner ones first."""
    while equation:
        yield equation
        equation = holder_of(equation)


def missing_paths(asked: AskedInside, build: GraphBuilder) -> list[str]:
    """What is asked of values and reads that the lowered program does not have."""
    return [
        path
        for path in (*asked.values, *asked.uses, *asked.held)
        if path not in build.value_by_path and not path.startswith("out<")
    ]
