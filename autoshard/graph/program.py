"""The program as data: values, ops in program order, and the regions ops run in."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from math import prod
from typing import Literal

from autoshard.graph.collective import WrittenCollective
from autoshard.graph.custom_cost import CustomCost
from autoshard.graph.rule import Rule
from autoshard.graph.window import Window


class OpKind(Enum):
    """What an op is to the planner."""

    ARGUMENT = "argument"  # a flat argument of the function, or an array it captures; no operands
    RESULT = "result"  # a flat result of the function; no results
    COMPUTE = "compute"  # cut by its rule
    FREE = "free"  # constants and iota: every device can make its own piece
    JOIN = "join"  # several sources, one sharding: loop carries, branch results, barriers
    CONSTRAINT = "constraint"  # a sharding written in the program by the user
    ENTER_MANUAL = "enter-manual"  # global operand, local result: into a shard_map body
    LEAVE_MANUAL = "leave-manual"  # local operand, global result: out of one

    __hash__ = object.__hash__  # members are single; that of `Enum` is of Python, and slow


class OpClass(Enum):
    """How an op spends its time, as the cost model names it."""

    MATMUL = "matmul"
    CONVOLUTION = "convolution"
    ELEMENTWISE = "elementwise"
    REDUCE = "reduce"
    GATHER = "gather"
    SCATTER = "scatter"
    SORT = "sort"
    COPY = "copy"
    CUSTOM = "custom"
    NOTHING = "nothing"

    __hash__ = object.__hash__  # as of `OpKind`


DEVICE_MEMORY = "device"
"""The kind of the memory that computing is done in."""

PRODUCTS = frozenset({OpClass.MATMUL, OpClass.CONVOLUTION})
"""Classes of the ops that matrix units run, and that sum what they multiply."""


@dataclass(frozen=True, slots=True)
class Value:
    """A tensor of the program.

    Args:
        index: Its place in `Graph.values`.
        shape: Global shape, or the local one inside a manual region.
        dtype: Element type as StableHLO prints it: `f32`, `bf16`, `i32`, `i1`.
        bits: Bits of one element as stored.
        op: The op that makes it.
        path: The jaxpr path by which `apply` can reach it, or "" where none leads to it.
        name: What to call it to the user.
    """

    index: int
    shape: tuple[int, ...]
    dtype: str
    bits: int
    op: int
    path: str = ""
    name: str = ""

    @property
    def num_bytes(self) -> int:
        """Bytes of the whole tensor; elements smaller than a byte are packed."""
        return -(-prod(self.shape) * self.bits // 8)

    @property
    def type_text(self) -> str:
        """`f32[8, 16]`."""
        return f"{self.dtype}[{', '.join(map(str, self.shape))}]"


@dataclass(frozen=True, slots=True)
class Op:
    """One step of the program.

    Args:
        index: Its place in `Graph.ops`, which is program order.
        kind: What it is to the planner.
        name: `dot_general`, `tanh`, `while`.
        operands: Values read. A loop's join also reads what its body returns, defined later.
        results: Values made.
        rule: How factors cut it; every op but FREE ones has one.
        op_class: How it spends its time.
        flops: Floating-point operations when run whole, once.
        repeat: How often it runs: the product of the trip counts of the regions around it.
        region: Index of the region it stands in.
        source: `file.py:12 (function)` of the user's line, or "".
        equation: Path of its jaxpr equation, or "".
        pinned: For CONSTRAINT, the sharding text; for ENTER_MANUAL and LEAVE_MANUAL, the text of
            the outer sharding over manual axes.
        note: What the exporter had to say about it: why it is kept whole, when it is.
        operand_repeats: How often each operand is read, where that is not `repeat` for all.
        collective: What the op sends, where it is a collective the user wrote.
        declared: Of a custom call, what it costs, where the program or the user says so.
        is_exact: Of a product, whether it asks for more than the default precision.
        is_sum: Of a reduction, whether it adds; others take a maximum, say.
        spread: Of a slice, dimensions that it skips elements of; of a pad, those that it pads
            between elements.
        windows: Of a convolution or pool, by dimension of the image; of a pad, those it shifts.
        moved_windows: Of a gather or scatter, how many windows its indices move along a dimension.
        memory_kind: Of what brings its operand to another memory, the kind of that; else "".
        in_function: Of a FREE op, whether it stands in a function that the program calls.
        hoisted_from: The region of the loop body that it is written in and hoisted from; else -1.
        copies: The same number for an op of a layer and its copies in equal layers; -1: no copies.
    """

    index: int
    kind: OpKind
    name: str
    operands: tuple[int, ...]
    results: tuple[int, ...]
    rule: Rule | None = None
    op_class: OpClass = OpClass.NOTHING
    flops: float = 0.0
    repeat: float = 1.0
    region: int = 0
    source: str = ""
    equation: str = ""
    pinned: str = ""
    note: str = ""
    operand_repeats: tuple[float, ...] = ()
    collective: WrittenCollective | None = None
    declared: CustomCost | None = None
    is_exact: bool = False
    is_sum: bool = False
    spread: tuple[int, ...] = ()
    windows: tuple[Window, ...] = ()
    moved_windows: int = 0
    memory_kind: str = ""
    in_function: bool = False
    hoisted_from: int = -1
    copies: int = field(default=-1, compare=False)


@dataclass(frozen=True, slots=True)
class Region:
    """A stretch of ops that runs as a unit: the main body, a loop body, a branch, a shard_map body.

    Ops `start <= index < stop` belong to it or to a region inside it. A loop's region holds its
    condition, then its body.

    Args:
        index: Its place in `Graph.regions`.
        kind: What it is.
        parent: The region around it; -1 for main.
        start: First op.
        stop: One past the last op.
        trip_count: How often it runs per run of its parent. Of a conditional with n branches each
            is taken to run 1/n of the time.
        is_trip_count_known: Whether the program or the user told it; of a loop that may end early
            only the limit is known.
        manual_axes: Of a shard_map body, the axes it makes manual.
        mesh: The mesh of those axes, as text; "" where it is taken to be the plan's.
        source: `file.py:12 (function)` of the user's line, or "".
    """

    index: int
    kind: Literal["main", "loop", "branch", "manual"]
    parent: int
    start: int
    stop: int
    trip_count: float = 1.0
    is_trip_count_known: bool = True
    manual_axes: tuple[str, ...] = ()
    source: str = ""
    mesh: str = ""


@dataclass(frozen=True, slots=True)
class Graph:
    """A whole program.

    Args:
        groups: Sets of values that must be sharded alike: `shard_alike`, and the copies of one
            value of an unrolled loop body, which one constraint reaches together.
        value_by_path: Every jaxpr path that leads to a value; several may lead to one.
        donated: Positions of the arguments whose buffers the program may reuse.
        hosted: Positions of the arguments that lie in host memory.
        notes: What the exporter had to say: ops kept whole, assumed trip counts.
        num_captured: Leading arguments that are arrays the function closes over.
        batched: Paths of the equations that can run on each device's examples (`shard_map`), where
            the compiler does not partition their op.
        bodies: Beginnings of the paths in shard_map bodies, in those too that are no region as they
            are over axes of one device.
    """

    values: tuple[Value, ...]
    ops: tuple[Op, ...]
    regions: tuple[Region, ...]
    groups: tuple[tuple[int, ...], ...] = ()
    value_by_path: Mapping[str, int] = field(default_factory=dict)
    donated: tuple[int, ...] = ()
    notes: tuple[str, ...] = ()
    num_captured: int = 0
    batched: frozenset[str] = frozenset()
    bodies: tuple[str, ...] = ()
    hosted: tuple[int, ...] = ()
    _consumers: list[list[int]] = field(default_factory=list, init=False, repr=False, compare=False)
    _of_kind: dict[OpKind, tuple[Op, ...]] = field(
        default_factory=dict, init=False, repr=False, compare=False
    )
    _on_host: list[frozenset[int]] = field(
        default_factory=list, init=False, repr=False, compare=False
    )

    @property
    def consumers(self) -> list[list[int]]:
        """Per value, the ops that read it, in program order, each once; not to be changed."""
        if not self._consumers:
            self._consumers.extend([] for _ in self.values)
            for op in self.ops:
                for value in dict.fromkeys(op.operands):
                    self._consumers[value].append(op.index)
        return self._consumers

    def maker(self, value: int) -> Op:
        """The op that makes a value."""
        return self.ops[self.values[value].op]

    @property
    def on_host(self) -> frozenset[int]:
        """Values in host memory: what is brought there, and what is made of that."""
        if not self._on_host:
            self._on_host.append(frozenset(_found_on_host(self)))
        return self._on_host[0]

    def is_host_op(self, op: Op) -> bool:
        """True of an op that brings a value to another memory, or works on one in host memory."""
        return bool(op.memory_kind) or not self.on_host.isdisjoint(op.results)

    def is_transfer(self, op: Op) -> bool:
        """True of an op whose operand lies in another memory than it is brought to."""
        is_there = op.memory_kind != DEVICE_MEMORY
        return bool(op.memory_kind) and (op.operands[0] in self.on_host) != is_there

    @property
    def arguments(self) -> tuple[Op, ...]:
        """ARGUMENT ops in argument order; they come first in the program."""
        return self._all(OpKind.ARGUMENT)

    @property
    def results(self) -> tuple[Op, ...]:
        """RESULT ops in result order."""
        return self._all(OpKind.RESULT)

    def _all(self, kind: OpKind) -> tuple[Op, ...]:
        if kind not in self._of_kind:
            self._of_kind[kind] = tuple(op for op in self.ops if op.kind is kind)
        return self._of_kind[kind]

    @property
    def num_matmuls(self) -> int:
        """Matmuls and convolutions."""
        return sum(op.op_class in PRODUCTS for op in self.ops)

    def region_of_read(self, op: Op, position: int) -> int:
        """The region in which an operand is read.

        What a conditional hands on, in its branch; what a hoisted op reads, in the body that it is
        hoisted from: its moves are there too when compilers merge equal ones.
        """
        if op.hoisted_from >= 0:
            return op.hoisted_from
        if op.kind is not OpKind.JOIN or op.name != "case":
            return op.region
        branches = [
            region.index
            for region in self.regions
            if region.kind == "branch" and region.parent == op.region and region.stop <= op.index
        ]
        return branches[position - len(op.operands)]

    def is_read_in_branch(self, op: Op, position: int) -> bool:
        """True where a branch reads what is made outside its conditional."""
        home, region = self.maker(op.operands[position]).region, self.region_of_read(op, position)
        while region not in (home, -1):
            if self.regions[region].kind == "branch":
                return True
            region = self.regions[region].parent
        return False

    def manual_axes(self, region: int) -> frozenset[str]:
        """Mesh axes that ops in `region` may not use, because a shard_map around them does."""
        axes: set[str] = set()
        while region >= 0:
            axes.update(self.regions[region].manual_axes)
            region = self.regions[region].parent
        return frozenset(axes)

    def is_in_loop(self, region: int) -> bool:
        """True where a region is the body of a loop, or inside one."""
        return self.num_loops(region) > 0

    def num_loops(self, region: int) -> int:
        """Loops around the ops of a region."""
        found = 0
        while region >= 0:
            found += self.regions[region].kind == "loop"
            region = self.regions[region].parent
        return found


def _found_on_host(graph: Graph) -> set[int]:
    arguments = graph.arguments
    found = {arguments[place].results[0] for place in graph.hosted}
    todo = [op for op in graph.ops if op.memory_kind not in ("", DEVICE_MEMORY)]
    for op in todo:  # grows as it goes
        for value in op.results:
            if value not in found:
                found.add(value)
                readers = (graph.ops[index] for index in graph.consumers[value])
                todo += [reader for reader in readers if not reader.memory_kind]
    return found
