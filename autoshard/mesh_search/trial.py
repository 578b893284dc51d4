"""A mesh under search: what is known of it so far, and what is said of it in the end."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.errors import AutoshardError
from autoshard.graph.program import Graph
from autoshard.mesh_search.shapes import axes_text
from autoshard.planning.solution import Solution
from autoshard.plans.searched_meshes import TriedMesh
from autoshard.report.quantities import format_bytes, format_percent, format_seconds
from autoshard.sharding import Mesh
from autoshard.wishes.wishes import Wishes
from solvers import Status

SETTLED = (Status.OPTIMAL, Status.WITHIN_GAP, Status.INFEASIBLE)


class Problem(Protocol):
    """A program on one mesh, ready to be planned; `streamable` as for `plan_graph`."""

    @property
    def graph(self) -> Graph: ...

    @property
    def wishes(self) -> Wishes: ...

    @property
    def streamable(self) -> frozenset[str]: ...


P = TypeVar("P", bound=Problem)


@dataclass(slots=True, eq=False)
class MeshTrial(Generic[P]):
    """A mesh and what is known of it; costs and bounds in picoseconds."""

    mesh: Mesh
    place: int
    problem_on: Callable[[Mesh], P]
    problem: P | None = None
    bound: int = 0
    cost: int | None = None
    peak: int | None = None
    solution: Solution | None = None
    status: Status | None = None
    num_tries: int = 0
    error: AutoshardError | None = None
    is_of_use: bool = True

    @property
    def is_out(self) -> bool:
        """Whether there is no planning on it."""
        return self.error is not None or not self.is_of_use

    @property
    def is_settled(self) -> bool:
        return self.is_out or self.status in SETTLED or self.num_tries > 1

    @property
    def rank(self) -> tuple[int, int, int]:
        """Of plans: cheapest first, then fewest axes."""
        assert self.cost is not None
        return self.cost, len(self.mesh.axes), self.place

    @property
    def promise(self) -> tuple[int, int, int]:
        return self.bound, len(self.mesh.axes), self.place

    @property
    def can_have_plans(self) -> bool:
        return not self.is_out and self.status is not Status.INFEASIBLE

    def is_beaten_by(self, best: MeshTrial[P], gap: float) -> bool:
        """Whether no plan on this mesh can be better than another's, by more than a gap."""
        return self is not best and self.bound >= (best.cost or 0) * (1 - gap)


def tell_trials(
    trials: Sequence[MeshTrial[P]], chosen: MeshTrial[P], gap: float, memory_limit: int | None
) -> list[TriedMesh]:
    """What became of every mesh: the chosen one, those with a plan from the cheapest on, the rest.

    Args:
        trials: All of them.
        chosen: The plan's.
        gap: How much better, as a share of its cost, a plan must be to be looked for.
        memory_limit: Bytes one device may hold, or None.
    """
    in_order = sorted(
        trials,
        key=lambda one: (one is not chosen, one.cost is None, one.cost or 0, one.is_out, one.place),
    )
    told = []
    for one in in_order:
        outcome, reason = _outcome(one, chosen, gap, memory_limit or 0)
        is_bounded = one.bound > 0 and one.can_have_plans
        told.append(
            TriedMesh(
                mesh=Mesh(one.mesh.axes),
                outcome=outcome,
                reason=reason,
                seconds=None if one.cost is None else one.cost / PICOSECONDS,
                bound_seconds=one.bound / PICOSECONDS if is_bounded else None,
                peak_bytes=one.peak,
            )
        )
    return told


def _outcome(
    one: MeshTrial[P], chosen: MeshTrial[P], gap: float, memory_limit: int
) -> tuple[str, str]:
    if one is chosen:
        return "chosen", ""
    if not one.is_of_use:
        return "impossible", "no dimension of the program can be sharded along any of its axes"
    if one.error is not None:
        return "impossible", one.error.what
    if one.status is Status.INFEASIBLE:
        need, have = format_bytes(one.peak or 0), format_bytes(memory_limit)
        return "memory", f"needs {need} per device of {have} allowed"
    if one.cost is not None and one.status in SETTLED:
        return "no better", _compared(one, chosen)
    if chosen.cost is not None and one.is_beaten_by(chosen, gap):
        return "bound", _beaten(one, chosen, gap)
    if one.cost is not None:
        return "no time", f"{_compared(one, chosen)}, when time was up"
    return "no time", "time was up before a plan was found on it"


def _beaten(one: MeshTrial[P], chosen: MeshTrial[P], gap: float) -> str:
    best = chosen.cost or 0
    bound, cost = (format_seconds(time / PICOSECONDS) for time in (one.bound, best))
    near = f", which is within {format_percent(gap)}" if one.bound < best else ""
    return f"no plan on it takes less than {bound}, and {axes_text(chosen.mesh)} takes {cost}{near}"


def _compared(one: MeshTrial[P], chosen: MeshTrial[P]) -> str:
    if one.cost == chosen.cost:
        return f"takes as long as {axes_text(chosen.mesh)}"
    costs = [format_seconds((found.cost or 0) / PICOSECONDS) for found in (one, chosen)]
    return f"takes {costs[0]}, {axes_text(chosen.mesh)} takes {costs[1]}"
