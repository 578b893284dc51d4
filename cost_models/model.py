"""What a planner asks of a cost model, and the standard answer: alpha-beta links and rooflines."""

from __future__ import annotations

import math
import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from cost_models.algorithms import (
    LEVELS,
    Algorithm,
    all_gather_algorithms,
    all_reduce_algorithms,
    fastest,
    lowest_lines,
)
from cost_models.collectives import (
    Amount,
    LinearCost,
    all_to_all_cost,
    check_amount,
    permute_cost,
    shift_cost,
)
from cost_models.errors import CostModelError
from cost_models.hardware import Hardware
from cost_models.links import AxisLink, GroupDim
from cost_models.measured import CollectiveKind
from cost_models.measured_cost import fitted_cost
from cost_models.roofline import busy_seconds, bytes_per_second, flops_per_second
from cost_models.topology import MeshLayout, Places, place_mesh


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

    def shift_seconds(
        self, full_bytes: Amount, axes: tuple[AxisPart, ...], *, both_ways: bool = False
    ) -> Amount:
        """Seconds until every device has sent its operand to its neighbour, round the group."""
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

    def group_sizes(self, axes: tuple[AxisPart, ...]) -> tuple[int, ...]:
        """Devices of a group along each physical dimension that it spans, outermost first."""
        ...

    def slices_spanned(self, axes: tuple[AxisPart, ...]) -> int:
        """Slices or nodes, joined by the network, that a group spans."""
        ...


