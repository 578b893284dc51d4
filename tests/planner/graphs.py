"""Small programs built by hand, and what it takes to plan them without JAX."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import prod

from autoshard.backends import backend_for
from autoshard.costing.costing import Costing, cost_model_for
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded, decode
from autoshard.graph.buffers import find_buffers
from autoshard.graph.program import Graph, Op, OpClass, OpKind, Region, Value
from autoshard.graph.rule import Dims, Rule, identity_rule
from autoshard.layouts import Layout, MeshParts
from autoshard.lowering.estimate import Estimate, estimate
from autoshard.lowering.live_buffers import tiled_arguments
from autoshard.lowering.lower import lower
from autoshard.planning.planner import plan_graph
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.sharding import DimSharding, Sharding, parse_mesh_sizes
from autoshard.wishes.wishes import Wishes
from cost_models import Hardware, get_hardware

F32_BITS = 32


@dataclass(slots=True)
class Program:
    """A graph in the making; each method adds one op and returns the value it makes."""

    values: list[Value] = field(default_factory=list)
    ops: list[Op] = field(default_factory=list)
    regions: list[Region] = field(default_factory=list)
    region: int = 0
    repeat: float = 1.0

    def __post_init__(self) -> None:
        self.regions.append(Region(0, "main", -1, 0, 0))

    def argument(self, *shape: int, name: str = "") -> int:
        rule = identity_rule(shape, 0)
        made = self.add(OpKind.ARGUMENT, "argument", (), [shape], rule=rule)[0]
        self.values[made] = replace(self.values[made], name=name or f"arg{made}", path=f"in.{made}")
        return made

    def zeros(self, *shape: int) -> int:
        return self.add(OpKind.FREE, "constant", (), [shape])[0]

    def widened(self, value: int) -> int:
        """A conversion of a value that every device can make itself."""
        return self.add(OpKind.FREE, "convert", (value,), [self.shape(value)])[0]

    def elementwise(self, *operands: int, name: str = "add") -> int:
        shape = self.shape(operands[0])
        rule = identity_rule(shape, len(operands))
        return self.compute(name, operands, [shape], rule, OpClass.ELEMENTWISE)[0]

    def matmul(self, left: int, right: int) -> int:
        (m, k), (_, n) = self.shape(left), self.shape(right)
        return self.compute("dot_general", (left, right), [(m, n)], matmul_rule(m, k, n))[0]

    def sum(self, operand: int) -> int:
        """Sum over the last dimension."""
        made = self.largest(operand)
        self.ops[-1] = replace(self.ops[-1], is_sum=True)
        return made

    def largest(self, operand: int) -> int:
        """Maximum over the last dimension."""
        shape = self.shape(operand)
        last = len(shape) - 1
        dims: Dims = tuple((d,) for d in range(len(shape)))
        rule = Rule(shape, (dims,), (dims[:-1],), reduction=frozenset({last}))
        return self.compute("reduce", (operand,), [shape[:-1]], rule, OpClass.REDUCE)[0]

    def constraint(self, operand: int, pinned: str) -> int:
        shape = self.shape(operand)
        rule = identity_rule(shape)
        return self.add(
            OpKind.CONSTRAINT, "sharding_constraint", (operand,), [shape], rule=rule, pinned=pinned
        )[0]

    def compute(
        self,
        name: str,
        operands: Sequence[int],
        shapes: Sequence[tuple[int, ...]],
        rule: Rule,
        op_class: OpClass = OpClass.MATMUL,
    ) -> tuple[int, ...]:
        flops = prod(rule.factor_sizes) * (2.0 if op_class is OpClass.MATMUL else 1.0)
        return self.add(
            OpKind.COMPUTE, name, tuple(operands), shapes, rule=rule, op_class=op_class, flops=flops
        )

    def carry(self, initial: int) -> int:
        """What a loop carries; `loop_back` tells what its body returns."""
        shape = self.shape(initial)
        return self.add(OpKind.JOIN, "while", (initial,), [shape], rule=identity_rule(shape))[0]

    def open_loop(self, trips: float) -> None:
        start = len(self.ops)
        self.regions.append(Region(len(self.regions), "loop", self.region, start, 0, trips))
        self.region = len(self.regions) - 1
        self.repeat *= trips

    def loop_back(self, carried: int, returned: int) -> None:
        """Close one carry; call `close_loop` after the last."""
        join = self.ops[self.values[carried].op]
        trips = self.regions[self.region].trip_count
        self.ops[join.index] = replace(
            join,
            operands=(*join.operands, returned),
            rule=identity_rule(self.shape(carried), 2),
            operand_repeats=(join.repeat, join.repeat * trips),
        )

    def close_loop(self) -> None:
        region = self.regions[self.region]
        self.regions[self.region] = replace(region, stop=len(self.ops))
        self.repeat /= region.trip_count
        self.region = region.parent

    def open_manual(self, *axes: str) -> None:
        region = Region(len(self.regions), "manual", self.region, len(self.ops), 0)
        self.regions.append(replace(region, manual_axes=axes))
        self.region = region.index

    def close_manual(self) -> None:
        region = self.regions[self.region]
        self.regions[self.region] = replace(region, stop=len(self.ops))
        self.region = region.parent

    def add(
        self,
        kind: OpKind,
        name: str,
        operands: tuple[int, ...],
        shapes: Sequence[tuple[int, ...]],
        *,
        rule: Rule | None = None,
        op_class: OpClass = OpClass.NOTHING,
        flops: float = 0.0,
        pinned: str = "",
        operand_repeats: tuple[float, ...] = (),
    ) -> tuple[int, ...]:
        index = len(self.ops)
        made = tuple(range(len(self.values), len(self.values) + len(shapes)))
        self.values += [
            Value(v, shape, "f32", F32_BITS, index, f"{index}.{i}")
            for i, (v, shape) in enumerate(zip(made, shapes, strict=True))
        ]
        self.ops.append(
            Op(
                index,
                kind,
                name,
                operands,
                made,
                rule,
                op_class,
                flops,
                self.repeat,
                self.region,
                f"step.py:{index} (step)",
                pinned=pinned,
                operand_repeats=operand_repeats,
            )
        )
        return made

    def shape(self, value: int) -> tuple[int, ...]:
        return self.values[value].shape

    def graph(
        self,
        *results: int,
        groups: tuple[tuple[int, ...], ...] = (),
        donated: tuple[int, ...] = (),
    ) -> Graph:
        """The finished program; call once."""
        for position, value in enumerate(results):
            rule = identity_rule(self.shape(value), 1, 0)
            self.add(OpKind.RESULT, f"result[{position}]", (value,), [], rule=rule)
        self.regions[0] = replace(self.regions[0], stop=len(self.ops))
        return Graph(
            tuple(self.values),
            tuple(self.ops),
            tuple(self.regions),
            groups,
            {value.path: value.index for value in self.values},
            donated,
        )


def matmul_rule(m: int, k: int, n: int) -> Rule:
    """`([i, k], [k, j]) -> ([i, j])`."""
    return Rule((m, n, k), (((0,), (2,)), ((2,), (1,))), (((0,), (1,)),), frozenset({2}))


def narrowed(graph: Graph, *values: int) -> Graph:
    """A program with some values in `bfloat16`."""
    of = list(graph.values)
    for index in values:
        of[index] = replace(of[index], dtype="bf16", bits=16)
    return replace(graph, values=tuple(of))


def parts_of(mesh: str, **splits: tuple[int, ...]) -> MeshParts:
    return MeshParts.of(parse_mesh_sizes(mesh), splits)


def free_wishes(graph: Graph, alike: Sequence[tuple[int, int]] = ()) -> Wishes:
    return wishes_for(graph, alike=alike)


def wishes_for(
    graph: Graph,
    arguments: Mapping[int, Sharding] | None = None,
    results: Mapping[int, Sharding] | None = None,
    alike: Sequence[tuple[int, int]] = (),
) -> Wishes:
    """Wishes by argument and result position; all others are free."""
    return Wishes(
        arguments=[(arguments or {}).get(i) for i in range(len(graph.arguments))],
        results=[(results or {}).get(i) for i in range(len(graph.results))],
        alike=alike,
    )


def encoder_for(
    graph: Graph,
    mesh: str,
    wishes: Wishes | None = None,
    memory_limit: int | None = None,
    hardware: str = "cpu-host",
    parts: MeshParts | None = None,
    *,
    is_scarce: bool = False,
) -> Encoder:
    parts = parts or parts_of(mesh)
    machine = get_hardware(hardware)
    costing = Costing(cost_model_for(machine, parts), parts)
    wishes = wishes or free_wishes(graph)
    buffers = find_buffers(graph, backend_for(machine))
    return Encoder(graph, buffers, costing, wishes, memory_limit, is_scarce=is_scarce)


def plan(
    graph: Graph,
    mesh: str,
    wishes: Wishes | None = None,
    memory_limit: int | None = None,
    hardware: str | Hardware = "cpu-host",
) -> Solution:
    machine = get_hardware(hardware) if isinstance(hardware, str) else hardware
    return plan_graph(
        graph,
        parse_mesh_sizes(mesh),
        machine,
        wishes or free_wishes(graph),
        memory_limit,
        SolveOptions(time_limit_seconds=20.0, relative_gap=0.0),
    )


def closed(parts: MeshParts, layout: Layout) -> Sharding:
    return parts.to_sharding(layout)


def opened(sharding: Sharding, *dims: int) -> Sharding:
    """The same sharding with some dimensions open."""
    return Sharding(
        tuple(
            DimSharding(dim.axes, is_open=position in dims)
            for position, dim in enumerate(sharding.dims)
        )
    )


def beside_arguments(solution: Solution) -> int:
    """Bytes of temporaries on a device when most is held, but for tables of pointers."""
    memory, backend = solution.account.memory, solution.encoder.costing.backend
    tiled = tiled_arguments(solution.encoded, solution.decoded, backend.layout)
    tables = backend.memory.tuple_index_bytes(tiled, solution.graph.num_matmuls)
    return memory.peak_bytes - memory.argument_bytes - tables


def estimated(encoder: Encoder, encoded: Encoded, choices: tuple[int, ...]) -> Estimate:
    """What choices of a problem take on one device."""
    return estimate(lower(encoder, encoded, decode(encoded, choices), choices))
