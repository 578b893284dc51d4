"""Where a plan differs from what Shardy's propagation alone makes of the same inputs."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Difference:
    """A value that propagation alone leaves elsewhere.

    Args:
        path: The value.
        source: `file.py:12 (function)` of the line that makes it, or "".
        planned: Its sharding in the plan.
        propagated: Its sharding without the plan's constraints.
    """

    path: str
    source: str
    planned: Sharding
    propagated: Sharding


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """A constraint of the plan, and all that is otherwise because of it.

    Args:
        path: Where the constraint is: a value (`7.0`) or a single read of one (`38<1`).
        source: The line of it, or "".
        wanted: What it says.
        differences: The values that follow it and lie elsewhere without it, in program order.
        saved_seconds: What the step would take longer if they all lay where propagation alone
            leaves them; None where nobody can tell.
    """

    path: str
    source: str
    wanted: Sharding
    differences: tuple[Difference, ...]
    saved_seconds: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PropagationComparison:
    """A plan beside propagation alone.

    Args:
        inputs: `plan`: propagation starts from the plan's arguments and results; `program`: from
            what the program and its caller say alone.
        decisions: The plan's constraints that change something, the one that saves most first.
        unexplained: Differences that follow no single constraint: from several at once, or from
            arguments and results where those are not given to propagation.
        num_values: Values compared.
        plan_seconds: Predicted step time of the plan.
        propagated_seconds: Predicted step time where every value lies where propagation leaves it;
            None where nobody can tell.
    """

    inputs: str
    decisions: tuple[Decision, ...]
    unexplained: tuple[Difference, ...]
    num_values: int
    plan_seconds: float
    propagated_seconds: float | None

    @property
    def num_differences(self) -> int:
        """Values that lie elsewhere, each counted once."""
        paths = {d.path for decision in self.decisions for d in decision.differences}
        return len(paths | {d.path for d in self.unexplained})

    @property
    def saved_seconds(self) -> float | None:
        """What the plan saves over propagation alone; None where nobody can tell."""
        if self.propagated_seconds is None:
            return None
        return self.propagated_seconds - self.plan_seconds
