"""An earlier plan as choices to start a search from: of the same program, or of a similar one."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from autoshard.encoding.encoded import Encoded
from autoshard.layouts import Layout
from autoshard.planning.pricing import nearest_choices
from autoshard.planning.searches import SHORT, SolveOptions
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding


@dataclass(frozen=True, slots=True)
class WarmStart:
    """Shardings of an earlier plan.

    Args:
        arguments: By argument, captured arrays left out.
        values: By path of a value.
    """

    arguments: tuple[Sharding, ...]
    values: Mapping[str, Sharding]

    @staticmethod
    def of(data: PlanData) -> WarmStart | None:
        """Returns the shardings of a plan; None where none was found."""
        if not data.is_feasible:
            return None
        return WarmStart(tuple(tensor.sharding for tensor in data.arguments), data.values)

    def choices(self, encoded: Encoded, options: SolveOptions) -> tuple[int, ...] | None:
        """Returns the cheapest choices in which values are sharded as they were.

        Values of another rank, cut by axes that the mesh has not, or in a way that no candidate
        offers any more are free, and memory is not looked at.

        Args:
            encoded: The problem to start.
            options: For the small solve.

        Returns:
            None where no choices agree.
        """
        graph, parts = encoded.graph, encoded.parts
        layouts: list[Layout | None] = [None] * len(graph.values)
        arguments = graph.arguments[graph.num_captured :]
        for op, sharding in zip(arguments, self.arguments, strict=False):
            layouts[op.results[0]] = parts.find_layout(sharding)
        for path, sharding in self.values.items():
            value = graph.value_by_path.get(path)
            if value is not None:
                layouts[value] = parts.find_layout(sharding)
        short = replace(options, time_limit_seconds=SHORT * options.time_limit_seconds)
        return nearest_choices(encoded, layouts, short, in_steps=True).choices
