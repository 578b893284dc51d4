"""Plans that cost hardly more than one that was compiled, and differ from it in big tensors."""

from __future__ import annotations

from collections.abc import Sequence

from autoshard.encoding.encoded import Encoded
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution, solution_of
from solvers import solve_k_best

LEAST_SHARE = 0.1
"""Of the bytes of big tensors, what another plan shards otherwise. A choice: the state of one layer
in ten."""
MOST_EXCESS = 0.02
"""Of the cost, what another plan may cost more by the corrected model. A choice: twice the gap that
plans are proven to."""
_BIG = 0.01  # of all bytes of results


def alternative(
    solution: Solution, known: Sequence[tuple[int, ...]], options: SolveOptions
) -> Solution | None:
    """The best plan that differs from all known ones in big tensors; None where none is near.

    Args:
        solution: A plan of the corrected problem.
        known: Choices of that problem that were compiled.
        options: For the solve.
    """
    encoded = solution.encoded
    weights = big_tensors(encoded)
    if not sum(weights):
        return None
    found = solve_k_best(
        encoded.problem,
        1,
        weights=weights,
        least_share=LEAST_SHARE,
        most_excess=MOST_EXCESS,
        known=list(dict.fromkeys((*known, solution.choices))),
        engine=options.engine,
        time_limit_seconds=options.time_limit_seconds,
        seed=options.seed,
        relative_gap=options.relative_gap,
    )
    return solution_of(solution.encoder, encoded, found[0]) if found else None


def big_tensors(encoded: Encoded) -> list[int]:
    """By node, the bytes of what its op makes; 0 for all but big tensors."""
    graph = encoded.graph
    sizes = [
        sum(graph.values[value].num_bytes for value in graph.ops[op].results) for op in encoded.ops
    ]
    least = _BIG * sum(sizes)
    big = [size if size >= least else 0 for size in sizes]
    return [*big, *(0 for _ in encoded.reads)]
