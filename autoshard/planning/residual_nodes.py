"""Residuals as nodes of the choice problem: keep, compute again, let go, or offload.

The problem is that of a program that keeps every residual. Each forward op gets a node of four
states. Kept, its results take memory until the backward pass reads them, and of a scan the time of
writing and reading the stack. Computed again, the op costs its price once more, in the sharding
that it has. Neither is a choice where only ops read it that are not computed again. On the host,
two slices of a stack stay on the device::

    cost    = ... + sum_u keep[u, x_u] [s_u = KEEP or HOST] + price[u, x_u] [s_u = AGAIN]
                  + sum_p wait[p, sum_{u in p} bytes[u, x_u] [s_u = HOST]]
    memory  = ... + bytes[u, x_u] [s_u = KEEP] + 2 / length bytes[u, x_u] [s_u = HOST]
                                                     between the last read of the forward pass
                                                     and the first one of the backward pass
    s_v = AGAIN  =>  s_u != DROP                    for every u that v reads
    s_u != DROP                                     where the backward pass reads u

A value without a buffer is computed by its readers, from what it is computed from: such an op is
kept only where its operands are. Left out are operands that are moved a second time to compute an
op again, so a bound of this problem holds for the rewritten program too, as far as both are priced
alike.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import product

import numpy as np

from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.planning.residual_memory import ResidualMemory
from autoshard.planning.residual_offload import Offloading
from autoshard.planning.residual_prices import ResidualPrices
from autoshard.planning.residual_problem import AGAIN, DROP, HOST, KEEP, ResidualProblem
from autoshard.planning.residual_program import LeanProgram, ResidualProgram
from autoshard.planning.residual_tables import NUM_STATES, IntArray, ResidualTables
from autoshard.remat.forward_op import ForwardOp
from solvers import FORBIDDEN, Edge, EdgeMemory


def with_residual_nodes(
    encoder: Encoder,
    encoded: Encoded,
    ops: Sequence[ForwardOp],
    lean: LeanProgram,
    asked: Mapping[int, Collection[int]],
) -> ResidualProblem:
    """The choice problem of a program that keeps every residual, with residuals to choose.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        ops: The forward ops of the program.
        lean: The same program with all computed again that can be.
        asked: By forward op, the states that users leave to choose.
    """
    problem, ops = encoded.problem, tuple(ops)
    program = ResidualProgram(encoder, encoded, ops, lean)
    tables = ResidualTables.of_problem(problem, len(ops))
    fused = ResidualMemory(program, tables).hold()
    ResidualPrices(program, tables).pay()
    offloading = Offloading(program, tables)
    links = offloading.links
    costs = [_state_costs(offloading, position, asked) for position in range(len(ops))]
    first = problem.num_nodes + len(links)  # the passes wait for the host first
    edges, place = list(problem.edges), dict[tuple[int, int], int]()
    for (node, position), table in tables.tables.items():
        place[node, position] = len(edges)
        edges.append(Edge(node, first + position, table))
    edges += _closure(ops, fused, first)
    held = [
        EdgeMemory(place[node, position], start, stop, offloading.on_device(usage, position))
        for node, position, start, stop, usage in tables.held
    ]
    return ResidualProblem(
        replace(
            problem,
            node_costs=(*tables.node_costs, *(link.wait_costs for link in links), *costs),
            edges=tuple(edges),
            node_memory=(
                *(term for terms in tables.terms.values() for term in terms),
                *offloading.bought(),
            ),
            edge_memory=(*problem.edge_memory, *held, *offloading.sent(place)),
        ),
        tuple(offloading.host_limits()),
        ops,
        tuple(map(tuple, tables.kept_bytes)),
        tuple(map(tuple, tables.again)),
        program.lean_choices,
        tuple(fused),
    )


def _state_costs(
    offloading: Offloading, position: int, asked: Mapping[int, Collection[int]]
) -> IntArray:
    """int64[num_states]: which states a forward op may be in."""
    op = offloading.program.ops[position]
    costs = np.zeros(NUM_STATES, dtype=np.int64)
    if not op.may_repeat:
        costs[AGAIN] = FORBIDDEN
    if op.is_required:
        costs[DROP] = FORBIDDEN
    if op.stack_length is not None and op.may_repeat and not offloading.tables.kept_bytes[position]:
        costs[KEEP] = FORBIDDEN  # nobody can tell what a stack of it would take
    if not offloading.may_offload(position, op):
        costs[HOST] = FORBIDDEN
    for state in range(NUM_STATES):
        if state not in asked.get(position, range(NUM_STATES)):
            costs[state] = FORBIDDEN
    return costs


def _closure(ops: Sequence[ForwardOp], fused: Sequence[bool], first: int) -> Iterator[Edge]:
    """Edges by which an op that runs again, or has no buffer, needs its operands.

    What has no buffer is computed again with an op that is: as a start of that, behind the
    barrier, it would be written.
    """
    tables = {}
    for is_fused, reads_fused in product((False, True), repeat=2):
        needs = tables[is_fused, reads_fused] = np.zeros((NUM_STATES, NUM_STATES), dtype=np.int64)
        needs[DROP, AGAIN] = FORBIDDEN
        if is_fused:
            needs[AGAIN, KEEP] = needs[DROP, KEEP] = FORBIDDEN
        if reads_fused:
            needs[KEEP, AGAIN] = FORBIDDEN
    for position, op in enumerate(ops):
        for operand in op.operands:
            reads_fused = fused[operand] and ops[operand].may_repeat
            table = tables[fused[position], reads_fused]
            yield Edge(first + operand, first + position, table)
