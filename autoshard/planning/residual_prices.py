"""Prices of forward ops that are computed again, and of the rest of the program then."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from functools import cached_property

import numpy as np

from autoshard.graph.program import Op, OpClass
from autoshard.planning.residual_problem import AGAIN, DROP, HOST, KEEP
from autoshard.planning.residual_program import ResidualProgram
from autoshard.planning.residual_tables import IntArray, ResidualTables
from autoshard.remat.forward_op import ForwardOp
from solvers import FORBIDDEN


class ResidualPrices:
    """Prices ops by the states of the forward ops that they are, or that they read.

    Args:
        program: The program.
        tables: Tell what is kept; changed in place.
    """

    def __init__(self, program: ResidualProgram, tables: ResidualTables) -> None:
        self.program, self.tables, self.lean = program, tables, program.lean
        self.graph, self.buffers, self.encoded = program.graph, program.buffers, program.encoded

    def pay(self) -> None:
        """Price all forward ops, then all that reads them."""
        for position, op in enumerate(self.program.ops):
            self._price(position, op)
        self._price_readers()

    def _price(self, position: int, op: ForwardOp) -> None:
        """Pay an op a second time where it is computed again.

        In the forward pass it costs what it does where it is kept, or where nothing is: it may be
        fused with its readers there. Then they cost more, in place of the op that began the kernel.
        What the lean program does not compute again costs as much as it does once.
        """
        copied = _equation(op, self.lean.values.copied) or op.path
        copies = {node: copy for node, _, copy in self._prices(op.path, copied)}
        for node, kept, fused in self._forward_prices[position]:
            once = np.minimum(kept, fused)
            self.tables.set_costs(node, once)
            table = self.tables.of(node, position)
            table[:, [KEEP, HOST]] += (kept - once)[:, None]
            if (fused > once).any():
                began = self.tables.of(node, self._began_kernel(position))
                began[:, [AGAIN, DROP]] += (fused - once)[:, None]
            again = copies.get(node, np.zeros_like(fused))
            table[:, AGAIN] += again
            self.tables.again[position].append((node, again))

    def _began_kernel(self, position: int) -> int:
        """The op that pays, where all is kept, for the kernel that an op is in where nothing is."""
        todo, seen = [position], {position}
        for one in todo:  # grows as it goes
            for operand in self.program.ops[one].operands:
                if operand not in seen and self._is_fused_in_lean(self.program.ops[operand]):
                    seen.add(operand)
                    todo.append(operand)
        return max(todo, key=self._paid_where_kept)

    def _is_fused_in_lean(self, op: ForwardOp) -> bool:
        """True of an op whose results have no buffer in the forward pass where nothing is kept."""
        paths = [self.lean.values.forward.get(one.name, "") for one in op.results]
        values = [self.lean.encoded.graph.value_by_path.get(path) for path in paths]
        return all(value is not None and not self.lean.is_stored[value] for value in values)

    def _paid_where_kept(self, position: int) -> int:
        """The most that an op costs more where all is kept than where nothing is."""
        prices = self._forward_prices[position]
        return max((int((kept - fused).max()) for _, kept, fused in prices), default=0)

    @cached_property
    def _forward_prices(self) -> list[list[tuple[int, IntArray, IntArray]]]:
        """By forward op, prices of its nodes in the forward pass: where all is kept, and nothing.

        A list, as nodes are priced anew while it is read.
        """
        forward = self.lean.values.forward
        return [list(self._prices(op.path, _equation(op, forward))) for op in self.program.ops]

    def _price_readers(self) -> None:
        """Pay for reading a buffer as it is read: what is computed again may be fused."""
        forward = {op.path for op in self.program.ops}
        keeper = {
            self.buffers.owner[self.graph.value_by_path[one.stack]]: position
            for position, op in enumerate(self.program.ops)
            for one in op.results
            if one.stack in self.graph.value_by_path and self.tables.kept_bytes[position]
        }
        for path, other in self.lean.path.items():
            if path in forward:
                continue
            for node, kept, again in self._prices(path, other):
                if (kept == again).all():
                    continue
                once = np.minimum(kept, again)
                self.tables.set_costs(node, once)
                position = self._largest_read(self.graph.ops[self.encoded.ops[node]], keeper)
                if position is not None:
                    table = self.tables.of(node, position)
                    table[:, [KEEP, HOST]] += (kept - once)[:, None]
                    table[:, [AGAIN, DROP]] += (again - once)[:, None]

    def _largest_read(self, op: Op, keeper: Mapping[int, int]) -> int | None:
        """The forward op whose stack is the largest that an op reads, through fused ones too."""
        todo, found = list(op.operands), dict[int, None]()
        for value in todo:  # grows as it goes
            maker = self.graph.maker(value)
            owner = self.buffers.owner[value]
            if owner in keeper:
                found[keeper[owner]] = None
            elif not self.buffers.is_stored[value] or maker.op_class is OpClass.COPY:
                todo += (one for one in maker.operands if one not in todo)
        sizes = {one: max(int(u.max()) for _, u in self.tables.kept_bytes[one]) for one in found}
        return max(sizes, key=sizes.__getitem__, default=None)

    def _prices(self, path: str, other: str) -> Iterator[tuple[int, IntArray, IntArray]]:
        """Nodes of an equation, with its prices here and those of one where nothing is kept.

        Those of "", which is not there, are nothing.
        """
        lean = dict(self.program.pairs(path, other))
        for index in self.program.by_equation.get(path, ()):
            node = self.encoded.node_by_op.get(index)
            if node is None:
                continue
            costs = self.encoded.problem.node_costs[node]
            other_costs = self._lean_costs(lean[index], node) if index in lean else costs
            if not other:
                other_costs = np.where(costs < FORBIDDEN, 0, costs)
            allowed = (costs < FORBIDDEN) & (other_costs < FORBIDDEN)
            if allowed.any() and (costs[allowed].any() or other_costs[allowed].any()):
                yield node, np.where(allowed, costs, 0), np.where(allowed, other_costs, 0)

    def _lean_costs(self, index: int, node: int) -> IntArray:
        """Costs of an op where nothing is kept; those here of candidates that it has not there."""
        costs = self.encoded.problem.node_costs[node]
        lean = self.lean.encoded
        other = lean.node_by_op.get(index)
        if other is None:
            return costs
        there = dict(
            zip(
                self.lean.encoded.candidates[other],
                self.lean.encoded.problem.node_costs[other],
                strict=True,
            )
        )
        own = zip(self.encoded.candidates[node], costs, strict=True)
        return np.array([there.get(candidate, cost) for candidate, cost in own], dtype=np.int64)


def _equation(op: ForwardOp, path_of: Mapping[str, str]) -> str:
    """The equation that makes the results of a forward op, or "" where none does."""
    paths = (path_of.get(one.name) for one in op.results)
    return next((path.rpartition(".")[0] for path in paths if path), "")
