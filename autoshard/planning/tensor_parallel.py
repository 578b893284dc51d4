"""Tensor parallelism as one writes it by hand, read off the program: columns, then rows.

Shoeybi et al. (2019), "Megatron-LM", cut the weights of two products that follow one another so
that nothing has to be sent in between: the first by columns, the second by rows, with only work by
element (or by attention head) in between; and the vocabulary of embedding and head.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field

from autoshard.graph.dimension_classes import DimClasses
from autoshard.graph.program import PRODUCTS, Graph, Op, OpClass, OpKind

_WAIST = 4
"""How much lighter than its rival a class is that gives way, in bytes of weights."""


@dataclass(slots=True)
class _Roles:
    """What the dimension classes of a program are to its products with parameters.

    Args:
        weights: Per class, the parameters that have it where their first product reads them; the
            classes in the order of those products.
        columns: Classes that such a product makes.
        rows: Those that one sums up.
        dealt: Those that one runs along with: experts, each with a product of its own.
        square: Rows and columns of one and the same weight.
        mixed: Those that something else sums up, for each example: norms, scores of attention.
        spoiled: Rows that were mixed before.
        looked_up: Rows of tables that parameters are.
    """

    weights: dict[int, set[int]] = field(default_factory=lambda: defaultdict(set))
    columns: set[int] = field(default_factory=set)
    rows: set[int] = field(default_factory=set)
    dealt: set[int] = field(default_factory=set)
    square: set[int] = field(default_factory=set)
    mixed: set[int] = field(default_factory=set)
    spoiled: set[int] = field(default_factory=set)
    looked_up: set[int] = field(default_factory=set)

    @property
    def inner(self) -> set[int]:
        """Made by one product, summed up by the next, untouched in between."""
        return (self.columns & self.rows) - self.square - self.spoiled

    @property
    def experts(self) -> set[int]:
        """Dealt out to more than one weight: each expert's way in and out."""
        return {c for c in self.dealt if len(self.weights[c]) > 1}

    @property
    def vocabularies(self) -> set[int]:
        """Looked up by token, or made last and then summed up by a softmax."""
        return (self.looked_up | (self.columns & self.mixed)) - self.rows


@dataclass(frozen=True, slots=True)
class TensorParallel:
    """Where a program is cut for tensor parallelism.

    Args:
        cut: The dimension classes to cut.
        batch: The dimension classes of the examples.
        classes: Per value, the class of each of its dimensions.
    """

    cut: frozenset[int]
    batch: frozenset[int]
    classes: DimClasses


def shared_arguments(graph: Graph, classes: DimClasses) -> set[int]:
    """Positions of the arguments that all examples share, as far as products tell.

    Without products nothing is taken for shared.

    Args:
        graph: The program.
        classes: Of its dimensions.
    """
    arguments = [classes[op.results[0]] for op in graph.arguments]
    examples = examples_class(graph, classes, range(len(arguments)))
    if examples is None:
        return set()
    return {position for position, own in enumerate(arguments) if examples not in own}


def examples_class(graph: Graph, classes: DimClasses, batch: Iterable[int]) -> int | None:
    """The class of the dimension that examples are along, as far as products tell.

    It is along the first dimension of some argument: the one whose class is in the results of most
    products; of several, one that is never a further dimension (widths are, of other weights).

    Args:
        graph: The program.
        classes: Of its dimensions.
        batch: Positions of the arguments that may hold examples.
    """
    arguments = [classes[graph.arguments[position].results[0]] for position in batch]
    made = [frozenset(classes[op.results[0]]) for op in graph.ops if op.op_class in PRODUCTS]
    firsts = [own[0] for own in arguments if own]
    if not firsts or not made:
        return None
    inner = {found for own in arguments for found in own[1:]}
    return max(firsts, key=lambda first: (sum(first in dims for dims in made), first not in inner))


