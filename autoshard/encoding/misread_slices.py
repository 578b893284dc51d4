"""Slices that XLA misreads before a scatter of one row, as forbidden edges of the problem."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from autoshard.candidates.candidate import Candidate
from autoshard.candidates.partitioner_limits import misread, misreads_slices
from autoshard.encoding.tables import Tables
from autoshard.errors import ConstraintError
from autoshard.graph.program import Op, OpKind
from autoshard.graph.rule import Dims
from autoshard.identity_cache import IdentityCache
from autoshard.layouts import Layout
from solvers import FORBIDDEN, Edge

IntArray = npt.NDArray[np.int64]

_MOVED_ACROSS = frozenset({"broadcast_in_dim", "reshape", "transpose"})
"""Ops that XLA's simplifier moves a slice across, where they only permute or add dimensions."""


@dataclass(frozen=True, slots=True)
class _Upstream:
    """A value that a scatter changes a permutation of.

    Args:
        dims: Of each dimension of the operand of the scatter, the one of the value; None for one
            of size 1 that the value is without.
    """

    value: int
    dims: tuple[int | None, ...]


@dataclass(frozen=True, slots=True)
class MisreadSlices:
    """Builds the edges that keep misread slices off the way to each scatter.

    A slice may stand right before the scatter, or before constraints, transposes and loops of one
    iteration that the compiler removes or moves it across.
    """

    tables: Tables
    candidates: Mapping[int, tuple[Candidate, ...]]
    node_by_op: Mapping[int, int]
    _known: IdentityCache[IntArray | None] = field(default_factory=IdentityCache)

    def make(self, nodes: Sequence[Op]) -> Iterator[Edge]:
        """An edge from every op that lays out what a scatter changes, where some way is misread.

        Raises:
            ConstraintError: All ways that the user's shardings leave are misread.
        """
        graph = self.tables.graph
        for op in nodes:
            if not misreads_slices(op):
                continue
            for upstream in self._upstream(op):
                maker = graph.maker(upstream.value)
                if maker.index not in self.node_by_op:
                    continue
                costs = self._costs(op, maker, upstream)
                if costs is None:
                    continue
                if (costs == FORBIDDEN).all():
                    raise _all_misread(op, self._name_of(upstream.value))
                yield Edge(self.node_by_op[maker.index], self.node_by_op[op.index], costs)

    def _upstream(self, scatter: Op) -> Iterator[_Upstream]:
        """The operand that a scatter changes, and what it is a permutation of."""
        graph, value = self.tables.graph, scatter.operands[0]
        dims: tuple[int | None, ...] = tuple(range(len(graph.values[value].shape)))
        while True:
            yield _Upstream(value, dims)
            maker = graph.maker(value)
            source = _source_dims(maker, scatter)
            if source is None:
                return
            value = maker.operands[0]
            dims = tuple(None if dim is None else source[dim] for dim in dims)

    def _costs(self, op: Op, maker: Op, upstream: _Upstream) -> IntArray | None:
        """FORBIDDEN for the choices of both ends between which a slice is misread."""
        made, taken = self.candidates[maker.index], self.candidates[op.index]
        table = self.tables.of(op.operands[0])
        place = maker.results.index(upstream.value)

        def forbidden() -> IntArray | None:
            starts = [
                tuple(() if dim is None else one.results[place][dim] for dim in upstream.dims)
                for one in made
            ]
            return self._forbidden(op, starts)

        return self._known.get(forbidden, made, taken, table, key=(op.rule, place, upstream.dims))

    def _forbidden(self, op: Op, starts: Sequence[Layout]) -> IntArray | None:
        assert op.rule is not None
        table, parts = self.tables.of(op.operands[0]), self.tables.resharder.parts
        cut_from, taken = table.cut_from, self.candidates[op.index]
        wrong = np.zeros((len(starts), len(taken)), dtype=np.bool_)
        for column, one in enumerate(taken):
            end = table.index[one.operands[0]]
            is_misread: dict[Layout, bool] = {}
            for row, start in enumerate(starts):
                known = table.index.get(start)
                last = start if known is None else table.layouts[cut_from[known, end]]
                if last not in is_misread:
                    is_misread[last] = misread(parts, op.rule, one, last)
                wrong[row, column] = is_misread[last]
        return np.where(wrong, FORBIDDEN, 0) if wrong.any() else None

    def _name_of(self, value: int) -> str:
        found = self.tables.graph.values[value]
        return f"{found.name or self.tables.graph.maker(value).name}: {found.type_text}"


def _source_dims(op: Op, scatter: Op) -> tuple[int | None, ...] | None:
    """By dimension of an op's result, that of its first operand; None where slices stay behind."""
    if op.rule is None or not op.operands:
        return None
    is_run_once = op.kind is OpKind.JOIN and op.name == "while" and scatter.repeat <= op.repeat
    if op.kind is OpKind.CONSTRAINT or is_run_once or op.name in _MOVED_ACROSS:
        return _permuted(op.rule.operands[0], op.rule.results[0], op.rule.factor_sizes)
    return None


def _permuted(
    before: Dims, after: Dims, factor_sizes: Sequence[int]
) -> tuple[int | None, ...] | None:
    """By dimension of a result, that of the operand; None where they are no permutation."""
    wide_before, wide_after = (
        [tuple(f for f in factors if factor_sizes[f] > 1) for factors in dims]
        for dims in (before, after)
    )
    if sorted(filter(None, wide_before)) != sorted(filter(None, wide_after)):
        return None
    return tuple(wide_before.index(factors) if factors else None for factors in wide_after)


def _all_misread(op: Op, name: str) -> ConstraintError:
    return ConstraintError(
        f"the shardings asked for slice {name} before one of its rows is written, and XLA then"
        " writes the row into every slice",
        where=op.source or op.name,
        fix="shard the argument or the constraint before it like the result, or leave one of them"
        " open",
    )
