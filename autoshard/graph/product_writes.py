"""What products write: their result, or what element-wise ops after them make of it at once."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence, Set
from itertools import takewhile
from math import prod
from typing import NamedTuple

from autoshard.backends import FusionPolicy
from autoshard.graph.dataflow import trace_forward
from autoshard.graph.last_uses import loop_of
from autoshard.graph.op_traits import (
    ELEMENTWISE,
    RENAMES,
    is_elementwise,
    is_fusible,
    is_widening,
    keeps_order,
    renames,
)
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind
from autoshard.graph.shared_slices import is_sliced_apart
from autoshard.graph.softmax_kernels import SoftmaxKernel, softmax_kernel

_MOST_FUSED = 64
"""Values from a product to where its readers meet. A choice: more than activations take."""


class Written(NamedTuple):
    """Values that products write.

    Args:
        by_value: What is written in the place of each product, and of each value on the way from
            it.
        with_softmax: Products whose kernel takes a softmax of what they make.
    """

    by_value: Mapping[int, int]
    with_softmax: frozenset[int] = frozenset()


def written_by_products(graph: Graph, fusion: FusionPolicy, num_lanes: int) -> Written:
    """Values that products write, which go on with what reads them.

    A product goes on with the element-wise ops that alone read what is there so far, if all else
    that they need is there before; what adds two products up belongs to the later of them. What
    they make wider is left to its readers, sums among them, unless the product's kernel takes a
    softmax of it, or a softmax reads it that is too long to compute it again.

    Source: layer norms of matmuls and convolutions in bfloat16, alone, scaled and behind a bias, by
        libtpu 0.0.52 for a v5e and a v5p: they write bfloat16 and the sums.

    Args:
        graph: The program.
        fusion: Policy.
        num_lanes: As of `LayoutPolicy`.
    """
    there = there_at(graph)
    ways = [(product, _way(graph, product, there)) for product in _products(graph)]
    made = {value for _, way in ways for value in way}
    written: dict[int, int] = {}
    with_softmax = set()
    for product, whole in reversed(ways):
        way = list(takewhile(lambda value: value not in written, whole))
        kernel = softmax_kernel(graph, product, way, made, fusion, num_lanes)
        if kernel is SoftmaxKernel.OF_MATMUL:
            with_softmax.add(product.index)
        is_stored_wide = fusion.stores_shared_slices and is_sliced_apart(graph, way[-1])
        is_kept_wide = is_stored_wide if kernel is None else kernel is not SoftmaxKernel.OF_RESULT
        if not is_kept_wide:
            bits = [graph.values[value].bits for value in way]
            way = way[: 1 + max(place for place, width in enumerate(bits) if width <= bits[0])]
        written.update(dict.fromkeys(way, way[-1]))
    return Written(written, frozenset(with_softmax))


def _way(graph: Graph, product: Op, there: Sequence[int]) -> list[int]:
    """The result of a product, and what it goes on to."""
    way = [product.results[0]]
    while (made := _goes_on(graph, way[-1], product, there)) is not None:
        way.append(made)
    return way


def narrowed_by_products(graph: Graph) -> dict[int, int]:
    """Values that matmuls write in their own place and in that of each value on the way to them.

    A matmul goes on with element-wise ops that alone read what is there so far, and besides only
    single numbers, arguments and carries, in any order of dimensions.

    Source: XLA's `GemmFusion`, which fuses a dot with its users; 36 matmuls in float32 with what
        follows them compiled for an H100 (CUDA plugin 0.10.2).
    """
    written: dict[int, int] = {}
    for product in _products(graph):
        if product.op_class is not OpClass.MATMUL:
            continue
        way = [product.results[0]]
        while (made := _only_made(graph, way[-1], product)) is not None:
            way.append(made)
        bits = [graph.values[value].bits for value in way]
        end = max(place for place, width in enumerate(bits) if width == min(bits))
        if bits[end] < bits[0]:
            written.update(dict.fromkeys(way[: end + 1], way[end]))
    return written


def products_by_written(graph: Graph, written: Mapping[int, int]) -> dict[int, int]:
    """Products, by what is written in their place."""
    made = ((product.results[0], product.index) for product in _products(graph))
    return {written[value]: product for value, product in made if value in written}


def computed_with_products(
    graph: Graph, written: Mapping[int, int], updated: Mapping[int, Sequence[int]]
) -> dict[int, tuple[int, ...]]:
    """By product, the element-wise ops whose results it writes."""
    found = {}
    for product in _products(graph):
        made = product.results[0]
        last = graph.maker(written.get(made, made)).index
        after = updated.get(made, (last,) if last != product.index else ())
        found[product.index] = tuple(after)
    return found


def updating_products(graph: Graph) -> dict[int, list[int]]:
    """What is computed after products that are the gradient of a state, its update among it.

    One goes on with all the element-wise ops that follow it, if what they make are results of the
    program. It waits for all else that they read (`update_waits`): of several products that an
    update adds up, the last one goes on.
    """
    found: dict[int, list[int]] = {}
    taken: set[int] = set()
    for product in reversed(list(_products(graph))):
        if product.op_class is OpClass.MATMUL:
            made = product.results[0]
            after = _computed_after(graph, made)
            if after and taken.isdisjoint(after):
                found[made] = after
                taken.update(after)
    return found


def update_waits(graph: Graph, updated: Mapping[int, Sequence[int]]) -> dict[int, int]:
    """By product that computes an update, a later op that it waits for.

    Where that makes a loop's result, it is the op after the loop.

    Args:
        graph: The program.
        updated: As of `updating_products`.
    """
    there = there_at(graph)
    found = {}
    for made, after in updated.items():
        product = graph.maker(made).index
        others = read_beside(graph, product, after)
        last = max((there[value] for value in others), default=0)
        if last > product:
            loop = loop_of(graph, graph.ops[last])
            found[product] = loop.stop if loop else last
    return found


def read_beside(graph: Graph, product: int, after: Sequence[int]) -> set[int]:
    """Values that ops computed with a product read, and that none of these makes.

    Args:
        graph: The program.
        product: Its op index.
        after: The ops that are computed with it.
    """
    ops = [graph.ops[index] for index in (product, *after)]
    made = {value for op in ops for value in op.results}
    return {value for op in ops[1:] for value in op.operands} - made


def updates(
    graph: Graph, classes: Set[OpClass] = ELEMENTWISE, *, in_loops: bool = False
) -> frozenset[int]:
    """Ops of some classes that lead to results of the program, and to nothing else.

    Args:
        graph: The program.
        classes: Of the ops.
        in_loops: Ops of loop bodies are among them.
    """
    found: set[int] = set()
    for op in reversed(graph.ops):
        if op.kind is OpKind.COMPUTE and op.op_class in classes and (in_loops or op.region == 0):
            readers = [graph.ops[index] for value in op.results for index in graph.consumers[value]]
            if all(reader.kind is OpKind.RESULT or reader.index in found for reader in readers):
                found.add(op.index)
    return frozenset(found)


def _products(graph: Graph) -> Iterator[Op]:
    return (op for op in graph.ops if op.op_class in PRODUCTS and len(op.results) == 1)


def there_at(graph: Graph) -> list[int]:
    """Per value, the last op that has to be run for it and is fused with nothing."""
    there = [0] * len(graph.values)
    for op in graph.ops:
        time = op.index
        if op.kind is OpKind.FREE or is_fusible(op):
            time = max((there[value] for value in op.operands), default=0)
        for value in op.results:
            there[value] = time
    return there


def _goes_on(graph: Graph, value: int, product: Op, there: Sequence[int]) -> int | None:
    """The value in which the element-wise readers of a value meet, if a product computes them all.

    All that it is computed from besides is there before the product runs. A transpose that alone
    reads the value is on the way to what is computed of it, unless that is turned again or ends in
    new states (`updating_products`): products write in any order.
    """
    readers = [graph.ops[index] for index in graph.consumers[value]]
    if len(readers) == 1 and readers[0].name == "transpose" and readers[0].region == product.region:
        (turned,) = readers[0].results
        after = _goes_on(graph, turned, product, there)
        if after is None or renames(graph.maker(after)) or _computed_after(graph, value):
            return None
        ends = trace_forward(graph, turned, is_elementwise)
        return None if any(end.name == "transpose" for end in ends) else turned
    return meeting(
        graph,
        value,
        product.region,
        lambda reader, made: all(
            there[other] < product.index for other in reader.operands if other not in made
        ),
    )


def meeting(
    graph: Graph, value: int, region: int, may_read: Callable[[Op, Set[int]], bool]
) -> int | None:
    """The value in which all readers of a value meet, through element-wise ops of its shape.

    Args:
        graph: The program.
        value: That is read.
        region: That the readers stand in.
        may_read: Of a reader and what is made so far: whether it may be on the way.
    """
    made = {value}
    waiting = {*graph.consumers[value]}
    while waiting:
        index = min(waiting)
        waiting.remove(index)
        reader = graph.ops[index]
        if len(made) > _MOST_FUSED or not _is_beside(graph, value, region, reader):
            return None
        if not may_read(reader, made):
            return None
        (result,) = reader.results
        if all(made.isdisjoint(graph.ops[other].operands) for other in waiting):
            return result
        made.add(result)
        waiting.update(graph.consumers[result])
    return None


def _only_made(graph: Graph, value: int, product: Op) -> int | None:
    """The value that the only reader of one makes of it, if a matmul can write that."""
    readers = [graph.ops[index] for index in graph.consumers[value]]
    if len(readers) != 1 or not _is_beside(graph, value, product.region, readers[0]):
        return None
    (reader,) = readers
    is_ready = all(_is_there(graph, other) for other in reader.operands if other != value)
    return reader.results[0] if is_ready and not is_widening(graph, reader.results[0]) else None


def _is_there(graph: Graph, value: int) -> bool:
    """True for a single number, an argument or a carry, repeated along other dimensions or not."""
    op = graph.maker(value)
    if op.name in ("broadcast_in_dim", "reshape") and op.kind is OpKind.COMPUTE:
        return _is_there(graph, op.operands[0])
    is_given = op.kind in (OpKind.ARGUMENT, OpKind.FREE) or op.name == "while"
    return is_given or not graph.values[value].shape


def _is_beside(graph: Graph, value: int, region: int, reader: Op) -> bool:
    """True for an element-wise op of a region that makes one value, of another one's shape.

    So is one that adds, drops or moves dimensions of size 1.
    """
    if reader.kind is not OpKind.COMPUTE or reader.region != region or len(reader.results) != 1:
        return False
    if not (is_elementwise(reader) or keeps_order(graph, reader)):
        return False
    shapes = (graph.values[one].shape for one in (reader.results[0], value))
    made, known = ([size for size in shape if size > 1] for shape in shapes)
    return made == known


def _computed_after(graph: Graph, made: int) -> list[int]:
    """All that is computed from a value, if it is element-wise and ends in results; else nothing.

    The value itself, turned or not, is no result.
    """
    num_elements = prod(graph.values[made].shape)
    found: dict[int, bool] = {}  # by op, whether it only turns the value
    todo = [(index, True) for index in graph.consumers[made]]
    while todo:
        index, is_value = todo.pop()
        reader = graph.ops[index]
        if reader.kind is OpKind.RESULT and not is_value:
            continue
        is_turned = is_value and reader.name in RENAMES
        is_fused = reader.op_class is OpClass.ELEMENTWISE or is_turned
        if reader.kind is not OpKind.COMPUTE or not is_fused:
            return []
        if prod(graph.values[reader.results[0]].shape) != num_elements:
            return []
        if index not in found:
            found[index] = is_turned
            todo += [(after, is_turned) for after in graph.consumers[reader.results[0]]]
    return sorted(found)
