"""Seconds of what a compiler made: its collectives on a machine's links, its cycles on a clock."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING

from autoshard.costing.costing import cost_model_for
from autoshard.layouts import MeshParts
from autoshard.sharding import Mesh
from autoshard.sharding.sharding_parser import parse_axis_ref
from autoshard.verification.collective_comparison import WINDOWED, CompiledCollective
from cost_models import AxisPart, CostModelError, get_hardware

if TYPE_CHECKING:
    from cost_models import CostModel


@dataclass(frozen=True, slots=True)
class CompiledPrices:
    """What the parts of a compiled program take on one machine.

    Args:
        model: Prices collectives over the axes of the mesh.
        mesh: That the program was compiled for.
    """

    model: CostModel
    mesh: Mesh

    @staticmethod
    def of_machine(name: str, mesh: Mesh) -> CompiledPrices | None:
        """Prices of a machine in the standard cost model; None where no machine is called so."""
        try:
            return CompiledPrices(cost_model_for(get_hardware(name), MeshParts.of(mesh)), mesh)
        except CostModelError:
            return None

    @property
    def clock_hz(self) -> float | None:
        """What the compiler's cycles are counted in; None where it counts none."""
        return self.model.hardware.compute.clock_hertz

    def moved_seconds(self, op_class: str, num_bytes: float, flops: float) -> float:
        """A kernel that reads and writes so many bytes together, and computes so many FLOP."""
        return float(self.model.compute_seconds(flops, num_bytes, "bfloat16", op_class))

    def link_seconds(self, collective: CompiledCollective) -> float:
        """One run of a collective; where groups follow no axes, as if over the whole mesh."""
        names = self.mesh.axis_names if collective.axes is None else collective.axes
        axes = tuple(part for part in map(self._part, names) if part.size > 1)
        if not axes:
            return 0.0
        amount = float(collective.bytes_per_device)
        size = math.prod(part.size for part in axes)
        if collective.form == WINDOWED:  # an all-gather on a ring takes size - 1 such steps
            return float(self.model.all_gather_seconds(amount * size, axes)) / (size - 1)
        if collective.kind == "all-gather":
            return float(self.model.all_gather_seconds(amount, axes))
        if collective.kind == "reduce-scatter":
            return float(self.model.reduce_scatter_seconds(amount, axes))
        if collective.kind == "all-reduce":
            return float(self.model.all_reduce_seconds(amount, axes))
        if collective.kind == "all-to-all":
            return float(self.model.all_to_all_seconds(amount, axes))
        return float(self.model.permute_seconds(amount, axes))

    def _part(self, text: str) -> AxisPart:
        name, _, rest = text.partition(":")
        ref = parse_axis_ref(f'"{name}":{rest}' if rest else f'"{name}"')
        return AxisPart(name, ref.pre_size, ref.size_on(self.mesh))


def known_slices(machine: str) -> tuple[str, ...]:
    """Shapes that a slice of a machine may have, in chips: `2x4`; none of one without a torus."""
    torus = get_hardware(machine).torus
    return tuple("x".join(map(str, shape)) for shape in torus.slice_shapes) if torus else ()
