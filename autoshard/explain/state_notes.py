"""Notes on states in host memory."""

from __future__ import annotations

from collections.abc import Iterator

from autoshard.plans.plan import PlanData
from autoshard.report.quantities import format_bytes


def state_notes(data: PlanData, name: str) -> Iterator[str]:
    """Why a tensor lies in host memory, where it does.

    Args:
        data: The plan.
        name: Of the tensor, as the user says it.
    """
    tensor = next((one for one in (*data.arguments, *data.results) if one.name == name), None)
    if tensor is None or not tensor.is_on_host or data.offloaded is None:
        return
    peak, budget = data.offloaded.on_device_peak_bytes, data.memory_budget
    missing = ""
    if budget is not None and peak is not None and peak > budget:
        missing = f": with all states on the device {format_bytes(peak - budget)} are missing"
    yield f"in host memory between steps, {format_bytes(tensor.local_bytes)} per device{missing}"
