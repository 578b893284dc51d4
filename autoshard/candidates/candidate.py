"""The ways one op can be cut: mesh parts assigned to the factors of its sharding rule.

Operand and result layouts, the share of the work each device does and the reduction its partial
sums need all follow from that assignment.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import groupby, product
from math import gcd, prod

from autoshard.graph.rule import Dims, Rule, summed_rows
from autoshard.layouts import Layout, MeshParts, Parts, part_orders

MAX_CANDIDATES = 400
_COPRIME = 2**61 - 1  # a prime that no mesh is a multiple of


@dataclass(frozen=True, slots=True)
class Streamed:
    """How a product runs in steps: operands gathered in panels, or pieces passed round rings.

    Args:
        needs: What it works on, where the candidate's operands are what lies at home.
        over: The factor that steps run over.
        panel: Values of it on a device that make up one step.
        num_steps: How many steps there are.
        rings: The mesh parts round which pieces are passed; none where panels are gathered.
        moved: What is passed on: 0 for the result, 1 and 2 for the operands.
        both_ways: Whether half of each piece goes one way round and half the other.
    """

    needs: tuple[Layout, ...]
    over: int
    panel: int
    num_steps: int
    rings: Parts = ()
    moved: tuple[int, ...] = ()
    both_ways: bool = False


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to cut an op.

    Args:
        operands: Layout each operand must have.
        results: Layout each result ends in.
        cut: Pieces the work falls into: local work is the whole divided by this.
        reduced: Parts over which partial results are summed by an all-reduce.
        scattered: Parts over which they are summed by a reduce-scatter.
        partial: Layout of the (first) result before the reduction.
        summed: The parts of `reduced` and `scattered`, by the dimension that they cut.
        streamed: For a product that runs in steps, how.
        runs_per_sum: Runs of the op that one all-reduce serves: several where it moves behind a
            loop, infinitely many where it is that of an op whose result is added to this one's.
    """

    operands: tuple[Layout, ...]
    results: tuple[Layout, ...]
    cut: int
    reduced: Parts = ()
    scattered: Parts = ()
    partial: Layout = ()
    summed: tuple[Parts, ...] = field(default=(), compare=False)  # follows from the operands
    streamed: Streamed | None = None
    runs_per_sum: float = field(default=1.0, compare=False)

    @property
    def stands_partial(self) -> bool:
        """Whether partial sums stand whole before they are scattered; those of a ring do not."""
        return bool(self.scattered) and (self.streamed is None or 0 not in self.streamed.moved)

    def side(self, *, is_result: bool) -> tuple[Layout, ...]:
        """Layouts of the results, or of the operands."""
        return self.results if is_result else self.operands


@dataclass(frozen=True, slots=True)
class _Choice:
    """An assignment of mesh parts to factors.

    Args:
        place: Among all assignments.
        factors: Parts by factor.
        cut: Pieces of the work.
        num_axes: Mesh axes that it uses.
    """

    place: int
    factors: dict[int, frozenset[int]]
    cut: int
    num_axes: int

    @property
    def rank(self) -> tuple[int, int]:
        """Those that cut the work most come first; of these, those that cut the fewest factors."""
        return -self.cut, len(self.factors)


