"""What a planner asks of a cost model, and the standard answer: alpha-beta links and rooflines."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cost_models.collectives import (
    FREE,
    Amount,
    LinearCost,
    all_gather_cost,
    all_reduce_cost,
    all_to_all_cost,
    check_amount,
    permute_cost,
    reduce_scatter_cost,
)
from cost_models.errors import CostModelError
from cost_models.hardware import Hardware
from cost_models.roofline import busy_seconds, bytes_per_second, flops_per_second
from cost_models.topology import AxisLink, GroupDim, group_dims, layout_mesh


@dataclass(frozen=True, slots=True)
class AxisPart:
    """A mesh axis, or the part of one that groups of devices communicate along.

    Attributes:
        name: Of the axis.
        pre_size: Size of what lies outside the part in the axis; 1 for the whole axis.
        size: Devices along the part; the axis' size for the whole axis.
    """

    name: str
    pre_size: int
    size: int


class CostModel(Protocol):
    """Prices of the collectives and ops of one machine under one mesh.

    `full_bytes` is per device and always the larger side: of an all-gather the gathered result,
    of the others the operand. Amounts may be NumPy arrays. Every method is cheap to call often.
    """

    @property
    def hardware(self) -> Hardware:
        """The machine whose prices these are."""
        ...

    def all_gather_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device of a group holds every shard."""
        ...

    def reduce_scatter_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device holds its shard of the sum."""
        ...

    def all_reduce_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device holds the sum."""
        ...

    def all_to_all_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device has sent a piece to every other one."""
        ...

    def permute_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device has sent its operand to one other device."""
        ...

    def compute_seconds(
        self,
        flops: Amount,
        bytes_accessed: Amount,
        dtype: str,
        op_class: str,
        matmul_dims: tuple[int, int, int] | None = None,
    ) -> Amount:
        """Seconds of one op on one device."""
        ...

    def device_memory_bytes(self) -> int:
        """Bytes that a program may use on one device."""
        ...


_CostFunction = Callable[[tuple[GroupDim, ...], float], LinearCost]


