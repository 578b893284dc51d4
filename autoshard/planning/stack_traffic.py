"""Time in which a step writes and reads what its loops keep for the loops behind them."""

from __future__ import annotations

from autoshard.graph.stacks import stacked_by
from autoshard.planning.solution import Solution


def stack_seconds(solution: Solution) -> float:
    """Seconds in which memory moves the stacks of a plan that loops write for other loops."""
    graph, room = solution.graph, solution.encoder.room
    held = sum(
        room.local_bytes(graph.values[value], solution.decoded.layouts[value])
        for op in graph.ops
        if stacked_by(graph, op) is not None and not graph.is_in_loop(op.region)
        for value in op.results
        if any(graph.ops[reader].name == "while" for reader in graph.consumers[value])
    )
    return 2.0 * held / solution.encoder.costing.elementwise_speed
