"""Ops and matrix products of a plan as rows, those alike as one."""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator
from dataclasses import dataclass

from autoshard.plans.plan import PlannedOp
from autoshard.plans.planned_product import PlannedProduct
from autoshard.report.alike import gather_places
from autoshard.sharding.spec_text import format_spec


@dataclass(frozen=True, slots=True, kw_only=True)
class OpRow:
    """Ops of one name, source line, type and sharding: a layer's op, and that of all its likes.

    Args:
        name: `dot_general`.
        source: `file.py:12 (function)`, or "".
        result: `f32[8, 16]`.
        spec: Sharding of the result.
        count: Runs in one step.
        compute_seconds: Of all runs on one device.
        communication_seconds: Likewise.
    """

    name: str
    source: str
    result: str
    spec: str
    count: float
    compute_seconds: float
    communication_seconds: float

    @property
    def seconds(self) -> float:
        return self.compute_seconds + self.communication_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ProductRow:
    """Heavy matmuls alike in all but their place: how they run, and why not otherwise.

    Args:
        name: `dot_general`.
        source: `file.py:12 (function)`, or "".
        result: `f32[8, 16]`.
        count: How many there are.
        algorithm: `all-gather-matmul`; "" where it runs at once.
        rings: Mesh axes round which pieces go.
        both_ways: Whether halves of them go either way.
        num_steps: In how many steps it runs; 1 where it runs at once.
        specs: Shardings of the operands where they live; none where it runs at once.
        seconds: Of all runs of all of them.
        extra_bytes: What one holds beside operands and result.
        other_seconds: The same for the other way; None where there is none.
        other_bytes: Likewise.
        other_fits: Whether there was room for it.
    """

    name: str
    source: str
    result: str
    count: int
    algorithm: str
    rings: tuple[str, ...]
    both_ways: bool
    num_steps: int
    specs: tuple[str, ...]
    seconds: float
    extra_bytes: int
    other_seconds: float | None
    other_bytes: int | None
    other_fits: bool

    @property
    def way(self) -> tuple[str, ...]:
        """`at once`; or the algorithm, where pieces go round, and `in 16 steps`."""
        if not self.algorithm:
            return ("at once",)
        ways = " both ways" if self.both_ways else ""
        place = (f"round {' and '.join(self.rings)}{ways}",) if self.rings else ()
        return (self.algorithm, *place, f"in {self.num_steps:,} steps")


def op_rows(ops: Iterable[PlannedOp]) -> list[OpRow]:
    """All ops, those alike but for the numbers of their modules as one, the longest first."""
    ops = tuple(ops)
    groups = {
        (name, source, result, spec): [ops[position] for position in positions]
        for source, (name, result, spec), positions in gather_places(
            (op.source, (op.name, op.result, format_spec(op.sharding))) for op in ops
        )
    }
    rows = [
        OpRow(
            name=name,
            source=source,
            result=result,
            spec=spec,
            count=sum(op.repeat for op in members),
            compute_seconds=sum(op.compute_seconds for op in members),
            communication_seconds=sum(op.communication_seconds for op in members),
        )
        for (name, source, result, spec), members in groups.items()
    ]
    return sorted(rows, key=lambda row: -row.seconds)


def product_rows(products: Iterable[PlannedProduct]) -> Iterator[ProductRow]:
    """Those that run in steps, and those that gather at once and could run in steps."""
    shown = [p for p in products if p.schedule is not None or p.other_seconds is not None]
    for source, _, positions in gather_places((p.source, _likeness(p)) for p in shown):
        members = [shown[position] for position in positions]
        first, schedule = members[0], members[0].schedule
        others = [m.other_seconds for m in members if m.other_seconds is not None]
        yield ProductRow(
            name=first.name,
            source=source,
            result=first.result,
            count=len(members),
            algorithm="" if schedule is None else schedule.algorithm,
            rings=() if schedule is None else schedule.rings,
            both_ways=schedule is not None and schedule.both_ways,
            num_steps=1 if schedule is None else schedule.num_steps,
            specs=() if schedule is None else tuple(map(format_spec, schedule.homes[1:])),
            seconds=sum(member.seconds for member in members),
            extra_bytes=first.extra_bytes,
            other_seconds=sum(others) if others else None,
            other_bytes=first.other_bytes,
            other_fits=first.other_fits,
        )


def _likeness(product: PlannedProduct) -> Hashable:
    """What products in one row share, beside the place of their source."""
    way = (product.schedule, product.extra_bytes, product.other_fits)
    return (product.name, product.result, *way)
