"""What keeping every value and repeating every equation of a forward pass takes, as planned."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import prod
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from autoshard.frontend.jaxpr_paths import bodies
from autoshard.frontend.source_lines import SourceLines
from autoshard.remat.choice import Residual
from autoshard.remat.joint_graph import JointGraph, variables
from autoshard.remat.joint_program import Written
from autoshard.remat.residual_sets import (
    ForwardCosts,
    ForwardEquation,
    ForwardValue,
    ResidualSet,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StepPrices:
    """What one device takes in a planned step, by jaxpr path.

    Args:
        seconds: Of equations and all in their bodies, all runs.
        local_bytes: Of values, one run.
        unstored: Values that have no buffer: their readers compute them.
        bytes_per_second: Of the memory of the device.
    """

    seconds: Mapping[str, float]
    local_bytes: Mapping[str, int]
    unstored: frozenset[str]
    bytes_per_second: float


@dataclass(frozen=True, eq=False)
class PricedProgram:
    """A program that keeps every residual, and what its forward passes take.

    Args:
        written: The program.
        costs: Of its forward passes; values and equations of all graphs, one after the other.
        equations: The equations, as numbered there.
        lines: By value: what makes it, and where.
        types: By value: its type, with the dimension that stacks it.
    """

    written: Written
    costs: ForwardCosts
    lines: Sequence[tuple[str, str]]
    types: Sequence[str]

    @staticmethod
    def of(written: Written, prices: StepPrices) -> PricedProgram:
        """Price the forward passes of a planned program that keeps every residual."""
        reader = _Reader(prices, _paths(written.closed.jaxpr))
        for number, graph in enumerate(written.graphs):
            reader.read(number, graph)
        costs = ForwardCosts(reader.values, reader.equations)
        return PricedProgram(written, costs, reader.lines, reader.types)

    def names(self, chosen: ResidualSet) -> tuple[str, ...]:
        return tuple(self.costs.values[position].name for position in chosen.kept)

    def residuals(self, chosen: ResidualSet) -> tuple[Residual, ...]:
        """What the backward pass reads of the forward pass, and what becomes of it."""
        kept, again = set(chosen.kept), set(chosen.again)
        found = []
        for position, value in enumerate(self.costs.values):
            if value.is_fused or not (position in kept or value.is_required):
                continue
            maker = value.maker
            what, source = self.lines[position]
            is_again = position not in kept and maker in again
            found.append(
                Residual(
                    name=value.name,
                    what=what,
                    source=source,
                    type_text=self.types[position],
                    is_kept=position in kept,
                    local_bytes=value.num_bytes,
                    seconds=self.costs.equations[maker].seconds
                    if is_again and maker is not None
                    else 0.0,
                )
            )
        return tuple(found)


class _Reader:
    def __init__(self, prices: StepPrices, path_of: Mapping[Var, str]) -> None:
        self.prices, self.path_of = prices, path_of
        self.sources = SourceLines()
        self.values: list[ForwardValue] = []
        self.equations: list[ForwardEquation] = []
        self.lines: list[tuple[str, str]] = []
        self.types: list[str] = []

    def read(self, number: int, graph: JointGraph) -> None:
        first_value, first_equation = len(self.values), len(self.equations)
        wanted = [var for var in graph.names if var not in graph.free]
        place = {var: first_value + i for i, var in enumerate(wanted)}
        labels = _labels(graph)
        for var in wanted:
            maker = graph.maker.get(var)
            self.values.append(self.value(number, graph, var, first_equation))
            eqn = None if maker is None else graph.forward[maker]
            source = "" if eqn is None else self.sources.line(eqn)
            self.lines.append((labels.get(var, _what(eqn)), source))
            self.types.append(_type_text(var, graph.stack_length))
        for position, eqn in enumerate(graph.forward):
            operands = dict.fromkeys(place[v] for v in variables(eqn.invars) if v in place)
            self.equations.append(
                ForwardEquation(
                    seconds=0.0 if position in graph.constants else self.seconds(eqn),
                    operands=tuple(operands),
                )
            )

    def value(self, number: int, graph: JointGraph, var: Var, first_equation: int) -> ForwardValue:
        path = self.path_of.get(var, "")
        length = graph.stack_length
        maker = graph.maker.get(var) if graph.is_recomputable(var) else None
        is_stacked = length is not None
        is_fused = not is_stacked and maker is not None and path in self.prices.unstored
        num_bytes = self.prices.local_bytes.get(path, _whole_bytes(var)) * (length or 1)
        num_bytes = 0 if is_fused else num_bytes
        return ForwardValue(
            name=f"{number}:{graph.names[var]}",
            num_bytes=num_bytes,
            keep_seconds=2 * num_bytes / self.prices.bytes_per_second if is_stacked else 0.0,
            maker=None if maker is None else first_equation + maker,
            is_fused=is_fused,
            is_required=var in graph.required,
        )

    def seconds(self, eqn: JaxprEqn) -> float:
        paths = [self.path_of[var] for var in eqn.outvars if var in self.path_of]
        return self.prices.seconds.get(paths[0].rpartition(".")[0], 0.0) if paths else 0.0


def _labels(graph: JointGraph) -> dict[Var, str]:
    """What the user calls values, by `checkpoint_name`."""
    found: dict[Var, str] = {}
    for eqn in graph.forward:
        if eqn.primitive.name == "name":
            label = str(eqn.params["name"])
            found.update(dict.fromkeys((*variables(eqn.invars), *eqn.outvars), label))
    return found


def _what(eqn: JaxprEqn | None) -> str:
    return "carry" if eqn is None else eqn.primitive.name


def _whole_bytes(var: Var) -> int:
    itemsize = getattr(getattr(var.aval, "dtype", None), "itemsize", 0)
    return prod(getattr(var.aval, "shape", ())) * itemsize


def _type_text(var: Var, stack_length: int | None) -> str:
    aval: Any = var.aval
    shape = (*(() if stack_length is None else (stack_length,)), *getattr(aval, "shape", ()))
    dtype = aval.str_short(short_dtypes=True).partition("[")[0]
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _paths(jaxpr: Jaxpr, prefix: str = "") -> dict[Var, str]:
    """The path of every value, where it is made first."""
    found: dict[Var, str] = {}
    for position, var in enumerate(jaxpr.invars):
        found.setdefault(var, f"{prefix}in.{position}")
    for index, eqn in enumerate(jaxpr.eqns):
        for position, var in enumerate(eqn.outvars):
            found.setdefault(var, f"{prefix}{index}.{position}")
        for key, body in bodies(eqn):
            for var, path in _paths(body, f"{prefix}{index}.{key}/").items():
                found.setdefault(var, path)
    return found
