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
        residuals: Names of what is kept for backward passes, in the program over microbatches; None
            as it is written.
        updates: Those of the program with these residuals whose states lie in host memory.
    """

    microbatches: Microbatches | None = None
    residuals: tuple[str, ...] | None = None
    updates: tuple[StreamedUpdate, ...] = ()

    def of(self, closed: ClosedJaxpr) -> ClosedJaxpr:
        """The rewritten program.

        Raises:
            InputError: Examples of the batch do not stay apart.
            PlanError: The program has other residuals.
        """
        kept = keeping_residuals(accumulated(closed, self.microbatches), self.residuals)
        return with_streamed_states(kept, self.updates)


AS_WRITTEN = Rewriting()
