"""Changes to a traced program, made before it is planned and each time it runs."""

from __future__ import annotations

from dataclasses import dataclass

from jax.extend.core import ClosedJaxpr

from autoshard.accumulation.accumulated import accumulated
from autoshard.accumulation.choice import Microbatches
from autoshard.offload.choice import StreamedUpdate
from autoshard.offload.streamed import with_streamed_states
from autoshard.remat.joint_program import keeping_residuals


@dataclass(frozen=True, slots=True)
class Rewriting:
    """The changes to a program that a plan decides; those of a plan are replayed by what runs it.

    Args:
        microbatches: That it runs over; None for the batch as a whole.
        updates: Those in it whose states lie in host memory between steps.
        residuals: Names of what is kept for backward passes, in the program with these; None as it
            is written.
    """

    microbatches: Microbatches | None = None
    updates: tuple[StreamedUpdate, ...] = ()
    residuals: tuple[str, ...] | None = None

    def of(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The rewritten program.

        Raises:
            InputError: Examples of the batch do not stay apart.
            PlanError: The program has other residuals.
        """
        over = accumulated(closed, self.microbatches)
        return keeping_residuals(with_streamed_states(over, self.updates), self.residuals)


AS_WRITTEN = Rewriting()