class AlphaBetaModel:
    """Collectives as latency plus bytes over the mesh's links, ops as rooflines.

    Args:
        hardware: The machine.
        mesh: Axis sizes by name, major to minor.
        slice_shape: Torus machines: chips along each dimension of a slice; see `place_mesh`.
        num_slices: Torus machines: slices joined by the network; see `place_mesh`.
        places: Torus machines: where each device of the mesh is; see `place_mesh`.
        traffic: Torus machines: bytes gathered along each axis, by name, 0 for those left out; the
            axes are laid where all of them together take the least time.

    Attributes:
        layout: Where the axes lie.
        axis_links: The link of each axis, by name.

    Raises:
        CostModelError: Two axes of one name, a size below 1, a mesh the machine cannot hold,
            traffic of an axis that the mesh has not.
    """

    def __init__(
        self,
        hardware: Hardware,
        mesh: Mapping[str, int] | Sequence[tuple[str, int]],
        *,
        slice_shape: tuple[int, ...] | None = None,
        num_slices: int | None = None,
        places: Places | None = None,
        traffic: Mapping[str, float] | None = None,
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
        unknown = sorted(set(traffic or ()) - set(names))
        if unknown:
            raise CostModelError(
                f"traffic is given for axes that the mesh has not: {', '.join(unknown)}",
                where=f"mesh {pairs}",
                fix=f"use {', '.join(names) or 'a mesh with axes'}",
            )
        self.layout: MeshLayout = place_mesh(
            hardware,
            tuple(size for _, size in pairs),
            slice_shape=slice_shape,
            num_slices=num_slices,
            places=places,
            traffic=None if traffic is None else tuple(traffic.get(name, 0.0) for name in names),
        )
        self.axis_links: dict[str, AxisLink] = dict(zip(names, self.layout.axes, strict=True))
        self._axis_index = {name: index for index, name in enumerate(names)}
        self._lines: dict[CollectiveKind, dict[tuple[AxisPart, ...], tuple[LinearCost, ...]]] = {
            kind: {} for kind in typing.get_args(CollectiveKind)
        }
        self._rates: dict[tuple[str, str, tuple[int, int, int] | None], tuple[float, float]] = {}

    def all_gather_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device of a group holds every shard.

        Args:
            full_bytes: Of the gathered result, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds("all-gather", full_bytes, axes)

    def reduce_scatter_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device holds its shard of the sum.

        Where the compiler has no reduce-scatter this is the price of an all-reduce.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds("reduce-scatter", full_bytes, axes)

    def all_reduce_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device holds the sum.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds("all-reduce", full_bytes, axes)

    def all_to_all_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device has sent a piece to every other one.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds("all-to-all", full_bytes, axes)

    def permute_seconds(self, full_bytes: Amount, axes: tuple[AxisPart, ...]) -> Amount:
        """Seconds until every device has sent its operand to one other device.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that the permutation moves data along.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return self._seconds("collective-permute", full_bytes, axes)

    def shift_seconds(
        self, full_bytes: Amount, axes: tuple[AxisPart, ...], *, both_ways: bool = False
    ) -> Amount:
        """Seconds until every device has sent its operand to its neighbour, round the group.

        Where permutations were measured, it costs what any of them does.

        Args:
            full_bytes: Of the operand, per device.
            axes: The parts of mesh axes that make up the group.
            both_ways: Half of the operand goes to one neighbour and half to the other.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        measured = self.hardware.measured
        if measured is not None and measured.collective("collective-permute") is not None:
            return self.permute_seconds(full_bytes, axes)
        launch = self.hardware.collective_launch_seconds
        return shift_cost(self._group(axes), launch, both_ways=both_ways).at(full_bytes)

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

    def algorithms(self, kind: CollectiveKind, axes: tuple[AxisPart, ...]) -> tuple[Algorithm, ...]:
        """The ways the machine can run a collective on a group; the price is that of the fastest.

        What was measured on the machine comes as `levels` alone.

        Args:
            kind: Of collective; a reduce-scatter is an all-reduce where the compiler has none.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An unknown axis, a part that the axis has not.
        """
        dims = self._group(axes)
        measured = self.hardware.measured
        fit = None if measured is None else measured.collective(kind)
        if fit is not None:
            return (Algorithm("levels", fitted_cost(fit, dims)),)
        if kind == "reduce-scatter" and not self.hardware.has_reduce_scatter:
            return self.algorithms("all-reduce", axes)
        launch = self.hardware.collective_launch_seconds
        if kind == "all-to-all":
            return (Algorithm("levels", all_to_all_cost(dims, launch)),)
        if kind == "collective-permute":
            return (Algorithm("levels", permute_cost(dims, launch)),)
        ways = all_reduce_algorithms if kind == "all-reduce" else all_gather_algorithms
        return ways(dims, launch, self.hardware.algorithms if dims else LEVELS)

    def fastest_algorithm(
        self, kind: CollectiveKind, full_bytes: float, axes: tuple[AxisPart, ...]
    ) -> Algorithm:
        """The way that wins at a size; of equal ones the first.

        Args:
            kind: Of collective.
            full_bytes: As of the method that prices this kind.
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An amount below 0, an unknown axis, a part that the axis has not.
        """
        return fastest(self.algorithms(kind, axes), full_bytes)

    def _seconds(
        self, kind: CollectiveKind, full_bytes: Amount, axes: tuple[AxisPart, ...]
    ) -> Amount:
        known = self._lines[kind]
        lines = known.get(axes)
        if lines is None:
            lines = lowest_lines(tuple(way.cost for way in self.algorithms(kind, axes)))
            known[axes] = lines
        is_array = isinstance(full_bytes, np.ndarray)
        if is_array or not 0 <= full_bytes < math.inf:
            check_amount(full_bytes, "full_bytes")
        seconds, seconds_per_byte = lines[0]
        least = seconds + seconds_per_byte * full_bytes
        for seconds, seconds_per_byte in lines[1:]:
            other = seconds + seconds_per_byte * full_bytes
            least = np.minimum(least, other) if is_array else min(least, other)
        return least

    def group_sizes(self, axes: tuple[AxisPart, ...]) -> tuple[int, ...]:
        """Devices of a group along each physical dimension that it spans, outermost first.

        Args:
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An unknown axis, a part that the axis has not.
        """
        return tuple(dim.size for dim in self._group(axes) if dim.size > 1)

    def slices_spanned(self, axes: tuple[AxisPart, ...]) -> int:
        """Slices or nodes, joined by the network, that a group spans.

        Args:
            axes: The parts of mesh axes that the group spans.

        Raises:
            CostModelError: An unknown axis, a part that the axis has not.
        """
        return math.prod(dim.size for dim in self._group(axes) if dim.kind == "network")

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
        return self.layout.group(
            tuple((self._axis_index[part.name], part.pre_size, part.size) for part in axes)
        )


def _sorted(axes: tuple[AxisPart, ...]) -> list[AxisPart]:
    """Parts of more than one device, by axis and place in it."""
    return sorted(
        (part for part in axes if part.size > 1), key=lambda part: (part.name, part.pre_size)
    )
