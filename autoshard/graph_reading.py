"""How a traced program becomes a graph: what callers say of its tensors, loops and calls."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from autoshard.constraints import ResidualTerm, Term
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.rewritable_equations import MATMULS, rewritable_equations
from autoshard.frontend.trace import Traced
from autoshard.frontend.user_constraints import read_constraints
from autoshard.graph.custom_cost import CustomCost
from autoshard.planning.traced_program import TracedProgram, read_traced
from autoshard.setting import Setting
from autoshard.sharding import Mesh


@dataclass(frozen=True, slots=True, eq=False)
class GraphReading:
    """What callers of `optimize` say of a program beside its shardings at the boundary.

    Args:
        constraints: As for `optimize`, like all that follow.
        trip_counts: By line.
        default_trip_count: Of loops that nobody tells.
        may_stream: Matrix products may run in steps.
        custom_costs: By target or line.
    """

    constraints: Any
    trip_counts: Mapping[str, float] | None
    default_trip_count: float
    may_stream: bool
    custom_costs: Mapping[str, CustomCost] | None

    def of(self, traced: Traced, mesh: Mesh, setting: Setting) -> TracedProgram:
        """Builds the graph of a traced program.

        Raises:
            ExportError, ConstraintError, InputError: As `read_traced`.
        """
        steps = rewritable_equations(traced.jaxpr.jaxpr, MATMULS) if self.may_stream else ()
        with setting.stages.time("graph"):
            return read_traced(
                traced,
                mesh,
                self._terms(mesh, setting),
                self.trip_counts,
                self.default_trip_count,
                frozenset(steps),
                self.custom_costs,
            )

    def asked(self, mesh: Mesh, setting: Setting) -> tuple[Any, ...]:
        """All that is said here, as plain values."""
        said = (self.trip_counts, self.default_trip_count, self.may_stream, self.custom_costs)
        return (*self._terms(mesh, setting), *said)

    def residual_terms(self, mesh: Mesh, setting: Setting) -> tuple[ResidualTerm, ...]:
        """The terms of the user on residuals of backward passes."""
        terms = self._terms(mesh, setting)
        return tuple(term for term in terms if isinstance(term, ResidualTerm))

    def _terms(self, mesh: Mesh, setting: Setting) -> tuple[Term, ...]:
        concrete = setting.choice.readings[mesh][2]
        return tuple(read_constraints(self.constraints, DeviceOrder.of(mesh, concrete)))
