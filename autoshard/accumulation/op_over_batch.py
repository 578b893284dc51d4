"""An op some of whose operands depend on examples, and the op over one microbatch it becomes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from jax.extend.core import JaxprEqn

from autoshard.accumulation.held import Batch, Held, MixedExamplesError, Rows, Shape


class LocalOp(NamedTuple):
    """An op over one microbatch.

    Args:
        operands: How it reads each operand; `Rows` of one that examples share is a piece of it.
        results: How each result depends on examples.
        params: That differ from those of the op over the whole batch.
    """

    operands: tuple[Held, ...]
    results: tuple[Held, ...]
    params: Mapping[str, Any] = {}


@dataclass(frozen=True, slots=True)
class OpOverBatch:
    """An op some of whose operands depend on examples.

    Args:
        eqn: The op.
        held: By operand.
        batch: The batch.
    """

    eqn: JaxprEqn
    held: tuple[Held, ...]
    batch: Batch

    @property
    def params(self) -> Mapping[str, Any]:
        params: Mapping[str, Any] = self.eqn.params
        return params

    def shape(self, operand: int) -> Shape:
        return tuple(getattr(self.eqn.invars[operand].aval, "shape", ()))

    @property
    def result_shape(self) -> Shape:
        return tuple(self.eqn.outvars[0].aval.shape)

    def mixed(self, why: str = "takes examples of the batch together") -> MixedExamplesError:
        return MixedExamplesError(self.eqn, why)

    def rows(self, operand: int) -> Rows | None:
        found = self.held[operand]
        return found if isinstance(found, Rows) else None

    def only_rows(self, allowed: Sequence[int]) -> None:
        """Refuse examples in other operands than these."""
        if any(self.rows(i) and i not in allowed for i in range(len(self.held))):
            raise self.mixed()

    def one(self, operand: int, result: Rows, params: Mapping[str, Any] | None = None) -> LocalOp:
        """An op of which one operand carries the examples."""
        self.only_rows([operand])
        return LocalOp(self.held, (result,) * len(self.eqn.outvars), params or {})
