"""Why a tensor is sharded as it is, as plain data: what it costs to have it otherwise."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.explain.why_text import format_explanation
from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class AlikeTensor:
    """Another tensor that must be sharded the same, and why."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Read:
    """An op that reads the tensor.

    Args:
        op: `dot_general at train.py:12 (loss)`.
        wanted: The sharding it reads it in.
        steps: What brings it there, in order: `all-gather over data`; none where it lies so, or
            where each device cuts its piece further.
        seconds: What that takes, all runs.
    """

    op: str
    wanted: Sharding
    steps: tuple[str, ...]
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class CollectiveChange:
    """Bytes per device through one kind of collective, all runs, in the plan and otherwise."""

    kind: str
    axes: tuple[str, ...]
    before_bytes: float
    after_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class OpChange:
    """Ops of one line whose time differs between the plan and an alternative.

    Args:
        op: `dot_general at train.py:12 (loss)`.
        before_seconds: In the plan, all runs.
        after_seconds: In the alternative.
        collectives: Those that differ.
    """

    op: str
    before_seconds: float
    after_seconds: float
    collectives: tuple[CollectiveChange, ...]

    @property
    def extra_seconds(self) -> float:
        return self.after_seconds - self.before_seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class Alternative:
    """The best plan found in which the tensor has another sharding; all else is free to follow.

    Args:
        sharding: The one tried.
        status: How the solver ended: `optimal`, `within gap`, `feasible`, `infeasible` (no plan
            with it fits the memory budget), `no solution` (none was found in time).
        extra_seconds: What a step takes longer; None where there is no such plan.
        least_extra_seconds: Proven: no plan with this sharding is less slow than so.
        peak_bytes: Its memory peak; of the leanest plan found, where none fits.
        changes: The lines that cost more or less, the largest difference first.
    """

    sharding: Sharding
    status: str
    extra_seconds: float | None
    least_extra_seconds: float
    peak_bytes: int
    changes: tuple[OpChange, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Estimate:
    """A sharding that was not planned with, and what it costs where only its neighbours follow."""

    sharding: Sharding
    extra_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refusal:
    """Mesh axes that cannot cut a dimension, and what forbids it.

    Args:
        dimension: Of the tensor.
        axes: The mesh axes.
        reason: `30 is no multiple of 4`.
    """

    dimension: int
    axes: tuple[str, ...]
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Explanation:
    """Why a tensor is sharded as it is.

    Args:
        name: What the user calls it: `params['w1']`, `dot_general at train.py:12 (loss)`.
        path: Its path in the program.
        type_text: `f32[512, 2048]`.
        chosen: Its sharding in the plan.
        local_bytes: Of one device's piece.
        seconds: Predicted step time of the plan.
        peak_bytes: Its memory peak.
        memory_budget: Bytes per device allowed, or None.
        gap: How far the plan is proven from the best.
        num_shardings: How many shardings it could have had, the chosen one included, and those
            that differ in the order of axes alone counted once; 0 where there is nothing to choose,
            or where only the plan is known and not the problem it solves.
        asked: What the user asked of it.
        alike: Tensors that must be sharded the same.
        reads: What reads it.
        alternatives: Other shardings, planned with, the cheapest first.
        estimates: The rest of them, the cheapest first.
        refusals: What it cannot have.
        notes: What else there is to know.
    """

    name: str
    path: str
    type_text: str
    chosen: Sharding
    local_bytes: int
    seconds: float
    peak_bytes: int
    memory_budget: int | None
    gap: float
    num_shardings: int
    asked: tuple[str, ...]
    alike: tuple[AlikeTensor, ...]
    reads: tuple[Read, ...]
    alternatives: tuple[Alternative, ...]
    estimates: tuple[Estimate, ...]
    refusals: tuple[Refusal, ...]
    notes: tuple[str, ...] = ()

    @property
    def best_alternative(self) -> Alternative | None:
        """The cheapest other sharding with which a plan was found."""
        found = [other for other in self.alternatives if other.extra_seconds is not None]
        return found[0] if found else None

    def __str__(self) -> str:
        return format_explanation(self)
