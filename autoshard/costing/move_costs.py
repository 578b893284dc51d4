"""Seconds of what moves between devices: steps of a reshard, copies, sums."""

from __future__ import annotations

from dataclasses import InitVar, dataclass, field
from math import prod
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from autoshard.backends import Backend, backend_for
from autoshard.costing.transfers import Transfer, transfers_of
from autoshard.graph.collective import WrittenCollective
from autoshard.graph.program import OpClass
from autoshard.layouts import MeshParts, Parts
from autoshard.reshard import StepKind
from autoshard.sharding import AxisRef, axes_crossed, spanned_axes
from cost_models import AxisPart

if TYPE_CHECKING:
    from cost_models import CostModel

FloatArray = npt.NDArray[np.float64]
BoolArray = npt.NDArray[np.bool_]

_WORD_BITS = 32


@dataclass(slots=True)
class MoveCosts:
    """Seconds of moves on one machine under one mesh.

    Args:
        model: Prices single kernels and collectives.
        overlaps: Whether the objective takes off what of collectives runs beside computing.
        compiler: The compiler model, where it is another than the machine's own.

    Attributes:
        backend: The compiler model of the machine.
    """

    model: CostModel
    parts: MeshParts
    overlaps: bool = False
    compiler: InitVar[Backend | None] = None
    backend: Backend = field(init=False)
    _axes: dict[Parts, tuple[AxisPart, ...]] = field(default_factory=dict)
    _group_sizes: dict[Parts, tuple[int, ...]] = field(default_factory=dict)
    _slices: dict[Parts, int] = field(default_factory=dict)
    _written: dict[WrittenCollective, tuple[tuple[AxisRef, ...], int]] = field(default_factory=dict)

    def __post_init__(self, compiler: Backend | None) -> None:
        self.backend = compiler or backend_for(self.model.hardware)

    def axis_parts(self, chosen: Parts) -> tuple[AxisPart, ...]:
        """Mesh parts as the cost model names them, in mesh order.

        Parts of another mesh are priced as all those of this one that their devices differ in.
        """
        found = self._axes.get(chosen)
        if found is None:
            sizes = self.parts.mesh.sizes
            found = tuple(
                AxisPart(ref.name, ref.pre_size, ref.size or sizes[ref.name])
                for ref in self.parts.refs(self.parts.spanned(chosen))
            )
            self._axes[chosen] = found
        return found

    def step_seconds(self, kind: StepKind, parts: Parts, num_bytes: FloatArray) -> FloatArray:
        """Seconds of reshard steps of one kind over one set of parts.

        Args:
            kind: What the step does.
            parts: The parts it works over.
            num_bytes: float64[n]: bytes per device of the larger side.
        """
        axes = self.axis_parts(parts)
        if kind is StepKind.SLICE:
            return self.copy_seconds(2.0 * num_bytes)
        if kind is StepKind.ALL_GATHER:
            return self._gather_seconds(num_bytes, parts)
        if kind is StepKind.ALL_TO_ALL:
            sent = np.asarray(self.model.all_to_all_seconds(num_bytes, axes))
            return sent + self._rearranging_seconds(num_bytes)
        return np.asarray(self.model.permute_seconds(num_bytes, axes))

    def _gather_seconds(self, num_bytes: FloatArray, parts: Parts) -> FloatArray:
        """Seconds of all-gathers, of those too that are run as sums.

        What is gathered between slices and then in each is copied into order.
        """
        axes = self.axis_parts(parts)
        gathered = np.asarray(self.model.all_gather_seconds(num_bytes, axes))
        size = self.parts.num_shards(parts)
        num_slices = self.num_slices(parts)
        if 1 < num_slices < size and self.backend.collectives.is_hierarchical:
            return gathered + self.copy_seconds(2.0 * num_bytes)
        summed = self.backend.collectives.gather_by_sum_bytes(size, self._slice_size)
        if not summed or num_slices > 1:
            return gathered
        by_sum = self.model.all_reduce_seconds(num_bytes, axes)
        return np.where(num_bytes <= summed, by_sum, gathered)

    def transfer_seconds(self, transfer: Transfer, num_bytes: float) -> float:
        """Seconds of one collective as it is run, of so many bytes per device."""
        if not transfer.axes:
            return 0.0
        amount = np.asarray(float(num_bytes))
        return float(self.collective_seconds(transfer.kind, transfer.axes, amount))

    def collective_seconds(
        self, kind: str, axes: tuple[AxisPart, ...], num_bytes: FloatArray
    ) -> FloatArray:
        """Seconds of single collectives; a broadcast passes every link once, as a permute does."""
        priced = {
            "all-gather": self.model.all_gather_seconds,
            "all-reduce": self.model.all_reduce_seconds,
            "all-to-all": self.model.all_to_all_seconds,
            "reduce-scatter": self.model.reduce_scatter_seconds,
        }.get(kind, self.model.permute_seconds)
        return np.asarray(priced(num_bytes, axes))

    def transfers(self, kind: str, parts: Parts, num_bytes: int) -> tuple[Transfer, ...]:
        """The collectives that a planned one becomes.

        Args:
            kind: As of `PredictedCollective`.
            parts: The mesh parts that it works over.
            num_bytes: Per device of the larger side, as wide as elements lie.
        """
        axes, size = self.axis_parts(parts), self._slice_size
        return tuple(transfers_of(self.model, self.backend, size, kind, axes, num_bytes))

    @property
    def _slice_size(self) -> int:
        """Devices of a slice or node, or of all where there is one."""
        every = tuple(range(len(self.parts.axes)))
        return self.parts.mesh.num_devices // self.num_slices(every)

    def num_slices(self, parts: Parts) -> int:
        """Slices or nodes that a group spans."""
        found = self._slices.get(parts)
        if found is None:
            found = self._slices[parts] = self.model.slices_spanned(self.axis_parts(parts))
        return found

    def _rearranging_seconds(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds in which the pieces of all-to-alls are copied into order; 0 if measured in it."""
        machine = self.model.hardware
        measured = machine.measured
        if measured is not None and measured.collective("all-to-all") is not None:
            return np.zeros_like(num_bytes)
        if not self.backend.collectives.copies_all_to_alls:
            return np.zeros_like(num_bytes)
        return self.copy_seconds(2.0 * num_bytes)

    def copy_seconds(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds that copies take which read and write so many bytes together."""
        no_flops = np.zeros_like(num_bytes)
        return np.asarray(
            self.model.compute_seconds(no_flops, num_bytes, "float32", OpClass.COPY.value)
        )

    def row_copy_seconds(self, num_bytes: FloatArray, bits: int, held: BoolArray) -> FloatArray:
        """Likewise, of rows that do not fill their lanes into lanes of their own, or back.

        Args:
            num_bytes: Read and written.
            bits: Of an element.
            held: bool[n], whether the rows lie in VMEM.
        """
        if bits < _WORD_BITS:  # caches of several dimensions among them, which tables are not
            return self.copy_seconds(num_bytes)
        none = np.zeros_like(num_bytes)
        in_hbm, in_vmem = (
            self.model.compute_seconds(none, num_bytes, "float32", name)
            for name in ("row copy", "held row copy")
        )
        return np.where(held, in_vmem, in_hbm)

    def conversion_seconds(self, num_bytes: FloatArray) -> FloatArray:
        """Seconds of conversions that read and write so many bytes together."""
        fast = num_bytes <= self.backend.layout.fast_convert_bytes
        counted = np.where(fast, num_bytes / 2, num_bytes)
        none = np.zeros_like(counted)
        return np.asarray(self.model.compute_seconds(none, counted, "float32", "convert"))

    def written_axes(self, collective: WrittenCollective) -> tuple[tuple[AxisRef, ...], int]:
        """The mesh axes a collective works over, and the devices in one of its groups.

        Groups that follow no axes are taken to work over all axes that they cross.
        """
        found = self._written.get(collective)
        if found is None:
            mesh, groups = self.parts.mesh, collective.groups
            spanned = None
            if collective.kind != "collective-permute":
                spanned = spanned_axes(groups, mesh)
            if spanned is None:
                pairs = [(group[0], place) for group in groups for place in group]
                spanned = axes_crossed(pairs, mesh)
            size = max(map(len, groups))
            if collective.kind == "collective-permute":
                size = prod(ref.size_on(mesh) for ref in spanned)
            found = self._written[collective] = (spanned, size)
        return found

    def links(self, parts: Parts) -> tuple[int, ...]:
        """Devices of a group along each physical dimension that it spans."""
        if parts not in self._group_sizes:
            self._group_sizes[parts] = self.model.group_sizes(self.axis_parts(parts))
        return self._group_sizes[parts]

    def sum_seconds(
        self, kind: str, num_bytes: FloatArray, axes: tuple[AxisPart, ...], joined: int
    ) -> FloatArray:
        """Seconds of sums; all-reduces that share a call share the time in which it starts."""
        if kind == "reduce-scatter":
            return np.asarray(self.model.reduce_scatter_seconds(num_bytes, axes))
        if kind == "all-gather":
            return np.asarray(self.model.all_gather_seconds(num_bytes, axes))
        alone = np.asarray(self.model.all_reduce_seconds(num_bytes, axes))
        return alone - (1 - 1 / joined) * self.model.all_reduce_seconds(0.0, axes)
