"""Which candidates each op is offered: those of its rule that the user's word admits."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass, field

from autoshard.backends import CollectivePolicy
from autoshard.candidates.along_space import exchanged_with_neighbours, rule_with_space
from autoshard.candidates.candidate import Candidate, CandidateMaker
from autoshard.candidates.cut_look_ups import without_moved_look_ups
from autoshard.candidates.manual_borders import border_candidates
from autoshard.candidates.partitioner_limits import LIMITED_OPS, compiled_as_asked
from autoshard.candidates.rounds import ONLY_ROUND, Round, RoundFilter, extends
from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, Op, OpClass, OpKind
from autoshard.graph.rule import identity_rule
from autoshard.layouts import MeshParts
from autoshard.sharding import Sharding, format_sharding
from autoshard.wishes.other_meshes import constraint_sharding
from autoshard.wishes.pinned import Pin, read_pin
from autoshard.wishes.wishes import Wishes

_BORDERS = frozenset({OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL})
_LOOK_UPS = frozenset({OpClass.GATHER, OpClass.SCATTER})


@dataclass(slots=True, eq=False)
class OpCandidates:
    """The candidates of every op of one program.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        wishes: What the user asked for.
        collectives: Of the compiler; it may leave some ops unpartitioned.
        max_candidates: Most ways to cut that one op is offered.
        round: What holds in this round of planning.
        pins: What is asked in it, by op, then by value.

    Raises:
        ConstraintError: A sharding asked for does not fit its tensor or the mesh.
    """

    graph: Graph
    parts: MeshParts
    wishes: Wishes
    collectives: CollectivePolicy
    max_candidates: int
    round: Round = ONLY_ROUND
    pins: dict[int, dict[int, Pin]] = field(init=False)
    _maker: CandidateMaker = field(init=False)
    _filter: RoundFilter = field(init=False)
    _groups: tuple[tuple[int, ...], ...] = field(init=False)
    _grouped: frozenset[int] = field(init=False)
    _empty_results: frozenset[int] = field(init=False)
    _admitted_by_pin: dict[Hashable, tuple[object, tuple[Candidate, ...]]] = field(
        default_factory=dict
    )

    def __post_init__(self) -> None:
        self._groups = (
            *self.graph.groups,
            *(tuple(value for _, value in wish.members) for wish in self.wishes.groups),
        )
        self._grouped = frozenset(value for group in self._groups for value in group)
        self._empty_results = _empty_results(self.graph, self.wishes)
        self._filter = RoundFilter(self.round)
        pins = read_pins(self.graph, self.parts, self.wishes)
        written = frozenset(pin.asked for of_op in pins.values() for pin in of_op.values())
        self.pins = {
            op: {value: self.round.pin(pin) for value, pin in of_op.items()}
            for op, of_op in pins.items()
        }
        self._maker = CandidateMaker(
            self.parts, max_candidates=self.max_candidates, written=written
        )

    def has_choice(self, op: Op) -> bool:
        """Whether there is anything to decide: not for constants and scalars."""
        return has_choice(self.graph, op)

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
        base = (
            self._along_space(op, forbidden)
            if op.windows
            else self._maker.of_rule(op.rule, forbidden)
        )
        if op.index in self._empty_results or _is_over_one_device(op, forbidden):
            base = base[:1]
        elif op.name in self.collectives.unpartitioned_ops:
            base = self._on_whole_axes(base) if op.equation in self.graph.batched else base[:1]
        elif forbidden or op.equation.startswith(self.graph.bodies) or op.kind in _BORDERS:
            base = self._on_whole_axes(base)
        base = self._filter.usable(base)
        if op.kind in _BORDERS:
            return self._filter.extending(op, border_candidates(self.graph, self.parts, op, base))
        base = self._filter.extending(op, base)
        if op.index in self.pins:
            base = self._admitted(op, base, self.pins[op.index])
        base = self._filter.leaving(op, base)
        base = self._reading_as_asked(op, base)
        base = self._as_compiled(op, base)
        if len(op.results) > 1 and self._grouped.intersection(op.results):
            base = self._alike_results(op, base)
        return base

    def _on_whole_axes(self, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Those that a `shard_map` and its body can say: no `PartitionSpec` names sub-axes."""
        key = ("on whole axes", id(base))
        known = self._admitted_by_pin.get(key)
        if known is None:
            found = tuple(one for one in base if self._is_on_whole_axes(one))
            known = self._admitted_by_pin[key] = (base, found)
        return known[1]

    def _is_on_whole_axes(self, candidate: Candidate) -> bool:
        return all(
            ref.is_whole
            for layout in (*candidate.operands, *candidate.results)
            for ref in self.parts.to_sharding(layout).axis_refs()
        )

    def _along_space(self, op: Op, forbidden: frozenset[str]) -> tuple[Candidate, ...]:
        """Those of a convolution or pool, some of them cut along space; equal ops share them."""
        written = self._maker.written
        rule = rule_with_space(self.graph, self.parts, op, written)
        base = self._maker.of_rule(rule, forbidden)
        shapes = tuple(self.graph.values[value].shape for value in (*op.operands, *op.results))
        key = ("along space", id(base), op.name, op.rule, op.windows, shapes)
        known = self._admitted_by_pin.get(key)
        if known is None:
            found = exchanged_with_neighbours(self.graph, self.parts, op, written, base)
            known = self._admitted_by_pin[key] = (base, found)
        return known[1]

    def _as_compiled(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Those that the partitioner follows; equal ops share them."""
        if op.op_class not in _LOOK_UPS and op.name not in LIMITED_OPS:
            return base
        key = ("as compiled", id(base), op.name, op.rule)
        known = self._admitted_by_pin.get(key)
        if known is None:
            found = compiled_as_asked(self.parts, op, self.collectives, base)
            found = without_moved_look_ups(self.parts, op, found)
            known = self._admitted_by_pin[key] = (base, found)
        return known[1]

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
                raise self._none_admitted(op, pins)
            known = self._admitted_by_pin[key] = (base, found)
        return known[1]

    def _reading_as_asked(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """Of the candidates, those that work on reads as they are asked for, if there are any."""
        wanted = []
        for position, value in enumerate(op.operands):
            maker = self.graph.maker(value)
            is_read = maker.kind is OpKind.CONSTRAINT and "<" in self.graph.values[value].path
            if is_read and maker.index in self.pins:
                wanted.append((position, self.pins[maker.index][value]))
        if not wanted or op.kind is not OpKind.COMPUTE:
            return base
        key = ("read", id(base), *((place, p.asked, p.is_open, p.banned) for place, p in wanted))
        known = self._admitted_by_pin.get(key)
        if known is None:
            found = tuple(
                c for c in base if all(pin.admits(c.operands[place]) for place, pin in wanted)
            )
            known = self._admitted_by_pin[key] = (base, found or base)
        return known[1]

    def _none_admitted(self, op: Op, pins: Mapping[int, Pin]) -> ConstraintError:
        """No way to cut an op meets its pins, or none that extends what was decided before."""
        shown = " and ".join(format_sharding(pin.sharding) for pin in pins.values())
        where = "; ".join(pin.where for pin in pins.values())
        decided = self.round.decided.get(op.index)
        if decided is None:
            return ConstraintError(
                f"no sharding of {op.name} ends in {shown}",
                where=where,
                fix="put a sharding constraint after it, which may reshard",
            )
        taken, made = (
            ", ".join(format_sharding(self.parts.to_sharding(layout)) for layout in layouts)
            for layouts in (decided.operands, decided.results)
        )
        return ConstraintError(
            f"no sharding of {op.name} ends in {shown} and extends what was decided before, which"
            f" makes {made} of {taken}",
            where=where,
            fix="put a sharding constraint after it, which may reshard",
        )

    def _extended(self, op: Op, base: tuple[Candidate, ...], pin: Pin) -> tuple[Candidate, ...]:
        """Candidates of an op that keeps shapes, made of what is asked for and nothing natural."""
        shape = self.graph.values[(op.results or op.operands)[0]].shape
        layouts = dict.fromkeys(
            pin.extended(self.parts, c.side(is_result=bool(op.results))[0], shape) for c in base
        )
        found = tuple(
            Candidate((layout,) * len(op.operands), (layout,) * len(op.results), 1)
            for layout in layouts
            if layout is not None
        )
        decided = self.round.decided.get(op.index)
        return found if decided is None else tuple(c for c in found if extends(c, decided))

    def _alike_results(self, op: Op, base: tuple[Candidate, ...]) -> tuple[Candidate, ...]:
        """The candidates under which results of one op in one group are sharded alike."""
        for group in self._groups:
            places = [place for place, value in enumerate(op.results) if value in group]
            base = tuple(c for c in base if len({c.results[place] for place in places}) <= 1)
        if not base:
            raise ConstraintError(
                f"results of {op.name} that must be sharded alike have no sharding in common",
                where=op.source or op.name,
                fix="take one of them out of its shard_alike group",
            )
        return base


def _is_over_one_device(op: Op, manual_axes: frozenset[str]) -> bool:
    """True for an all-reduce of the user's over manual axes of size 1, which leave no region.

    XLA refuses it where it is cut: "Cross-partition allreduce must be in (partial) manual
    partitioning mode" (jaxlib 0.10.2).
    """
    return op.name == "all_reduce" and not manual_axes


def _empty_results(graph: Graph, wishes: Wishes) -> frozenset[int]:
    """Results without elements; not those that are cut as an argument that the user has cut.

    A compiled program that computes nothing else returns them whole, whatever their sharding says,
    and JAX 0.10.2 cannot read them then (`could not broadcast input array from shape (0,128) into
    shape (0,32)`; host devices).
    """
    asked = {result for argument, result in wishes.alike if wishes.arguments[argument] is not None}
    return frozenset(
        op.index
        for place, op in enumerate(graph.results)
        if 0 in graph.values[op.operands[0]].shape and place not in asked
    )


def has_choice(graph: Graph, op: Op) -> bool:
    """Whether there is anything to decide or to pay of an op: not for constants and scalars."""
    if op.kind is OpKind.FREE:
        return False
    if op.collective is not None:
        return True
    return any(graph.values[value].shape for value in (*op.operands, *op.results))


def read_pins(graph: Graph, parts: MeshParts, wishes: Wishes) -> dict[int, dict[int, Pin]]:
    """What the user pinned, whatever its priority, by op, then by value.

    Raises:
        ConstraintError: A sharding asked for does not fit its tensor or the mesh.
    """
    places = {op.index: i for i, op in enumerate(graph.arguments)}
    places |= {op.index: i for i, op in enumerate(graph.results)}
    pins: dict[int, dict[int, Pin]] = {}
    for op in graph.ops:
        if not has_choice(graph, op):
            continue
        for value, sharding, where in _asked(graph, parts, wishes, op, places.get(op.index, -1)):
            found = graph.values[value]
            pin = read_pin(sharding, parts, found.shape, f"{where}: {found.type_text}")
            pins.setdefault(op.index, {})[value] = pin
    return pins


def _asked(
    graph: Graph, parts: MeshParts, wishes: Wishes, op: Op, place: int
) -> Iterator[tuple[int, Sharding, str]]:
    """What the user asked of an op: `(value, sharding, where)`."""
    if op.kind is OpKind.CONSTRAINT:
        sharding, where = constraint_sharding(op, parts.mesh)
        yield op.results[0], sharding, where
        return
    asked: Sharding | None = None
    if op.kind is OpKind.ARGUMENT:
        value = op.results[0]
        asked, where = wishes.arguments[place], f"argument {graph.values[value].name}"
    elif op.kind is OpKind.RESULT:
        value = op.operands[0]
        asked, where = wishes.results[place], f"result {op.name}"
    if asked is not None:
        yield value, asked, where
    for value in op.results:
        if value in wishes.values:
            yield value, wishes.values[value], f"value made at {op.source or op.name}"


def place_of(op: Op, value: int) -> int:
    """Where an op makes a value, or reads it where it makes none."""
    return (op.results or op.operands).index(value)
