"""Collectives of a compiled program, and a plan's beside them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from autoshard.graph.collective import PredictedCollective

PLAIN = "at once"
ASYNC = "asynchronous"
FUSED = "in a fusion"
WINDOWED = "windowed einsum"
"""How a compiled collective runs: program waiting, beside other work, as part of a fusion, or as
one of the permutations in a loop that multiplies piece by piece what arrives."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledCollective:
    """One communication instruction of a compiled program.

    Args:
        kind: `all-gather`, `reduce-scatter`, `all-reduce`, `all-to-all`, `collective-permute`.
        axes: The mesh axes it works over (`x`, or `x:(1)2` for a part of one); None where no mesh
            was given or the groups follow no axes.
        group_size: Devices in one group; for a permutation all those along the axes it crosses or,
            without a mesh, those that its pairs connect.
        num_groups: Groups at work at the same time.
        bytes_per_device: The larger side: of an all-gather the result, of others the operand; all
            tensors of a combined collective together.
        trip_count: How often the loops around it run; 1 outside of loops.
        is_trip_count_known: False where some loop did not tell, and was taken to run once.
        count: How often it runs: `trip_count`, in a branch divided by the number of branches.
        op_name: JAX's name stack, "" where the compiler dropped it.
        source: `file.py:12`, or "".
        form: How it runs: one of the words above.
    """

    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    num_groups: int
    bytes_per_device: int
    trip_count: int
    is_trip_count_known: bool
    count: float
    op_name: str
    source: str
    form: str = PLAIN


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveRow:
    """Bytes per device moved by one kind of collective over one set of axes.

    Args:
        kind: As in `CompiledCollective`.
        axes: Sorted; None if the compiled program's axes are not known.
        group_size: Devices in one group.
        predicted_count: How often the plan has them run.
        compiled_count: How often they do; those the compiler joined run as one.
        predicted_bytes: In the plan, each collective as often as it runs.
        compiled_bytes: In the compiled program, likewise.
        predicted_ops: What the plan has them for.
        compiled_ops: Name stacks of those in the compiled program.
        forms: How the compiled ones run.
    """

    kind: str
    axes: tuple[str, ...] | None
    group_size: int
    predicted_count: float
    compiled_count: float
    predicted_bytes: float
    compiled_bytes: float
    predicted_ops: tuple[str, ...]
    compiled_ops: tuple[str, ...]
    forms: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveComparison:
    """A plan's collectives beside those of the compiled program.

    Args:
        rows: By kind, axes and group size, windowed einsums apart; the largest difference first.
        predicted_bytes: Over all rows.
        compiled_bytes: Over all rows.
    """

    rows: tuple[CollectiveRow, ...]
    predicted_bytes: float
    compiled_bytes: float

    @property
    def difference_percent(self) -> float:
        """How much more the plan lists than the program has; negative for less."""
        if self.compiled_bytes == 0:
            return 0.0 if self.predicted_bytes == 0 else float("inf")
        return 100.0 * (self.predicted_bytes - self.compiled_bytes) / self.compiled_bytes


@dataclass(slots=True)
class _Side:
    """What one side of a row adds up to."""

    count: float = 0.0
    num_bytes: float = 0.0
    ops: dict[str, None] | None = None
    forms: dict[str, None] | None = None

    def add(self, count: float, num_bytes: float, op: str, form: str) -> None:
        self.count += count
        self.num_bytes += count * num_bytes
        self.ops = {**(self.ops or {}), op: None}
        self.forms = {**(self.forms or {}), form: None}


def compare_collectives(
    predicted: Iterable[PredictedCollective],
    compiled: Iterable[CompiledCollective],
) -> CollectiveComparison:
    """Put a plan's collectives beside those of the compiled program.

    Args:
        predicted: Of the plan.
        compiled: Of the program. Without axes, kinds and group sizes are compared.
    """
    compiled = tuple(compiled)
    by_axes = all(collective.axes is not None for collective in compiled)
    rows: dict[tuple[str, tuple[str, ...] | None, int, bool], tuple[_Side, _Side]] = {}

    def row(
        kind: str, axes: tuple[str, ...] | None, size: int, is_windowed: bool = False
    ) -> tuple[_Side, _Side]:
        names = tuple(sorted(axes)) if by_axes and axes is not None else None
        return rows.setdefault((kind, names, size, is_windowed), (_Side(), _Side()))

    for plan in predicted:
        side, _ = row(plan.kind, plan.axes, plan.group_size)
        side.add(plan.count, plan.bytes_per_device, plan.op, "")
    for real in compiled:
        row(real.kind, real.axes, real.group_size, real.form == WINDOWED)[1].add(
            real.count, real.bytes_per_device, real.op_name, real.form
        )
    made = [
        CollectiveRow(
            kind=kind,
            axes=axes,
            group_size=size,
            predicted_count=planned.count,
            compiled_count=done.count,
            predicted_bytes=planned.num_bytes,
            compiled_bytes=done.num_bytes,
            predicted_ops=tuple(planned.ops or ()),
            compiled_ops=tuple(done.ops or ()),
            forms=tuple(done.forms or ()),
        )
        for (kind, axes, size, _), (planned, done) in rows.items()
    ]
    made.sort(key=lambda r: (-abs(r.predicted_bytes - r.compiled_bytes), r.kind, r.axes or ()))
    return CollectiveComparison(
        rows=tuple(made),
        predicted_bytes=sum(row.predicted_bytes for row in made),
        compiled_bytes=sum(row.compiled_bytes for row in made),
    )
