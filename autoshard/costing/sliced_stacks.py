"""Stacks of which a loop reads a slice in each run."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping
from dataclasses import dataclass, field

from autoshard.graph.buffers import Buffers
from autoshard.graph.dataflow import trace_back, trace_forward
from autoshard.graph.last_uses import carry_stop
from autoshard.graph.op_traits import ROW_MAJOR, is_constraint, is_elementwise
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

_SLICE = "dynamic_slice"


@dataclass(frozen=True, slots=True)
class SlicedStacks:
    """How often loops read slices of stacks, for each time that one is made.

    Args:
        as_stacked: By op with which a loop reads what another one stacked, no product between them,
            how often its products slice that.
        turned: By stack that is transposed before a loop, so that the dimension sliced was none of
            the leading one, how often other ops slice it.
        of_rows: By op with which a loop reads a stack of three dimensions that a matmul makes, how
            often other ops slice it.
    """

    as_stacked: Mapping[int, float] = field(default_factory=dict)
    turned: Mapping[int, float] = field(default_factory=dict)
    of_rows: Mapping[int, float] = field(default_factory=dict)

    @classmethod
    def of(cls, graph: Graph, buffers: Buffers) -> SlicedStacks:
        """Look at the loops of a program."""
        as_stacked: defaultdict[int, float] = defaultdict(float)
        turned: defaultdict[int, float] = defaultdict(float)
        of_rows: defaultdict[int, float] = defaultdict(float)
        for op in graph.ops:
            if op.op_class in PRODUCTS and op.repeat > 1:
                for carry in _sliced(graph, buffers, op):
                    if _is_of_loop_before(graph, carry):
                        as_stacked[carry.index] += op.repeat / carry.repeat
            elif op.name == _SLICE and op.repeat > 1 and not _is_for_product(graph, op):
                carry = graph.maker(op.operands[0])
                if _is_unchanged(carry):
                    stack, times = carry.operands[0], op.repeat / carry.repeat
                    if _is_of_rows(graph, stack):
                        of_rows[carry.index] += times
                    elif _is_turned(graph, stack):
                        turned[stack] += times
        return cls(dict(as_stacked), dict(turned), dict(of_rows))


def _is_unchanged(op: Op) -> bool:
    """True where a loop reads with it what it leaves unchanged."""
    return op.kind is OpKind.JOIN and len(op.operands) == 1


def _is_of_loop_before(graph: Graph, carry: Op) -> bool:
    """True where a loop reads what one stacked after which no product is run."""
    maker = graph.maker(carry.operands[0])
    if maker.kind is not OpKind.JOIN or len(maker.operands) == 1:
        return False
    between = graph.ops[carry_stop(graph, maker) : carry.index]
    return all(op.op_class not in PRODUCTS for op in between)


def _is_turned(graph: Graph, stack: int) -> bool:
    maker = graph.maker(stack)
    if maker.name != "transpose" or maker.rule is None:
        return False
    return maker.rule.operands[0][0] != maker.rule.results[0][0]


def _is_of_rows(graph: Graph, stack: int) -> bool:
    """True where element by element, transposed or not, a stack is what a matmul makes."""
    shape = graph.values[stack].shape
    if len(shape) != 3:
        return False
    met = trace_back(graph, [stack], lambda op, _: _is_of_elements(op))
    return any(
        graph.maker(value).op_class is OpClass.MATMUL
        and sorted(graph.values[value].shape) == sorted(shape)
        for value in met.frontier
    )


def _is_of_elements(op: Op) -> bool:
    return is_elementwise(op) or is_constraint(op) or op.name == "transpose"


def _is_for_product(graph: Graph, piece: Op) -> bool:
    """True where a product reads a slice, converted or not."""
    readers = trace_forward(graph, piece.results[0], lambda op: op.name in ROW_MAJOR)
    return any(reader.op_class in PRODUCTS for reader in readers)


def _sliced(graph: Graph, buffers: Buffers, product: Op) -> list[Op]:
    """The ops with which its loop reads what a product computes slices of itself."""
    met = trace_back(
        graph,
        product.operands,
        lambda op, value: buffers.is_fused(op, value) and op.name != _SLICE,
    )
    slices = [
        op
        for v in met.frontier
        if (op := graph.maker(v)).name == _SLICE and buffers.is_fused(op, v)
    ]
    carries = {carry.index: carry for op in slices for carry in [graph.maker(op.operands[0])]}
    return [carry for carry in carries.values() if _is_unchanged(carry)]