def tensor_parallel(
    graph: Graph, classes: DimClasses, parameters: Collection[int], num_devices: int
) -> TensorParallel | None:
    """Find what Megatron would cut over `num_devices`.

    Where a weight could be cut along two of its dimensions, experts come before widths, and else
    the first product counts; but a narrow waist (the rank of an adapter) gives way.

    Args:
        graph: The program.
        classes: Of its dimensions.
        parameters: Positions of the arguments that are parameters; the others are a batch, cut
            along their first dimension.
        num_devices: Along the mesh axis to cut by.

    Returns:
        None where no product makes what the next one sums up, and no experts are dealt out.
    """
    arguments = [op.results[0] for op in graph.arguments]
    batch = frozenset(
        classes[value][0]
        for position, value in enumerate(arguments)
        if position not in parameters and classes[value]
    )
    roles = _roles(graph, classes, [arguments[i] for i in sorted(parameters)], batch)

    order = {found: place for place, found in enumerate(roles.weights)}
    num_bytes = {
        found: sum(graph.values[value].num_bytes for value in weights)
        for found, weights in roles.weights.items()
    }
    middle = roles.inner | roles.experts

    def rank(found: int) -> tuple[bool, bool, int]:
        rivals = [other for other in middle if roles.weights[other] & roles.weights[found]]
        gives_way = any(num_bytes[other] > _WAIST * num_bytes[found] for other in rivals)
        return gives_way, found not in roles.experts, order[found]

    divided = {
        dim_class
        for value in arguments
        for dim_class, size in zip(classes[value], graph.values[value].shape, strict=True)
        if size % num_devices == 0
    }
    cut: set[int] = set()
    taken: set[int] = set()
    middle &= divided - batch
    ends = (roles.vocabularies & divided) - batch - middle
    for found in (*sorted(middle, key=rank), *sorted(ends, key=order.__getitem__)):
        if taken.isdisjoint(roles.weights[found]):
            cut.add(found)
            taken |= roles.weights[found]
    if middle.isdisjoint(cut):
        return None
    return TensorParallel(frozenset(cut), batch, classes)


def _roles(
    graph: Graph, classes: DimClasses, parameters: list[int], batch: frozenset[int]
) -> _Roles:
    """Roles in the forward pass: the first product that reads a parameter tells what it is."""
    roles = _Roles()
    sources = _Sources(graph, {value: frozenset({value}) for value in parameters})
    told: set[int] = set()
    for op in graph.ops:
        if op.kind is not OpKind.COMPUTE or op.rule is None:
            continue
        of_examples = [not batch.isdisjoint(classes[value]) for value in op.operands]
        if op.op_class in PRODUCTS and len(op.operands) == 2 and sum(of_examples) == 1:
            weight = of_examples.index(False)
            new = sources.of(op.operands[weight]) - told
            if new:
                told |= new
                _note_product(roles, classes, op, weight, new)
        elif (
            op.op_class is OpClass.GATHER
            and any(of_examples)
            and not of_examples[0]
            and (table := sources.of(op.operands[0]))
        ):
            _note_table(roles, classes, op, table)
        elif any(of_examples):
            summed = _summed(op, classes, of_examples)
            roles.mixed |= summed
    return roles


def _note_product(
    roles: _Roles, classes: DimClasses, op: Op, weight: int, parameters: frozenset[int]
) -> None:
    """What a product of the batch with one weight makes of the weight's dimensions."""
    assert op.rule is not None
    with_batch = {factor for dim in op.rule.operands[1 - weight] for factor in dim}
    own = op.rule.majors[weight]
    rows, columns = set(), set()
    for found, factor in zip(classes[op.operands[weight]], own, strict=True):
        if factor is None:
            continue
        roles.weights[found] |= parameters
        if factor in op.rule.reduction:
            rows.add(found)
        elif factor in with_batch:
            roles.dealt.add(found)
        else:
            columns.add(found)
    roles.spoiled |= rows & roles.mixed
    roles.rows |= rows
    roles.columns |= columns
    roles.square |= rows & columns


def _note_table(roles: _Roles, classes: DimClasses, op: Op, parameters: frozenset[int]) -> None:
    """The dimension of a table that the batch looks up: the one the result does not have."""
    kept = {found for value in op.results for found in classes[value]}
    for found in classes[op.operands[0]]:
        if found not in kept:
            roles.looked_up.add(found)
            roles.weights[found] |= parameters


def _summed(op: Op, classes: DimClasses, of_examples: list[bool]) -> set[int]:
    """Classes that an op sums up within each example."""
    assert op.rule is not None
    found = set()
    of_operands = op.rule.majors[: len(op.operands)]
    for value, majors, mine in zip(op.operands, of_operands, of_examples, strict=True):
        found |= {
            dim_class
            for dim_class, factor in zip(classes[value], majors, strict=True)
            if mine and factor in op.rule.reduction
        }
    return found


@dataclass(frozen=True, slots=True)
class _Sources:
    """By value, the parameters it was made from, found where they are asked for.

    All values' together would grow with the square of the depth. A loop's way back is left out.

    Args:
        graph: The program.
        known: What was found; of parameters, themselves.
    """

    graph: Graph
    known: dict[int, frozenset[int]]

    def of(self, value: int) -> frozenset[int]:
        pending = [value]
        while pending:
            if pending[-1] in self.known:
                pending.pop()
                continue
            op = self.graph.maker(pending[-1])
            earlier = [v for v in op.operands if self.graph.values[v].op < op.index]
            unknown = [v for v in earlier if v not in self.known]
            if unknown:
                pending += unknown
            else:
                read = (self.known[v] for v in earlier)
                self.known[pending.pop()] = frozenset[int]().union(*read)
        return self.known[value]
