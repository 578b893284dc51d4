"""A tensor of a planned program: which op decides its sharding, and what else is about it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.candidates.candidate import Candidate
from autoshard.errors import InputError
from autoshard.explain.explanation import AlikeTensor, Read
from autoshard.graph.program import Graph, Op, OpKind, Value
from autoshard.layouts import Layout, MeshParts
from autoshard.planning.solution import Solution
from autoshard.reshard import Step, StepKind
from autoshard.wishes.ties import constrained_arguments


@dataclass(frozen=True, slots=True, eq=False)
class DecidedTensor:
    """A tensor and the op that decides how it is sharded.

    Args:
        op: What makes it; for a result of the function, the op that hands it back.
        value: The tensor.
        place: Which result of the op it is; for a result of the function, which operand.
    """

    op: Op
    value: Value
    place: int

    @staticmethod
    def at(graph: Graph, path: str) -> DecidedTensor:
        """The tensor at `in.3`, `out<2` or the path of a value.

        Raises:
            InputError: The program has no such path.
        """
        kind, _, number = path.replace("<", ".").partition(".")
        borders = {"in": graph.arguments[graph.num_captured :], "out": graph.results}
        if kind in borders and number.isdecimal() and int(number) < len(borders[kind]):
            return DecidedTensor.by(graph, borders[kind][int(number)])
        if path not in graph.value_by_path:
            raise InputError(
                f"the program has no value at `{path}`",
                where="the name asked for",
                fix="name an argument, a result, or a line as constraints do",
            )
        value = graph.values[graph.value_by_path[path]]
        op = graph.ops[value.op]
        return DecidedTensor(op, value, op.results.index(value.index))

    @staticmethod
    def by(graph: Graph, op: Op) -> DecidedTensor:
        """The first tensor that an op decides."""
        return DecidedTensor(op, graph.values[(op.results or op.operands)[0]], 0)

    @property
    def is_result(self) -> bool:
        """Whether it is a result of the function, which may lie otherwise than the value does."""
        return self.op.kind is OpKind.RESULT

    @property
    def name(self) -> str:
        if self.is_result:
            return self.op.name
        return self.value.name or op_text(self.op)

    def layout(self, candidate: Candidate) -> Layout:
        """Its layout under a candidate of the op."""
        return candidate.side(is_result=not self.is_result)[self.place]

    def planned(self, solution: Solution) -> Layout:
        """Its layout in a plan."""
        candidate = solution.decoded.candidates.get(self.op.index)
        if candidate is None:
            return solution.decoded.layouts[self.value.index]
        return self.layout(candidate)

    def alike(self, solution: Solution) -> tuple[AlikeTensor, ...]:
        """The tensors that must be sharded as this one."""
        found = (*self._in_groups(solution), *self._in_pairs(solution))
        own = (self.op.index, self.value.index)
        others = (
            AlikeTensor(name=other.name, reason=reason)
            for other, reason in found
            if (other.op.index, other.value.index) != own
        )
        return tuple(dict.fromkeys(others))

    def _in_groups(self, solution: Solution) -> Iterator[tuple[DecidedTensor, str]]:
        graph = solution.graph
        for group in graph.groups:
            if self.value.index in group and not self.is_result:
                for value in group:
                    yield _made(graph, value), "one shard_alike group"
        for wish in solution.encoder.wishes.groups:
            if (self.op.index, self.value.index) in wish.members:
                for index, value in wish.members:
                    op = graph.ops[index]
                    tensor = _made(graph, value) if op.results else DecidedTensor.by(graph, op)
                    yield tensor, wish.said

    def _in_pairs(self, solution: Solution) -> Iterator[tuple[DecidedTensor, str]]:
        graph, wishes = solution.graph, solution.encoder.wishes
        for argument, result in wishes.alike:
            pair = (graph.arguments[argument], graph.results[result])
            if self.op in pair:
                yield DecidedTensor.by(graph, pair[0]), "the donated argument that it replaces"
                yield (
                    DecidedTensor.by(graph, pair[1]),
                    "the result that replaces this donated argument",
                )
        for first, reader in constrained_arguments(graph, wishes):
            if self.op in (first, reader):
                yield (
                    DecidedTensor.by(graph, first),
                    "the argument that nothing but this constraint reads",
                )
                yield (
                    DecidedTensor.by(graph, reader),
                    "the sharding constraint that alone reads it",
                )

    def reads(self, solution: Solution) -> tuple[Read, ...]:
        """What reads it, and what it takes to bring it there."""
        return () if self.is_result else tuple(self._reads(solution))

    def _reads(self, solution: Solution) -> Iterator[Read]:
        encoded, have = solution.encoded, self.planned(solution)
        is_made_anywhere = self.op.index not in solution.decoded.candidates
        for op in solution.graph.ops:
            candidate = solution.decoded.candidates.get(op.index)
            if candidate is None or not self.value.shape:
                continue
            positions = {
                candidate.operands[position]: position
                for position, value in enumerate(op.operands)
                if value == self.value.index
            }
            for want, position in positions.items():
                table = encoded.table(self.value.index, encoded.read_bits.to(op, position))
                chain = () if is_made_anywhere else table.chain(have, want)
                once = float(table.seconds[table.index[have], table.index[want]]) if chain else 0.0
                yield Read(
                    op=op.name if op.kind is OpKind.RESULT else op_text(op),
                    wanted=encoded.parts.to_sharding(want),
                    steps=tuple(
                        step_text(encoded.parts, step)
                        for step in chain
                        if step.kind is not StepKind.SLICE
                    ),
                    seconds=once
                    * (op.operand_repeats[position] if op.operand_repeats else op.repeat),
                )


def op_text(op: Op) -> str:
    """`dot_general at train.py:12 (loss)`."""
    return f"{op.name} at {op.source}" if op.source else op.name


def step_text(parts: MeshParts, step: Step) -> str:
    """`all-gather over data`."""
    refs = parts.refs(parts.spanned(step.parts))
    names = (f"{r.name}:({r.pre_size}){r.size}" if r.size else r.name for r in refs)
    return f"{step.kind.value} over {', '.join(names)}"


def _made(graph: Graph, value: int) -> DecidedTensor:
    op = graph.maker(value)
    return DecidedTensor(op, graph.values[value], op.results.index(value))
