"""Which ops of a plan the names of compiled instructions tell.

Names hold the path of an equation, each part behind that of the equation around it (`E[7]/.../
E[.jaxpr/38]`), or the path of the constraint that an instruction stands for (`autoshard[38<1]`).
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from autoshard.graph.program import Op
from autoshard.hlo.text import HloModule, Instruction
from autoshard.use_paths import split_uses

_EQUATION = re.compile(r"(?<!\w)E\[([^\[\]]*(?:\[\d+\][^\[\]]*)*)\]")
_CONSTRAINT = re.compile(r"autoshard\[([^\[\]]*(?:\[\d+\][^\[\]]*)*)\]")


@dataclass(frozen=True, slots=True)
class NamedOps:
    """The ops of a plan, by what a compiled module calls them.

    Args:
        by_equation: Ops by the path of their equation.
        module: The compiled module.
        priced: Seconds by index of an op.
    """

    by_equation: Mapping[str, Sequence[Op]]
    module: HloModule
    priced: Mapping[int, float]

    @staticmethod
    def of(ops: Iterable[Op], module: HloModule, priced: Mapping[int, float]) -> NamedOps:
        """Those of a plan."""
        found: dict[str, list[Op]] = defaultdict(list)
        for op in ops:
            found[op.equation].append(op)
        return NamedOps(dict(found), module, priced)

    def at(self, path: str) -> Sequence[Op]:
        """Ops of an equation; of one that the planner has not, those of the equation around it."""
        while path and path not in self.by_equation:
            path = path.rpartition("/")[0].rpartition(".")[0]
        return self.by_equation.get(path, ()) if path else ()

    def computed_by(self, instruction: Instruction) -> list[Op]:
        """The ops that an instruction computes, those in its fusion included."""
        paths = dict.fromkeys(filter(None, map(equation_of, self._names(instruction))))
        return [op for path in paths for op in self.at(path)]

    def heaviest_beside(self, op: Op) -> Op:
        """The op that stands for all of an equation where collectives are compared."""
        ops = self.by_equation.get(op.equation, ()) if op.equation else ()
        return max(ops or [op], key=lambda one: self.priced.get(one.index, 0.0))

    def sending(self, name: str) -> tuple[Op | None, int | None]:
        """The op that a collective serves, and which operand, where its name tells."""
        equation, operand = _constrained(name) or (equation_of(name), None)
        ops = self.at(equation)
        return (self.heaviest_beside(ops[0]), operand) if ops else (None, None)

    def _names(self, instruction: Instruction) -> Iterator[str]:
        yield instruction.string("op_name")
        if instruction.opcode == "fusion":
            for _, called in instruction.called():
                for inner in self.module.computations.get(called, {}).values():
                    yield from self._names(inner)


def equation_of(name: str) -> str:
    """The innermost equation path in the name of a compiled op; "" where there is none."""
    parts: list[str] = _EQUATION.findall(name)
    if not parts:
        equation, _ = _constrained(name) or ("", None)
        return equation
    path = ""
    for part in parts:
        if not part.startswith("."):
            path = part
        elif path:
            path += part
    return path


def _constrained(name: str) -> tuple[str, int | None] | None:
    """The equation of the constraint in a name, and which operand of it is constrained, if one."""
    found = _CONSTRAINT.findall(name)
    if not found:
        return None
    path, _, use = split_uses(found[-1])[0].partition("<")
    return (path, int(use.partition("~")[0])) if use else (path.rpartition(".")[0], None)
