"""The program that keeps every residual, beside the one that computes all it can again."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.constraints.program import holder_of
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.graph.buffers import Buffers
from autoshard.graph.program import Graph, OpKind, Region
from autoshard.planning.solution import Solution
from autoshard.remat.forward_op import ForwardOp, ValuePaths


@dataclass(frozen=True, slots=True)
class LeanProgram:
    """The program with all computed again that can be.

    Args:
        solution: Its plan.
        path: By path of an equation of the program that keeps every residual, its path here.
        values: Paths of forward values here.
    """

    solution: Solution
    path: Mapping[str, str]
    values: ValuePaths

    @property
    def encoded(self) -> Encoded:
        return self.solution.encoded

    @property
    def graph(self) -> Graph:
        return self.encoded.graph

    @property
    def is_stored(self) -> Sequence[bool]:
        return self.solution.encoder.buffers.is_stored


@dataclass(frozen=True)
class ResidualProgram:
    """A program that keeps every residual, its choice problem, and the lean program.

    Args:
        encoder: Of the problem.
        encoded: The problem.
        ops: The forward ops of the program.
        lean: The same program with all computed again that can be.
    """

    encoder: Encoder
    encoded: Encoded
    ops: tuple[ForwardOp, ...]
    lean: LeanProgram

    @property
    def graph(self) -> Graph:
        return self.encoded.graph

    @property
    def buffers(self) -> Buffers:
        return self.encoder.buffers

    @cached_property
    def by_equation(self) -> Mapping[str, list[int]]:
        return _by_equation(self.graph)

    @cached_property
    def forward(self) -> frozenset[int]:
        """The ops of the graph that forward ops are."""
        return frozenset(index for op in self.ops if op.path for index in self.by_equation[op.path])

    @cached_property
    def members(self) -> Mapping[int, list[int]]:
        """Values by their buffer."""
        found: dict[int, list[int]] = defaultdict(list)
        for value, owner in enumerate(self.buffers.owner):
            found[owner].append(value)
        return found

    @cached_property
    def loops(self) -> dict[int, tuple[Region, Region]]:
        """By pass of a scan, the loop that writes its stacks and the one that reads them."""
        found: dict[int, tuple[Region, Region]] = {}
        for op in self.ops:
            for one in op.results if op.stack_length is not None else ():
                stack = self.graph.value_by_path.get(one.stack)
                if stack is not None and op.pass_index not in found:
                    touching = (
                        self.graph.ops[index]
                        for value in self.members[self.buffers.owner[stack]]
                        for index in (self.graph.values[value].op, *self.graph.consumers[value])
                    )
                    regions = {one.region for one in touching if one.kind is OpKind.COMPUTE}
                    loops = [self.graph.regions[index] for index in sorted(regions)]
                    loops = [region for region in loops if region.kind == "loop"]
                    if len(loops) > 1:
                        found[op.pass_index] = loops[0], loops[-1]
        return found

    @cached_property
    def lean_ops(self) -> Mapping[int, int]:
        """By op, the same one in the lean program, where it is there; of forward ops, the first."""
        ops = [
            *zip(self.graph.arguments, self.lean.graph.arguments, strict=True),
            *zip(self.graph.results, self.lean.graph.results, strict=True),
        ]
        pairs = [(op.index, other.index) for op, other in ops]
        for path, other in self.lean.path.items():
            pairs += self.pairs(path, other)
        return dict(pairs)

    @cached_property
    def lean_choices(self) -> dict[int, int]:
        """By node, its choice in the lean plan, where it is there and is offered here."""
        candidates = self.lean.solution.decoded.candidates
        found = {}
        for index, other in self.lean_ops.items():
            node = self.encoded.node_by_op.get(index)
            chosen = candidates.get(other)
            if node is not None and chosen in self.encoded.candidates[node]:
                found[node] = self.encoded.candidates[node].index(chosen)
        return found

    @cached_property
    def _lean_equation(self) -> Mapping[str, list[int]]:
        return _by_equation(self.lean.graph)

    def pairs(self, path: str, other: str) -> list[tuple[int, int]]:
        """Ops of an equation and those of the same one in the lean program."""
        ours = [i for i in self.by_equation.get(path, ()) if self.graph.ops[i].equation == path]
        theirs = [
            i
            for i in self._lean_equation.get(other, ())
            if self.lean.graph.ops[i].equation == other
        ]
        names = [self.graph.ops[index].name for index in ours]
        is_alike = names == [self.lean.graph.ops[index].name for index in theirs]
        return list(zip(ours, theirs, strict=True)) if is_alike else []


def _by_equation(graph: Graph) -> Mapping[str, list[int]]:
    """Ops of every equation and of its bodies, in program order."""
    found: dict[str, list[int]] = defaultdict(list)
    for op in graph.ops:
        equation = op.equation
        while equation:
            found[equation].append(op.index)
            equation = holder_of(equation)
    return found
