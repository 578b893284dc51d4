"""Which shardings the tensors of one op take so that they agree, at the least cost.

Every factor of the op's rule is cut by the same axes in all tensors that have it, and no axis cuts
two factors. Starting from what each tensor has, factors are cut further, less or by what another
tensor has, as long as that makes moving the operands, the work, the sums and moving the results
cheaper together.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain
from math import prod

from autoshard.collectives.factor_cuts import factor_cuts, layout_of
from autoshard.collectives.pricing import ModulePrices
from autoshard.collectives.search import priced_collectives
from autoshard.collectives.splitting import finest_parts, parts_at
from autoshard.collectives.steps import braced
from autoshard.errors import ShardingError
from autoshard.graph.program import OpClass
from autoshard.graph.rule import Dims, Rule
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.sharding import AxisRef, DimSharding, Mesh, Sharding, canonicalize

_MAX_PARTS = 6


@dataclass(frozen=True, slots=True, kw_only=True)
class OpTensor:
    """An operand or result of an op.

    Args:
        shape: int[rank].
        bits: Of one element.
        sharding: What it has (operands) or has to have afterwards (results); closed.
        key: Equal for operands that are one value.
        others: Operands: shardings it is there in as well. Results: shardings it has to be brought
            to as well.
    """

    shape: tuple[int, ...]
    bits: int
    sharding: Sharding
    key: Hashable = None
    others: tuple[Sharding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class OpWork:
    """What an op does when it is run whole.

    Args:
        flops: Floating-point operations.
        dtype: Element type as StableHLO prints it.
        op_class: As cost models name classes of work.
    """

    flops: float = 0.0
    dtype: str = "f32"
    op_class: str = "elementwise"


@dataclass(frozen=True, slots=True, kw_only=True)
class Agreement:
    """Shardings under which an op runs without any reshard inside.

    Args:
        operands: What each operand has to be brought to.
        results: What each result comes out as, already summed.
        reduced: Axes that the results have to be summed over, in mesh order.
        cost: Of moving operands, of the work, of sums and of moving results.
    """

    operands: tuple[Sharding, ...]
    results: tuple[Sharding, ...]
    reduced: tuple[AxisRef, ...]
    cost: float


def agree(
    rule: Rule | None,
    operands: Sequence[OpTensor],
    results: Sequence[OpTensor],
    mesh: Mesh,
    prices: ModulePrices,
    work: OpWork | None = None,
    known: Sequence[Sharding] | None = None,
) -> Agreement:
    """The cheapest shardings found under which an op's tensors agree.

    Where everything agrees already, that is the answer: nothing moves.

    Args:
        rule: How dimensions share factors; without one every tensor is whole on every device.
        operands: As they are.
        results: As they have to be afterwards.
        mesh: Of all shardings.
        prices: What moving and working costs.
        work: What the op does.
        known: Shardings of all operands, then results, under which they agree: the answer, unless
            a cheaper one is found.

    Raises:
        ShardingError: A result has to be left to sum over axes that no cut of the op makes so.
    """
    work = work or OpWork()
    tensors = (*operands, *results)
    written = [*(s for t in tensors for s in (t.sharding, *t.others)), *(known or ())]
    refs = [ref for sharding in written for ref in sharding.axis_refs()]
    try:
        parts = next(finest_parts(refs, mesh))
        if len(parts.sizes) > _MAX_PARTS:
            parts = parts_at(refs, mesh)
    except ShardingError:  # sub-axes of one axis that no splitting of it holds
        parts, rule = parts_at((), mesh), None
    if rule is None:
        rule = _whole(tensors, len(operands))
    search = _Search(rule, tuple(operands), tuple(results), mesh, parts, prices, work)
    return search.run(known)


def _whole(tensors: Sequence[OpTensor], num_operands: int) -> Rule:
    """A rule under which nothing can be cut."""
    sizes = [size for tensor in tensors for size in tensor.shape]
    numbers = iter(range(len(sizes)))
    dims = tuple(tuple((next(numbers),) for _ in tensor.shape) for tensor in tensors)
    return Rule(
        tuple(sizes),
        dims[:num_operands],
        dims[num_operands:],
        need_replication=frozenset(range(len(sizes))),
    )


Cuts = tuple[Parts, ...]  # per factor
_Rank = tuple[float, int, int]


@dataclass(slots=True)
class _Search:
    rule: Rule
    operands: tuple[OpTensor, ...]
    results: tuple[OpTensor, ...]
    mesh: Mesh
    parts: MeshParts
    prices: ModulePrices
    work: OpWork
    _known: dict[Cuts, tuple[_Rank, Agreement] | None] = field(default_factory=dict)

    def run(self, known: Sequence[Sharding] | None) -> Agreement:
        own = [tensor.sharding for tensor, _ in self._tensors()]
        if not any(tensor.others for tensor, _ in self._tensors()):
            as_they_are = self._agreement_of(own)
            if as_they_are is not None:
                return as_they_are[1]
        best = None if known is None else self._agreement_of(known)
        sources = [cuts for cuts in self._given() if cuts is not None]
        for start in self._starts(sources, known):
            found = self._climb(start, sources)
            if found is not None and (best is None or found[0] < best[0]):
                best = found
        if best is None:
            left = [axis for tensor in self.results for axis in tensor.sharding.unreduced]
            raise ShardingError(
                f"a result is to be left to sum over {braced(left)}, and no cut of a summed"
                " dimension makes it so",
                fix="sum it up before",
            )
        return best[1]

    # -- what is there --------------------------------------------------------------------------

    def _tensors(self) -> Iterator[tuple[OpTensor, Dims]]:
        yield from zip(self.operands, self.rule.operands, strict=True)
        yield from zip(self.results, self.rule.results, strict=True)

    def _given(self) -> list[dict[int, Parts] | None]:
        return [
            factor_cuts(dims, self._layout(sharding), self.rule.factor_sizes, self.parts)
            for tensor, dims in self._tensors()
            for sharding in (tensor.sharding, *tensor.others)
        ]

    def _layout(self, sharding: Sharding) -> Layout:
        try:
            return self.parts.to_layout(sharding)
        except ShardingError:
            return ((),) * sharding.rank

    def _agreement_of(self, shardings: Sequence[Sharding]) -> tuple[_Rank, Agreement] | None:
        """What some shardings of all tensors come to, if they agree."""
        cuts = self._common_cuts(shardings)
        if cuts is None or any(tensor.sharding.unreduced for tensor in self.operands):
            return None
        return self._priced(cuts, is_given=True)

    def _common_cuts(self, shardings: Sequence[Sharding]) -> Cuts | None:
        """How shardings of all tensors cut the factors; None where they do not agree."""
        cuts: dict[int, Parts] = {}
        sizes = self.rule.factor_sizes
        for sharding, (_, dims) in zip(shardings, self._tensors(), strict=True):
            layout = self._layout(sharding)
            own = factor_cuts(dims, layout, sizes, self.parts)
            if own is None or layout != layout_of(dims, own, sizes, self.parts):
                return None
            for factor in chain.from_iterable(dims):
                if cuts.setdefault(factor, own.get(factor, ())) != own.get(factor, ()):
                    return None
        used = list(chain.from_iterable(cuts.values()))
        if len(set(used)) < len(used) or any(cuts.get(f) for f in self.rule.need_replication):
            return None
        return tuple(cuts.get(factor, ()) for factor in range(len(sizes)))

    def _starts(
        self, sources: Sequence[dict[int, Parts]], known: Sequence[Sharding] | None
    ) -> Iterator[Cuts]:
        """What is known to agree; nothing cut; what one tensor has, filled up by the others."""
        if known is not None and (cuts := self._common_cuts(known)) is not None:
            yield cuts
        number = len(self.rule.factor_sizes)
        yield ((),) * number
        for first in sources:
            filled: list[Parts] = [()] * number
            for own in (first, *sources):
                for factor, cut in own.items():
                    if factor in self.rule.need_replication or filled[factor]:
                        continue
                    used = set(chain.from_iterable(filled))
                    filled[factor] = tuple(_before(cut, used))
            yield tuple(filled)

    # -- the climb ------------------------------------------------------------------------------

    def _climb(
        self, start: Cuts, sources: Sequence[dict[int, Parts]]
    ) -> tuple[_Rank, Agreement] | None:
        while self._priced(start) is None:
            shorter = self._shorter(start)
            if shorter is None:
                return None
            start = shorter
        at, best = start, self._priced(start)
        assert best is not None
        while True:
            next_at = at
            for other in self._neighbours(at, sources):
                found = self._priced(other)
                if found is not None and found[0] < best[0]:
                    next_at, best = other, found
            if next_at == at:
                return best
            at = next_at

    def _shorter(self, cuts: Cuts) -> Cuts | None:
        """Cuts without the last part of the last factor that is cut."""
        for factor in reversed(range(len(cuts))):
            if cuts[factor]:
                return _with(cuts, factor, cuts[factor][:-1])
        return None

    def _neighbours(self, cuts: Cuts, sources: Sequence[dict[int, Parts]]) -> Iterator[Cuts]:
        free_factors = [f for f in range(len(cuts)) if f not in self.rule.need_replication]
        for factor in free_factors:
            own = cuts[factor]
            for length in range(len(own)):
                shorter = _with(cuts, factor, own[:length])
                yield shorter
                for other in free_factors:  # what is taken off, put on another factor
                    if other != factor:
                        yield _with(shorter, other, (*cuts[other], *own[length:]))
            for source in sources:
                if wanted := source.get(factor, ()):
                    yield self._giving_way(cuts, factor, wanted)
            used = set(chain.from_iterable(cuts))
            for run in self._runs(sources):
                if not used.intersection(run):
                    yield _with(cuts, factor, (*own, *run))

    def _giving_way(self, cuts: Cuts, factor: int, wanted: Parts) -> Cuts:
        """A factor cut as wanted; other factors end before the parts it takes."""
        others = (
            wanted if place == factor else tuple(_before(own, set(wanted)))
            for place, own in enumerate(cuts)
        )
        return tuple(others)

    def _runs(self, sources: Sequence[dict[int, Parts]]) -> list[Parts]:
        """Stretches of parts worth adding at once: what cuts a factor somewhere, and single parts.

        A dimension's parts that stand in two factors of a tensor are single parts too.
        """
        found = dict.fromkeys(chain.from_iterable(source.values() for source in sources))
        for run in list(found):
            for length in range(1, len(run)):
                found[run[:length]] = None
                found[run[length:]] = None
        for part in range(len(self.parts.sizes)):
            found[(part,)] = None
        return list(found)

    # -- prices ---------------------------------------------------------------------------------

    def _priced(self, cuts: Cuts, *, is_given: bool = False) -> tuple[_Rank, Agreement] | None:
        if cuts not in self._known:
            self._known[cuts] = self._price(cuts, is_given=is_given)
        return self._known[cuts]

    def _price(self, cuts: Cuts, *, is_given: bool) -> tuple[_Rank, Agreement] | None:
        if not is_given and not self._divide(cuts):
            return None
        made = self._made(cuts)
        if made is None:
            return None
        summed = tuple(sorted(p for f in self.rule.reduction for p in cuts[f]))
        if not all(set(self._parts(t.sharding.unreduced)) <= set(summed) for t in self.results):
            return None
        operands, results = made[: len(self.operands)], made[len(self.operands) :]
        cost, moves = 0.0, 0
        seen = set()
        for tensor, sharding in zip(self.operands, operands, strict=True):
            if tensor.key is not None and (tensor.key, sharding) in seen:
                continue
            seen.add((tensor.key, sharding))
            moved, steps = min(
                self._moved(start, sharding, tensor) for start in (tensor.sharding, *tensor.others)
            )
            cost, moves = cost + moved, moves + steps
        for tensor, sharding in zip(self.results, results, strict=True):
            moved, steps = self._result_moved(tensor, sharding, summed)
            cost, moves = cost + moved, moves + steps
        cut = self.parts.num_shards(chain.from_iterable(cuts))
        cost += self._work(made, cut)
        agreement = Agreement(
            operands=operands, results=results, reduced=self._left_to_sum(summed), cost=cost
        )
        return (cost, -cut, moves), agreement

    def _made(self, cuts: Cuts) -> tuple[Sharding, ...] | None:
        """The shardings of all tensors under some cuts."""
        by_factor = dict(enumerate(cuts))
        found = []
        for tensor, dims in self._tensors():
            layout = layout_of(dims, by_factor, self.rule.factor_sizes, self.parts)
            if layout is None:
                return None
            found.append(self._sharding(layout, tensor.sharding))
        kept = [() for _ in self.operands] + [t.sharding.unreduced for t in self.results]
        return tuple(
            replace(sharding, unreduced=axes) for sharding, axes in zip(found, kept, strict=True)
        )

    def _result_moved(
        self, tensor: OpTensor, sharding: Sharding, summed: Parts
    ) -> tuple[float, int]:
        """Cost and number of steps of summing a result and bringing it where it is wanted."""
        partial = replace(sharding, unreduced=self.parts.refs(summed)) if summed else sharding
        goals = dict.fromkeys((tensor.sharding, *tensor.others))
        if len(goals) == 1:
            return self._moved(partial, tensor.sharding, tensor)
        done, steps = self._moved(partial, sharding, tensor)
        moves = [self._moved(sharding, goal, tensor) for goal in goals]
        return done + sum(cost for cost, _ in moves), steps + sum(n for _, n in moves)

    def _divide(self, cuts: Cuts) -> bool:
        used = list(chain.from_iterable(cuts))
        if self._cuts_space_and_kernel(cuts):
            return False
        return len(set(used)) == len(used) and all(
            size % self.parts.num_shards(own) == 0
            for size, own in zip(self.rule.factor_sizes, cuts, strict=True)
        )

    def _cuts_space_and_kernel(self, cuts: Cuts) -> bool:
        """True for a convolution cut along space and in features: wrong numbers.

        Source: `candidates.partitioner_limits`.
        """
        if self.work.op_class != OpClass.CONVOLUTION.value or len(self.rule.operands) < 2:
            return False
        of_kernel = chain.from_iterable(self.rule.operands[1])
        return any(cuts[f] for f in of_kernel) and any(cuts[f] for f in self.rule.permutation)

    def _parts(self, axes: Sequence[AxisRef]) -> Parts:
        return tuple(part for axis in axes for part in self.parts.parts_of(axis))

    def _left_to_sum(self, summed: Parts) -> tuple[AxisRef, ...]:
        kept = {p for t in self.results for p in self._parts(t.sharding.unreduced)}
        return self.parts.refs([part for part in summed if part not in kept])

    def _sharding(self, layout: Layout, like: Sharding) -> Sharding:
        return Sharding(
            tuple(DimSharding(self.parts.refs(dim)) for dim in layout),
            mesh_name=like.mesh_name,
            inlined_mesh=like.inlined_mesh,
        )

    def _moved(self, start: Sharding, end: Sharding, tensor: OpTensor) -> tuple[float, int]:
        cost, steps = priced_collectives(
            start,
            end,
            self.mesh,
            tensor.shape,
            bits=tensor.bits,
            prices=self.prices,
            is_rough=True,
        )
        return cost, len(steps)

    def _work(self, made: Sequence[Sharding], cut: int) -> float:
        num_bytes = sum(
            prod(tensor.shape) * tensor.bits / 8 / _num_pieces(sharding, self.mesh)
            for (tensor, _), sharding in zip(self._tensors(), made, strict=True)
        )
        return self.prices.work(
            self.work.flops / cut, num_bytes, self.work.dtype, self.work.op_class
        )


def closed_on(sharding: Sharding, mesh: Mesh) -> Sharding:
    """A sharding as `agree` takes it: closed, canonical, without replicated axes or priorities."""
    return canonicalize(
        Sharding(
            tuple(DimSharding(dim.axes) for dim in sharding.dims),
            unreduced=sharding.unreduced,
            mesh_name=sharding.mesh_name,
            inlined_mesh=sharding.inlined_mesh,
        ),
        mesh,
    )


def _num_pieces(sharding: Sharding, mesh: Mesh) -> int:
    return prod(axis.size_on(mesh) for dim in sharding.dims for axis in dim.axes)


def _before(cut: Parts, used: set[int]) -> Iterator[int]:
    for part in cut:
        if part in used:
            return
        yield part


def _with(cuts: Cuts, factor: int, own: Parts) -> Cuts:
    return (*cuts[:factor], own, *cuts[factor + 1 :])