class AlphaBetaModel:
    """Collectives as latency plus bytes over the mesh's links, ops as rooflines.

    Args:
        hardware: The machine.
        mesh: Axis sizes by name, major to minor.
        slice_shape: Torus machines: chips along each dimension of a slice; see `layout_mesh`.
        num_slices: Torus machines: slices joined by the network; see `layout_mesh`.

    Raises:
        CostModelError: Two axes of one name, a size below 1, a mesh the machine cannot hold.
    """

    def __init__(
        self,
        hardware: Hardware,
        mesh: Mapping[str, int] | Sequence[tuple[str, int]],
        *,
        slice_shape: tuple[int, ...] | None = None,
        num_slices: int | None = None,
    ) -> None:
        pairs = tuple(mesh.items()) if isinstance(mesh, Mapping) else tuple(mesh)
        names = [name for name, _ in pairs]
        doubled = sorted({name for name in names if names.count(name) > 1})
        if doubled:
            raise CostModelError(
                f"axis names given twice: {', '.join(doubled)}",
                where=f"mesh {pairs}",
                fix="name every mesh axis once",
            )
        self.hardware = hardware
        self.mesh: tuple[tuple[str, int], ...] = pairs
        links = layout_mesh(
            hardware,
            tuple(size for _, size in pairs),
            slice_shape=slice_shape,
            num_slices=num_slices,
        )
        self.axis_links: dict[str, AxisLink] = dict(zip(names, links, strict=True))
        self._all_gather: dict[tuple[AxisPart, ...], LinearCost] = {}
        self._reduce_scatter: dict[tuple[AxisPart, ...], LinearCost] = {}
        self._all_reduce: dict[tuple[AxisPart, ...], LinearCost] = {}
        self._all_to_all: dict[tuple[AxisPart, ...], LinearCost] = {}
        self._permute: dict[tuple[AxisPart, ...], LinearCost] = {}
        self._rates: dict[tuple[str, str, tuple[int, int, int] | None], tuple[float, float]] = {}

    def all_gather_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device of a group holds every shard.

        Args:
            full_bytes: Of the gathered result, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds(self._all_gather, all_gather_cost, full_bytes, axes)

    def reduce_scatter_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device holds its shard of the sum.

        Where the compiler has no reduce-scatter this is the price of an all-reduce.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        cost = reduce_scatter_cost if self.hardware.has_reduce_scatter else all_reduce_cost
        return self._seconds(self._reduce_scatter, cost, full_bytes, axes)

    def all_reduce_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device holds the sum.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds(self._all_reduce, all_reduce_cost, full_bytes, axes)

    def all_to_all_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device has sent a piece to every other one.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds(self._all_to_all, all_to_all_cost, full_bytes, axes)

    def permute_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device has sent its operand to one other device.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the permutation moves data along.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds(self._permute, permute_cost, full_bytes, axes)

    def compute_seconds(
        self,
        flops: Amount,
        bytes_accessed: Amount,
        dtype: str,
        op_class: str,
        matmul_dims: tuple[int, int, int] | None = None,
    ) -> Amount:
        """Seconds of one op on one device.

        Args:
            flops: FLOP of the local op.
            bytes_accessed: Bytes it reads and writes.
            dtype: Of its operands, in NumPy's or MLIR's spelling.
            op_class: One of `roofline.OP_CLASSES`.
            matmul_dims: (m, n, k) of the local product, where it is one.

        Raises:
            CostModelError: An amount below 0, an unknown dtype or op class.
        """
        check_amount(flops, "flops")
        check_amount(bytes_accessed, "bytes_accessed")
        key = (dtype, op_class, matmul_dims)
        rates = self._rates.get(key)
        if rates is None:
            rates = (
                flops_per_second(self.hardware, dtype, op_class, matmul_dims),
                bytes_per_second(self.hardware, op_class),
            )
            self._rates[key] = rates
        return busy_seconds(
            flops / rates[0],
            bytes_accessed / rates[1],
            self.hardware.compute.kernel_launch_seconds,
        )

    def device_memory_bytes(self) -> int:
        """Bytes that a program may use on one device: the capacity less what the runtime keeps."""
        return self.hardware.memory.capacity_bytes - self.hardware.memory.reserved_bytes

    def _seconds(
        self,
        known: dict[tuple[AxisPart, ...], LinearCost],
        cost_of: _CostFunction,
        full_bytes: Amount,
        axes: tuple[AxisPart, ...],
    ) -> Amount:
        cost = known.get(axes)
        if cost is None:
            dims = self._group(axes)
            cost = cost_of(dims, self.hardware.collective_launch_seconds) if dims else FREE
            known[axes] = cost
        if isinstance(full_bytes, np.ndarray) or not 0 <= full_bytes < math.inf:
            check_amount(full_bytes, "full_bytes")
        return cost[0] + cost[1] * full_bytes

    def _group(self, axes: tuple[AxisPart, ...]) -> tuple[GroupDim, ...]:
        """The links a group spans; checks that the parts are parts and do not overlap."""
        for part in axes:
            link = self.axis_links.get(part.name)
            if link is None:
                raise CostModelError(
                    f'the mesh has no axis "{part.name}"',
                    where=f"mesh {dict(self.mesh)}",
                    fix=f"use {', '.join(name for name, _ in self.mesh) or 'a mesh with axes'}",
                )
            if part.pre_size < 1 or part.size < 1 or link.size % (part.pre_size * part.size):
                raise CostModelError(
                    f"the part ({part.pre_size}){part.size} does not divide the "
                    f'{link.size} devices of axis "{part.name}"',
                    where=f"mesh {dict(self.mesh)}",
                    fix="make pre_size times size a divisor of the axis' size",
                )
        for first, second in zip(_sorted(axes), _sorted(axes)[1:], strict=False):
            if first.name == second.name and second.pre_size < first.pre_size * first.size:
                raise CostModelError(
                    f"the parts ({first.pre_size}){first.size} and ({second.pre_size}){second.size}"
                    f' of axis "{first.name}" overlap',
                    where=f"mesh {dict(self.mesh)}",
                    fix="name every part of an axis once",
                )
        return group_dims((self.axis_links[part.name], part.pre_size, part.size) for part in axes)


def _sorted(axes: tuple[AxisPart, ...]) -> list[AxisPart]:
    """Parts of more than one device, by axis and place in it."""
    return sorted(
        (part for part in axes if part.size > 1), key=lambda part: (part.name, part.pre_size)
    )
