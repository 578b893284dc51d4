"""What a collective costs: bytes a device receives, or seconds on a machine."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol

import numpy as np

from autoshard.collectives.splitting import parts_at
from autoshard.collectives.steps import Collective, CollectiveKind
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.costing.model_dtype import model_dtype
from autoshard.layouts import MeshParts, Parts
from autoshard.reshard import StepKind
from autoshard.sharding import Mesh, Sharding, num_shards

if TYPE_CHECKING:
    from cost_models import CostModel, Hardware


class CollectivePrices(Protocol):
    """Prices of collectives; all in one unit, so that they can be added."""

    def __hash__(self) -> int: ...

    def cost(
        self, kind: CollectiveKind, parts: MeshParts, chosen: Parts, before: float, after: float
    ) -> float:
        """Cost of one collective.

        Args:
            kind: Which one.
            parts: The mesh in parts.
            chosen: The parts that devices of one group differ in; of a permutation those along
                which pieces move.
            before: Bytes of the operand on one device.
            after: Bytes of the result on one device.
        """
        ...


class ModulePrices(CollectivePrices, Protocol):
    """Prices of collectives and of work, in one unit."""

    def work(self, flops: float, num_bytes: float, dtype: str, op_class: str) -> float:
        """Cost of one op on one device.

        Args:
            flops: Floating-point operations of this device.
            num_bytes: Bytes it reads and writes.
            dtype: Element type as StableHLO prints it.
            op_class: As cost models name classes of work.
        """
        ...


class ReceivedBytes:
    """Bytes one device receives from others, by the best algorithm for each collective.

    An all-gather brings what the device does not have yet; an all-to-all all but its own share; a
    permutation everything; a reduce-scatter all but one share; an all-reduce that twice. A slice
    moves nothing, nor does work.
    """

    def work(self, flops: float, num_bytes: float, dtype: str, op_class: str) -> float:  # noqa: ARG002
        return 0.0

    def cost(
        self, kind: CollectiveKind, parts: MeshParts, chosen: Parts, before: float, after: float
    ) -> float:
        others = 1.0 - 1.0 / parts.num_shards(chosen)
        if kind is CollectiveKind.ALL_SLICE:
            return 0.0
        if kind is CollectiveKind.ALL_GATHER:
            return after - before
        if kind is CollectiveKind.PERMUTE:
            return before
        if kind is CollectiveKind.ALL_REDUCE:
            return 2.0 * before * others
        return before * others


@dataclass(slots=True, eq=False)
class HardwarePrices:
    """Seconds on a machine.

    Args:
        model: Prices collectives over axes of a mesh.
    """

    model: CostModel
    _costing: dict[MeshParts, Costing] = field(default_factory=dict)

    @staticmethod
    def of(hardware: Hardware, mesh: Mesh) -> HardwarePrices:
        """Prices of the standard cost model of a machine under a mesh."""
        return HardwarePrices(cost_model_for(hardware, MeshParts.of(mesh)))

    def cost(
        self, kind: CollectiveKind, parts: MeshParts, chosen: Parts, before: float, after: float
    ) -> float:
        costing = self._costing.get(parts)
        if costing is None:
            costing = self._costing[parts] = Costing(self.model, parts)
        axes = tuple(sorted(chosen))
        if not axes:
            return 0.0
        if kind is CollectiveKind.ALL_REDUCE:
            return float(self.model.all_reduce_seconds(before, costing.axis_parts(axes)))
        if kind is CollectiveKind.REDUCE_SCATTER:
            return float(self.model.reduce_scatter_seconds(before, costing.axis_parts(axes)))
        larger = np.array([max(before, after) if kind is not CollectiveKind.ALL_SLICE else after])
        return float(costing.step_seconds(_STEP_BY_KIND[kind], axes, larger)[0])

    def work(self, flops: float, num_bytes: float, dtype: str, op_class: str) -> float:
        return float(self.model.compute_seconds(flops, num_bytes, model_dtype(dtype), op_class))


_STEP_BY_KIND = {
    CollectiveKind.ALL_SLICE: StepKind.SLICE,
    CollectiveKind.ALL_GATHER: StepKind.ALL_GATHER,
    CollectiveKind.ALL_TO_ALL: StepKind.ALL_TO_ALL,
    CollectiveKind.PERMUTE: StepKind.PERMUTE,
}


def collective_cost(
    step: Collective, mesh: Mesh, shape: Sequence[int], bits: int, prices: CollectivePrices
) -> float:
    """Cost of one collective of a tensor.

    Args:
        step: The collective.
        mesh: Of its shardings.
        shape: int[rank], the whole tensor.
        bits: Of one element.
        prices: In which unit.
    """
    parts = parts_at(() if step.kind is CollectiveKind.PERMUTE else step.axes, mesh)
    chosen = tuple(part for axis in step.axes for part in parts.parts_of(axis))
    if step.kind is CollectiveKind.PERMUTE:
        chosen = tuple(
            part
            for part, axis in enumerate(parts.axes)
            if _uses_of(axis, step.before) != _uses_of(axis, step.after)
        )
    before, after = (
        local_bytes(sharding, mesh, shape, bits) for sharding in (step.before, step.after)
    )
    return prices.cost(step.kind, parts, chosen, before, after)


def local_bytes(sharding: Sharding, mesh: Mesh, shape: Sequence[int], bits: int) -> float:
    """Bytes of one device's piece; a dimension that does not divide is padded."""
    pieces = [num_shards(dim, mesh) for dim in sharding.dims]
    return math.prod(-(-size // n) for size, n in zip(shape, pieces, strict=True)) * bits / 8


def _uses_of(axis: str, sharding: Sharding) -> list[tuple[int, int, str]]:
    """Where an axis and its parts stand in a sharding."""
    return [
        (number, place, str(ref))
        for number, dim in enumerate(sharding.dims)
        for place, ref in enumerate(dim.axes)
        if ref.name == axis
    ]
