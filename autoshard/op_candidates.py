"""Which candidates each op is offered: those of its rule that the user's word admits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from autoshard.backend_habits import keeps_whole
from autoshard.candidates import Candidate, CandidateMaker
from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, Op, OpKind
from autoshard.graph.rule import identity_rule
from autoshard.layouts import MeshParts
from autoshard.pinned import Pin, constraint_sharding, read_pin
from autoshard.sharding import Sharding, format_sharding, parse_sharding
from autoshard.wishes import Wishes


@dataclass(slots=True, eq=False)
class OpCandidates:
    """The candidates of every op of one program.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        wishes: What the user asked for.
        backend: Of the machine planned for; it may keep some ops whole.
        max_candidates: Most ways to cut that one op is offered.
        pins: What was asked, by op, then by value.

    Raises:
        ConstraintError: A sharding asked for does not fit its tensor or the mesh.
    """

    graph: Graph
    parts: MeshParts
    wishes: Wishes
    backend: str
    max_candidates: int
    pins: dict[int, dict[int, Pin]] = field(default_factory=dict)
    _maker: CandidateMaker = field(init=False)
    _grouped: frozenset[int] = field(init=False)
    _admitted_by_pin: dict[Hashable, tuple[object, tuple[Candidate, ...]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self._grouped = frozenset(value for group in self.graph.groups for value in group)
        self._read_pins()
        written = frozenset(pin.asked for pins in self.pins.values() for pin in pins.values())
        self._maker = CandidateMaker(
            self.parts, max_candidates=self.max_candidates, written=written
        )

    def has_choice(self, op: Op) -> bool:
        """Whether there is anything to decide: not for constants and scalars."""
        if op.kind is OpKind.FREE:
            return False
        return any(self.graph.values[v].shape for v in (*op.operands, *op.results))

    def of_shape(self, shape: tuple[int, ...]) -> tuple[Candidate, ...]:
        """Candidates of an op that hands on a tensor as it is."""
        return self._maker.of_rule(identity_rule(shape))

    def of(self, op: Op) -> tuple[Candidate, ...]:
        """Candidates of one op, never none.

        Raises:
            ConstraintError: None meets what was asked.
        """
        assert op.rule is not None
        forbidden = self.graph.manual_axes(op.region)
        base = self._maker.of_rule(op.rule, forbidden)
        if keeps_whole(self.backend, op.name):
            base = base[:1]
        if op.kind in (OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL):
            return self._manual(op, base)
        if op.index in self.pins:
            base = self._admitted(op, base, self.pins[op.index])
        if len(op.results) > 1 and self._grouped.intersection(op.results):
            base = self._alike_results(op, base)
        return base

    def _asked(self, op: Op, place: int) -> Iterator[tuple[int, Sharding, str]]:
        """What the user asked of an op: `(value, sharding, where)`."""
        if op.kind is OpKind.CONSTRAINT:
            sharding, where = constraint_sharding(op, self.parts.mesh)
            yield op.results[0], sharding, where
            return
        asked: Sharding | None = None
        if op.kind is OpKind.ARGUMENT:
            value = op.results[0]
            asked, where = self.wishes.arguments[place], f"argument {self.graph.values[value].name}"
        elif op.kind is OpKind.RESULT:
            value = op.operands[0]
            asked, where = self.wishes.results[place], f"result {op.name}"
        if asked is not None:
            yield value, asked, where
        for value in op.results:
            if value in self.wishes.values:
                yield value, self.wishes.values[value], f"value made at {op.source or op.name}"

    def _admitted(
        self, op: Op, base: tuple[Candidate, ...], pins: Mapping[int, Pin]
    ) -> tuple[Candidate, ...]:
        """The candidates that pins admit; a pin that no candidate meets becomes one."""
        wanted = [(place_of(op, value), pin) for value, pin in pins.items()]
        key = (id(base), *((place, p.asked, p.is_open, p.banned) for place, p in wanted))
        known = self._admitted_by_pin.get(key)
        if known is None:
            found = tuple(
                c
                for c in base
                if all(
                    pin.admits(c.side(is_result=bool(op.results))[place]) for place, pin in wanted
                )
            )
            if not found and op.kind is not OpKind.COMPUTE:
                found = self._extended(op, base, next(iter(pins.values())))
            if not found:
                shown = " and ".join(format_sharding(pin.sharding) for pin in pins.values())
                raise ConstraintError(
                    f"no way to cut {op.name} ends in {shown}",
                    where="; ".join(pin.where for pin in pins.values()),
                    fix="put a sharding constraint after it, which may reshard",
                )
            known = self._admitted_by_pin[key] = (base, found)
        return known[1]

    def _extended(self, op: Op, base: tuple[Candidate, ...], pin: Pin) -> tuple[Candidate, ...]:
        """Candidates of an op that keeps shapes, made of what is asked for and nothing natural."""
        shape = self.graph.values[(op.results or op.operands)[0]].shape
        layouts = dict.fromkeys(
            pin.extended(self.parts, c.side(is_result=bool(op.results))[0], shape) for c in base
        )
        return tuple(
            Candidate((layout,) * len(op.operands), (layout,) * len(op.results), 1)
            for layout in layouts
            if layout is not None
        )

    def _alike_results(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The candidates under which results of one op in one group are sharded alike."""
        for group in self.graph.groups:
            places = [place for place, value in enumerate(op.results) if value in group]
            base = tuple(c for c in base if len({c.results[place] for place in places}) <= 1)
        if not base:
            raise ConstraintError(
                f"results of {op.name} that must be sharded alike have no sharding in common",
                where=op.source or op.name,
                fix="take one of them out of its shard_alike group",
            )
        return base

    def _manual(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Inside a shard_map body the free axes cut what the manual ones have left."""
        parts = self.parts
        outer = parse_sharding(op.pinned)
        mine = {p for axis in self._entered_axes(op) for p in parts.parts_by_axis.get(axis, ())}
        prefix = tuple(tuple(p for p in dim if p in mine) for dim in parts.to_layout(outer))
        found = []
        for candidate in base:
            local = candidate.results[0]
            if mine.intersection(p for dim in local for p in dim):
                continue
            whole = tuple(head + tail for head, tail in zip(prefix, local, strict=True))
            if op.kind is OpKind.ENTER_MANUAL:
                found.append(Candidate((whole,), (local,), 1))
            else:
                found.append(Candidate((local,), (whole,), 1))
        return tuple(found)

    def _entered_axes(self, op: Op) -> tuple[str, ...]:
        """Axes made manual by the shard_map whose border this op is."""
        if op.kind is OpKind.ENTER_MANUAL:
            region = next(
                r
                for r in self.graph.regions
                if r.kind == "manual" and r.parent == op.region and r.start > op.index
            )
        else:
            region = next(
                r
                for r in reversed(self.graph.regions)
                if r.kind == "manual" and r.parent == op.region and r.stop <= op.index
            )
        return region.manual_axes

    def _read_pins(self) -> None:
        """Read what the user pinned, so that every op can follow it."""
        places = {op.index: i for i, op in enumerate(self.graph.arguments)}
        places |= {op.index: i for i, op in enumerate(self.graph.results)}
        for op in filter(self.has_choice, self.graph.ops):
            for value, sharding, where in self._asked(op, places.get(op.index, -1)):
                found = self.graph.values[value]
                pin = read_pin(sharding, self.parts, found.shape, f"{where}: {found.type_text}")
                self.pins.setdefault(op.index, {})[value] = pin


def place_of(op: Op, value: int) -> int:
    """Where an op makes a value, or reads it where it makes none."""
    return (op.results or op.operands).index(value)