@dataclass(slots=True)
class CandidateMaker:
    """Enumerates candidates, remembering rules it has met.

    Args:
        parts: The mesh parts of this plan.
        max_candidates: Beyond this many, odd ones are dropped first (axes of a dimension out of
            mesh order, sums scattered onto several dimensions), then those that cut the work
            least, then those that cut the most factors. Those that use a single axis always stay.
        written: Layouts the user wrote. Every op may follow their orders of axes, and an axis
            they use in parts may cut different factors with its parts. In place of one on another
            mesh, its twin on this one is followed.
    """

    parts: MeshParts
    max_candidates: int = MAX_CANDIDATES
    written: frozenset[Layout] = frozenset()
    _orders_of: dict[frozenset[int], tuple[Parts, ...]] = field(default_factory=dict)
    _by_rule: dict[tuple[Rule, frozenset[str]], tuple[Candidate, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        twins = (self.parts.twin(layout) for layout in self.written)
        self.written = frozenset(layout for layout in twins if layout is not None)

    def of_rule(
        self, rule: Rule, forbidden_axes: frozenset[str] = frozenset()
    ) -> tuple[Candidate, ...]:
        """Every candidate of an op with this rule; the first one cuts nothing."""
        found = self._by_rule.get((rule, forbidden_axes))
        if found is None:
            alike = self._with_plain_sizes(rule)
            found = self._by_rule.get((alike, forbidden_axes))
            if found is None:
                found = self._enumerate(alike, forbidden_axes)
                self._by_rule[alike, forbidden_axes] = found
            self._by_rule[rule, forbidden_axes] = found
        return found

    def _with_plain_sizes(self, rule: Rule) -> Rule:
        """The rule with sizes that tell no more than which cuts divide a factor, and which end it.

        Rules that differ in nothing else, as those of wide and narrow layers, share candidates.
        """
        num_devices = self.parts.mesh.num_devices
        plain = [
            size if size < 2 or common == size else common * _COPRIME
            for size, common in ((size, gcd(size, num_devices)) for size in rule.factor_sizes)
        ]
        return replace(rule, factor_sizes=tuple(plain))

    def _enumerate(self, rule: Rule, forbidden_axes: frozenset[str]) -> tuple[Candidate, ...]:
        cuttable = [
            factor
            for factor, size in enumerate(rule.factor_sizes)
            if size > 1 and factor not in rule.need_replication and factor not in rule.permutation
        ]
        written_in_parts = self._axes_written_in_parts()
        per_axis = [
            _part_choices(self.parts, axis, rule.factor_sizes, cuttable)
            if axis in written_in_parts
            else _axis_choices(self.parts, axis, rule.factor_sizes, cuttable)
            for axis in self.parts.parts_by_axis
            if axis not in forbidden_axes
        ]
        choices = list(self._choices(rule, per_axis))
        usual = self._usual(rule, choices)
        if usual is not None:
            return usual
        found: dict[Candidate, _Choice] = {}
        for choice in choices:
            for candidate in self._ended(rule, choice):
                found.setdefault(candidate, choice)
        if len(found) <= self.max_candidates:
            return tuple(found)

        def rank(candidate: Candidate) -> tuple[int, tuple[int, int]]:
            choice = found[candidate]
            return choice.num_axes > 1 and 1 + _oddness(candidate), choice.rank

        kept = set(sorted(found, key=rank)[: self.max_candidates])
        return tuple(c for c in found if c in kept or found[c].num_axes < 2)

    def _choices(
        self, rule: Rule, per_axis: Sequence[Sequence[tuple[tuple[int, int], ...]]]
    ) -> Iterator[_Choice]:
        """Assignments of axes to factors that the sizes of all factors allow."""
        for place, choice in enumerate(product(*per_axis)):
            chosen: dict[int, frozenset[int]] = {}
            for part, factor in (pair for pairs in choice for pair in pairs):
                chosen[factor] = chosen.get(factor, frozenset()) | {part}
            shards = {factor: self.parts.num_shards(used) for factor, used in chosen.items()}
            if not any(rule.factor_sizes[factor] % count for factor, count in shards.items()):
                axes = {self.parts.axes[part] for used in chosen.values() for part in used}
                yield _Choice(place, chosen, prod(shards.values()), len(axes))

    def _usual(self, rule: Rule, choices: Sequence[_Choice]) -> tuple[Candidate, ...] | None:
        """The candidates that stay where enough of them are not odd; None where too few are.

        Odd ones would all be dropped then, and so would those that cut less than what stays: on
        meshes of many axes they are by far the most, and none of them is made.
        """
        found: dict[Candidate, int] = {}
        alone = [choice for choice in choices if choice.num_axes < 2]
        for choice in alone:
            for candidate in self._ended(rule, choice):
                found.setdefault(candidate, choice.place)
        several = [choice for choice in choices if choice.num_axes > 1]
        several.sort(key=lambda one: one.rank)
        for _, alike in groupby(several, lambda one: one.rank):
            if len(found) >= self.max_candidates:
                break
            for choice in alike:
                for candidate in self._ended(rule, choice, is_usual=True):
                    if len(found) < self.max_candidates and not _oddness(candidate):
                        found.setdefault(candidate, choice.place)
        if len(found) < self.max_candidates:
            return None
        return tuple(sorted(found, key=lambda candidate: found[candidate]))

    def _ended(self, rule: Rule, choice: _Choice, *, is_usual: bool = False) -> Iterator[Candidate]:
        """The candidates of an assignment.

        Args:
            rule: Of the op.
            choice: The assignment.
            is_usual: Leave out odd orders of axes, and sums scattered onto several dimensions.
        """
        orders = [self._orders(used) for used in choice.factors.values()]
        if is_usual:
            orders = [tuple(o for o in own if list(o) == sorted(o)) for own in orders]
        for ordered in product(*orders):
            cuts = dict(zip(choice.factors, ordered, strict=True))
            yield from self._finish(rule, cuts, is_usual=is_usual)

    def _orders(self, used: frozenset[int]) -> tuple[Parts, ...]:
        """Orders in which parts may cut one dimension, the user's own among them."""
        found = self._orders_of.get(used)
        if found is None:
            orders = dict.fromkeys(part_orders(self.parts, used))
            for layout in sorted(self.written):
                orders.update((dim, None) for dim in layout if used == set(dim))
            found = self._orders_of[used] = tuple(orders)
        return found

    def _axes_written_in_parts(self) -> set[str]:
        axes = self.parts.axes
        return {
            axes[part]
            for layout in self.written
            for dim in layout
            for part in dim
            if not set(self.parts.parts_by_axis[axes[part]]) <= set(dim)
        }

    def _finish(self, rule: Rule, cuts: dict[int, Parts], *, is_usual: bool) -> Iterator[Candidate]:
        """Layouts of one assignment, with each way to end its reductions, or each usual one."""
        operands = self._layouts(rule, rule.operands, cuts)
        results = self._layouts(rule, rule.results, cuts)
        if operands is None or results is None:
            return
        summed = {factor: cuts[factor] for factor in cuts if factor in rule.reduction}
        cut = self.parts.num_shards(part for used in cuts.values() for part in used)
        reduced = tuple(sorted(part for used in summed.values() for part in used))
        if not reduced:
            yield Candidate(operands, results, cut)
            return
        partial = results[0]
        by_dimension = _by_dimension(rule, summed)
        yield Candidate(operands, results, cut, reduced, (), partial, by_dimension)
        if len(results) > 1:
            return
        shape = _result_shape(rule)
        runs = [
            tuple(p for p in reduced if self.parts.axes[p] == axis)
            for axis in self.parts.parts_by_axis
        ]
        runs = [run for run in runs if run]
        for targets in product(range(-1, len(shape)), repeat=len(runs)):
            if all(target < 0 for target in targets):
                continue
            if is_usual and len({target for target in targets if target >= 0}) > 1:
                continue
            layout = [list(dim) for dim in partial]
            scattered: list[int] = []
            for run, target in zip(runs, targets, strict=True):
                if target >= 0:
                    layout[target].extend(run)
                    scattered.extend(run)
            ended = tuple(tuple(dim) for dim in layout)
            if all(
                size % self.parts.num_shards(dim) == 0
                and (len(dim) < 3 or dim in self._orders(frozenset(dim)))
                for size, dim in zip(shape, ended, strict=True)
            ):
                rest = tuple(p for p in reduced if p not in scattered)
                yield Candidate(
                    operands, (ended,), cut, rest, tuple(scattered), partial, by_dimension
                )

    def _layouts(
        self, rule: Rule, tensors: tuple[Dims, ...], cuts: dict[int, Parts]
    ) -> tuple[Layout, ...] | None:
        """Layouts of tensors under factor cuts; None where a sharding cannot say them.

        A dimension made of several factors is cut from its major factor on: a minor factor may be
        cut only when everything more major is cut whole.
        """
        layouts = []
        for dims in tensors:
            layout = []
            for factors in dims:
                used: Parts = ()
                is_whole = True
                for factor in factors:
                    cut = cuts.get(factor, ())
                    if cut and not is_whole:
                        return None
                    used += cut
                    if is_whole:
                        is_whole = self.parts.num_shards(cut) == rule.factor_sizes[factor]
                layout.append(used)
            layouts.append(tuple(layout))
        return tuple(layouts)


def _by_dimension(rule: Rule, summed: dict[int, Parts]) -> tuple[Parts, ...]:
    """The parts of summed factors, joined where the factors make up one operand dimension.

    The rows and columns over which the gradient of a kernel sums are one dimension.
    """
    found: dict[tuple[int, int], Parts] = {}
    rows = summed_rows(rule)
    for factor, parts in summed.items():
        if factor in rows:
            found[-1, -1] = tuple(sorted((*found.get((-1, -1), ()), *parts)))
            continue
        place = next(
            (operand, dim)
            for operand, dims in enumerate(rule.operands)
            for dim, factors in enumerate(dims)
            if factor in factors
        )
        found[place] = (*found.get(place, ()), *parts)
    return tuple(found[place] for place in sorted(found))


def _axis_choices(
    parts: MeshParts, axis: str, sizes: tuple[int, ...], cuttable: list[int]
) -> list[tuple[tuple[int, int], ...]]:
    """What one axis can do: nothing, cut a factor whole, or lend its parts to several factors.

    Each choice is a tuple of `(part, factor)` pairs. Of a split axis the major parts may cut any
    factor alone; the minor ones cut another factor beside them only where the whole axis does not
    divide the first.
    """
    own = parts.parts_by_axis[axis]
    whole = parts.num_shards(own)
    choices: list[tuple[tuple[int, int], ...]] = [()]
    choices += [
        tuple((part, factor) for part in own) for factor in cuttable if sizes[factor] % whole == 0
    ]
    if len(own) == 1:
        return choices
    for length in range(1, len(own)):
        major, minor = own[:length], own[length:]
        for first in cuttable:
            if sizes[first] % parts.num_shards(major):
                continue
            head = tuple((part, first) for part in major)
            choices.append(head)
            if sizes[first] % whole == 0:
                continue
            choices += [
                (*head, *((part, second) for part in minor))
                for second in cuttable
                if second != first and sizes[second] % parts.num_shards(minor) == 0
            ]
    return choices


def _part_choices(
    parts: MeshParts, axis: str, sizes: tuple[int, ...], cuttable: list[int]
) -> list[tuple[tuple[int, int], ...]]:
    """What an axis that the user wrote in parts can do: each part cuts any factor, or none."""
    per_part = [
        [(), *(((part, f),) for f in cuttable if sizes[f] % parts.sizes[part] == 0)]
        for part in parts.parts_by_axis[axis]
    ]
    return [tuple(pair for pairs in choice for pair in pairs) for choice in product(*per_part)]


def _oddness(candidate: Candidate) -> int:
    """How unusual a candidate is: axes out of mesh order, sums scattered onto many dimensions."""
    odd = sum(
        list(dim) != sorted(dim)
        for layout in (*candidate.operands, *candidate.results)
        for dim in layout
    )
    if candidate.scattered:
        pairs = zip(candidate.partial, candidate.results[0], strict=True)
        odd += sum(before != after for before, after in pairs) - 1
    return odd


def _result_shape(rule: Rule) -> tuple[int, ...]:
    shape = []
    for factors in rule.results[0]:
        size = 1
        for factor in factors:
            size *= rule.factor_sizes[factor]
        shape.append(size)
    return tuple(shape)
