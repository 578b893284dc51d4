"""Ways to run one matrix product in steps: what is offered, and the schedule that it is.

A candidate in panels is a plain one whose operands live further cut than the product needs them.
What it lacks is gathered in panels over a dimension that is summed, so that no operand is ever
whole. Candidates with pieces that go round are in `rings`.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import product
from math import gcd, lcm, prod

from autoshard.candidates.candidate import Candidate, Streamed
from autoshard.candidates.rings import RingOffers
from autoshard.errors import AutoshardError
from autoshard.graph.program import Graph, Op
from autoshard.graph.rule import Dims, Rule, factors_of
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.loops import Message, messages
from autoshard.loops.dot_schedule import DotSchedule, plain_statement, with_plain_names

HEAVY_SHARE = 1 / 16  # of the memory budget: a gathered operand below it is not worth steps
LIGHT_SHARE = HEAVY_SHARE / 4  # a panel below it is not worth more steps
NUM_STEPS = (4, 16, 64)


MOST_DEVICES_IN_RINGS = 16
"""Rings are offered on meshes of at most so many devices: going through one takes a time that grows
with the square of them, and a product has hundreds."""


@dataclass(frozen=True, slots=True)
class StreamOffers:
    """The candidates in steps that an op is offered beside its plain ones.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        equations: Paths of the `dot_general` equations that may be rewritten.
        heavy_bytes: An operand of which a device would gather less is left alone.
    """

    graph: Graph
    parts: MeshParts
    equations: frozenset[str]
    heavy_bytes: float

    def of(self, op: Op, plain: Sequence[Candidate]) -> tuple[Candidate, ...]:
        """The candidates of one op in steps, none for most."""
        if not self._can_stream(op):
            return ()
        assert op.rule is not None
        tensors = (*op.results, *op.operands)
        rings = RingOffers(
            self.parts,
            op.rule,
            lambda place, layout: self._local_bytes(tensors[place], layout) >= self.heavy_bytes,
        )
        has_rings = self.parts.mesh.num_devices <= MOST_DEVICES_IN_RINGS
        found = dict.fromkeys(
            streamed
            for candidate in plain
            if _is_on_whole_axes(self.parts, candidate)
            for streamed in (
                *self._in_panels(op, op.rule, candidate),
                *(rings.of(candidate) if has_rings else ()),
            )
        )
        return tuple(c for c in found if self._has_form(op.rule, c))

    def _can_stream(self, op: Op) -> bool:
        rule = op.rule
        if op.equation not in self.equations or op.name != "dot_general" or rule is None:
            return False
        is_plain = all(len(dim) == 1 for dims in (*rule.operands, *rule.results) for dim in dims)
        is_asked = any("<" in self.graph.values[value].path for value in op.operands)
        return (
            is_plain
            and len(op.operands) == 2
            and len(op.results) == 1
            and not is_asked
            and not self.graph.manual_axes(op.region)
            and len(rule.factor_sizes) <= 26
            and 0 not in rule.factor_sizes
        )

    def _in_panels(self, op: Op, rule: Rule, plain: Candidate) -> Iterator[Candidate]:
        """A plain candidate with one operand, or both, cut further at home."""
        cuts = cuts_by_factor(rule, plain)
        summed = [factor for factor in rule.reduction if factor in factors_of(rule.operands[1])]
        if not summed:
            return
        over = max(summed, key=lambda f: (rule.factor_sizes[f] // self._num(cuts, f), -f))
        extent = rule.factor_sizes[over] // self._num(cuts, over)
        homes = [list(self._homes(op, rule, plain, position)) for position in (0, 1)]
        choices = [[plain.operands[position], *homes[position]] for position in (0, 1)]
        for operands in product(*choices):
            if operands == plain.operands:
                continue
            segments = self._num_segments(rule, plain, operands, over)
            largest = max(
                self._local_bytes(op.operands[place], needed)
                for place, (home, needed) in enumerate(zip(operands, plain.operands, strict=True))
                if home != needed
            )
            for num_steps in _step_counts(extent, segments):
                yield replace(
                    plain,
                    operands=operands,
                    streamed=Streamed(plain.operands, over, extent // num_steps, num_steps),
                )
                if largest // num_steps < self.heavy_bytes * LIGHT_SHARE / HEAVY_SHARE:
                    break

    def _homes(self, op: Op, rule: Rule, plain: Candidate, position: int) -> Iterator[Layout]:
        """Layouts of an operand that is cut further than the product needs it."""
        needed = plain.operands[position]
        lacking = [p for p in range(len(self.parts.axes)) if not any(p in dim for dim in needed)]
        if not lacking or self._local_bytes(op.operands[position], needed) < self.heavy_bytes:
            return
        singles: list[Parts] = [(part,) for part in lacking]
        sets = dict.fromkeys([*singles, tuple(lacking)])
        for added, (dim, (factor,)) in product(sets, enumerate(rule.operands[position])):
            longer = (*needed[dim], *added)
            if rule.factor_sizes[factor] % self.parts.num_shards(longer) == 0:
                yield (*needed[:dim], longer, *needed[dim + 1 :])

    def _num_segments(
        self, rule: Rule, plain: Candidate, homes: Sequence[Layout], over: int
    ) -> int:
        """The pieces of `over` on a device of which none is shared at any home."""
        segments = 1
        for dims, needed, home in zip(rule.operands, plain.operands, homes, strict=True):
            dim = dims.index((over,))
            segments = lcm(segments, self.parts.num_shards(home[dim][len(needed[dim]) :]))
        return segments

    def _has_form(self, rule: Rule, candidate: Candidate) -> bool:
        try:
            messages_of(self.parts, rule, candidate)
        except AutoshardError:
            return False
        return True

    def _num(self, cuts: dict[int, Parts], factor: int) -> int:
        return self.parts.num_shards(cuts.get(factor, ()))

    def _local_bytes(self, value: int, layout: Layout) -> int:
        whole = self.graph.values[value].num_bytes
        return whole // self.parts.num_pieces(layout)


def stream_offers(
    graph: Graph,
    parts: MeshParts,
    equations: frozenset[str],
    memory_limit: int | None,
    most_held_bytes: int = 0,
) -> StreamOffers | None:
    """What is offered under a memory limit; None where there is none, or nothing to rewrite.

    Args:
        graph: The program.
        parts: The mesh parts of this plan.
        equations: Paths of the `dot_general` equations that may be rewritten.
        memory_limit: Bytes one device may hold.
        most_held_bytes: By the whole program at one time. No limit below a device's share of it is
            met, and none makes more operands heavy than that share does: all would be.
    """
    if memory_limit is None or not equations or parts.others:
        return None
    made = Counter(op.equation for op in graph.ops if op.name == "dot_general")
    once = frozenset(path for path in equations if made[path] == 1)
    limit = max(memory_limit, most_held_bytes // parts.mesh.num_devices)
    return StreamOffers(graph, parts, once, limit * HEAVY_SHARE)


def cuts_by_factor(rule: Rule, candidate: Candidate) -> dict[int, Parts]:
    """The parts that cut each factor of a product, as the product is computed."""
    needed = candidate.streamed.needs if candidate.streamed else candidate.operands
    return {
        factor: parts
        for dims, layout in zip(rule.operands, needed, strict=True)
        for (factor,), parts in zip(dims, layout, strict=True)
        if parts
    }


def dot_schedule_of(parts: MeshParts, rule: Rule, candidate: Candidate) -> DotSchedule:
    """A candidate in steps as a schedule in names of mesh axes."""
    streamed = candidate.streamed
    assert streamed is not None
    names = {factor: f"v{factor}" for factor in range(len(rule.factor_sizes))}
    written = plain_statement(
        [[names[f] for (f,) in dims] for dims in (*rule.results, *rule.operands)]
    )
    statement = with_plain_names(written)
    letters = dict(zip(written.variables, statement.variables, strict=True))
    cuts = [
        (parts.axes[part], letters[names[factor]])
        for factor, used in cuts_by_factor(rule, candidate).items()
        for part in used
    ]
    layouts = (*candidate.results, *candidate.operands)
    return DotSchedule(
        statement=str(statement),
        homes=tuple(map(parts.to_sharding, layouts)),
        grid=tuple(axis for axis, _ in cuts),
        cut=tuple(variable for _, variable in cuts),
        over=letters[names[streamed.over]],
        panel=streamed.panel,
        num_steps=streamed.num_steps,
        rings=tuple(parts.axes[part] for part in streamed.rings),
        moved="".join(statement.accesses[place].tensor for place in streamed.moved),
        both_ways=streamed.both_ways,
    )


def extents_of(rule: Rule) -> dict[str, int]:
    """The range of each variable of the statement that `dot_schedule_of` writes."""
    order = dict.fromkeys(factor for dims in (*rule.results, *rule.operands) for (factor,) in dims)
    return {
        letter: rule.factor_sizes[factor]
        for letter, factor in zip("abcdefghijklmnopqrstuvwxyz", order, strict=False)
    }


@dataclass(frozen=True, slots=True)
class StreamMessage:
    """A collective of a product in steps.

    Args:
        message: What `autoshard.loops` says of it.
        place: Of the tensor it moves: 0 for the result, 1 and 2 for the operands.
        parts: The mesh parts it works over.
        both_ways: Whether another one takes the other half of a piece the other way round.
    """

    message: Message
    place: int
    parts: Parts
    both_ways: bool = False

    @property
    def is_shift(self) -> bool:
        """Whether it passes pieces on to neighbours."""
        return self.message.kind == "collective-permute" and self.message.is_in_loop

    def num_elements(self, parts: MeshParts) -> int:
        """Of the larger side, on one device."""
        grown = parts.num_shards(self.parts) if self.message.kind == "all-gather" else 1
        return self.message.words * grown


@lru_cache(maxsize=2**16)
def messages_of(parts: MeshParts, rule: Rule, candidate: Candidate) -> tuple[StreamMessage, ...]:
    """Every collective of a candidate in steps, those of its sums included.

    Raises:
        ScheduleError: There is no such schedule.
    """
    units = _units(parts, rule, candidate)
    small = replace(
        rule,
        factor_sizes=tuple(s // u for s, u in zip(rule.factor_sizes, units, strict=True)),
    )
    streamed = candidate.streamed
    assert streamed is not None
    panel = streamed.panel // units[streamed.over]
    alike = replace(candidate, streamed=replace(streamed, panel=panel))
    small, alike = _of_parted_factors(small, alike)
    tensors = (*rule.results, *rule.operands)
    scales = [prod(units[factor] for (factor,) in dims) for dims in tensors]
    return tuple(
        replace(
            found,
            message=replace(
                found.message,
                words=found.message.words * scales[found.place],
                received=found.message.received * scales[found.place],
            ),
        )
        for found in messages_of_small(parts, small, alike)
    )


@lru_cache(maxsize=2**16)
def messages_of_small(
    parts: MeshParts, rule: Rule, candidate: Candidate
) -> tuple[StreamMessage, ...]:
    """As `messages_of`; products of many sizes share their smallest form."""
    schedule = dot_schedule_of(parts, rule, candidate)
    placed = schedule.placed(extents_of(rule), parts.mesh)
    part_of = {axis: part for part, axis in enumerate(parts.axes)}
    return tuple(
        StreamMessage(
            message,
            "ABC".index(message.tensor),
            tuple(sorted(part_of[schedule.grid[dim]] for dim in message.grid_dims)),
            schedule.both_ways,
        )
        for message in messages(placed)
    )


def _units(parts: MeshParts, rule: Rule, candidate: Candidate) -> tuple[int, ...]:
    """Per factor, values of it that are never parted: neither devices nor steps fall inside.

    A schedule of so many times smaller a product sends so many times fewer words, and is quick to
    go through.
    """
    streamed = candidate.streamed
    assert streamed is not None
    units = list(rule.factor_sizes)
    layouts = (candidate.results[0], candidate.partial, *candidate.operands, *streamed.needs)
    made = rule.results[0]
    tensors = (made, made, *rule.operands, *rule.operands)
    for dims, layout in zip(tensors, layouts, strict=True):
        for (factor,), cut in zip(dims, layout, strict=False):
            pieces = rule.factor_sizes[factor] // parts.num_shards(cut)
            units[factor] = gcd(units[factor], pieces)
    step = streamed.panel // 2 if streamed.both_ways else streamed.panel
    shares, rest = divmod(step, parts.mesh.num_devices)  # each step takes from every home alike
    units[streamed.over] = 1 if rest else gcd(units[streamed.over], shares)
    return tuple(units)


def _of_parted_factors(rule: Rule, candidate: Candidate) -> tuple[Rule, Candidate]:
    """The product and a candidate of it without factors of size 1, as far as each tensor has more.

    What is left is numbered as it comes, and of the candidate what its schedule follows from: so
    products of more and of fewer dimensions share their forms.
    """
    streamed, tensors = candidate.streamed, (*rule.results, *rule.operands)
    assert streamed is not None
    kept = {factor for factor, size in enumerate(rule.factor_sizes) if size > 1} | {streamed.over}
    for dims in tensors:
        if dims and not kept & factors_of(dims):
            kept |= set(dims[0])
    in_order = dict.fromkeys(f for dims in tensors for (f,) in dims if f in kept)
    number = {factor: place for place, factor in enumerate(in_order)}

    def numbered(tensors: tuple[Dims, ...]) -> tuple[Dims, ...]:
        return tuple(tuple((number[f],) for (f,) in dims if f in kept) for dims in tensors)

    def of(tensors: tuple[Dims, ...], layouts: tuple[Layout, ...]) -> tuple[Layout, ...]:
        return tuple(
            tuple(cut for (f,), cut in zip(dims, layout, strict=True) if f in kept)
            for dims, layout in zip(tensors, layouts, strict=True)
        )

    return (
        Rule(
            tuple(rule.factor_sizes[factor] for factor in number),
            numbered(rule.operands),
            numbered(rule.results),
            frozenset(number[factor] for factor in rule.reduction & kept),
        ),
        Candidate(
            of(rule.operands, candidate.operands),
            of(rule.results, candidate.results),
            candidate.cut,
            streamed=replace(
                streamed,
                needs=of(rule.operands, streamed.needs),
                over=number[streamed.over],
            ),
        ),
    )


def panel_elements(parts: MeshParts, rule: Rule, candidate: Candidate) -> tuple[int, ...]:
    """Elements of what a device works on in one step, of each operand."""
    streamed = candidate.streamed
    assert streamed is not None
    return tuple(
        prod(rule.factor_sizes[factor] for (factor,) in dims)
        // parts.num_pieces(layout)
        // (streamed.num_steps if (streamed.over,) in dims else 1)
        for dims, layout in zip(rule.operands, streamed.needs, strict=True)
    )


def _is_on_whole_axes(parts: MeshParts, candidate: Candidate) -> bool:
    """Whether every axis of the mesh cuts the product, and none in parts."""
    is_split = len(parts.axes) > len(parts.parts_by_axis)
    return not is_split and candidate.cut == parts.mesh.num_devices and candidate.cut > 1


def _step_counts(extent: int, segments: int) -> list[int]:
    """Numbers of steps near those wanted, each of a panel that all pieces give to evenly."""
    most = extent // segments
    divisors = [n for n in range(2, min(most, max(NUM_STEPS)) + 1) if most % n == 0]
    return sorted({max((n for n in divisors if n <= want), default=0) for want in NUM_STEPS} - {0})
