"""Checks of a graph: every violation is told, each naming the op it is about."""

from __future__ import annotations

from collections.abc import Iterator
from math import isclose, isfinite, prod

from autoshard.graph.program import Graph, Op, OpKind, Region
from autoshard.graph.rule import Dims, Rule

REGION_KINDS = frozenset({"main", "loop", "branch", "manual"})

# By kind: how many operands (least, most) and results an op has; None is any number.
_ARITY: dict[OpKind, tuple[int, int | None, int | None]] = {
    OpKind.ARGUMENT: (0, 0, 1),
    OpKind.RESULT: (1, 1, 0),
    OpKind.COMPUTE: (0, None, None),
    OpKind.FREE: (0, None, None),
    OpKind.JOIN: (1, None, 1),
    OpKind.CONSTRAINT: (1, 1, 1),
    OpKind.ENTER_MANUAL: (1, 1, 1),
    OpKind.LEAVE_MANUAL: (1, 1, 1),
}
_PINNED = frozenset({OpKind.CONSTRAINT, OpKind.ENTER_MANUAL, OpKind.LEAVE_MANUAL})


def verify_graph(graph: Graph) -> list[str]:
    """Everything that is wrong with a graph; an empty list when it is sound.

    Checked: indices name their own place; values are made once, before they are read (but for what
    a loop body returns to its carry) and in a region the reader can see; rules fit the shapes of
    operands and results; regions nest, hold the ops they claim, and their trip counts multiply to
    each op's `repeat`; groups, paths and donated arguments are in range and of equal shapes.
    """
    found = [*_index_violations(graph)]
    if found:  # what follows looks things up by these indices
        return found
    found += _region_violations(graph.regions, len(graph.ops))
    if found:
        return found
    found += _home_violations(graph)
    loops = _loop_by_join(graph)
    checked: set[tuple[object, ...]] = set()
    visible = _Visibility(graph)
    repeats = _repeat_by_region(graph.regions)
    for op in graph.ops:
        of_op = [
            *_op_violations(op, repeats[op.region]),
            *_read_violations(graph, op, loops, visible),
            *_rule_violations(graph, op, checked),
        ]
        found += [f"{describe_op(graph, op)}: {violation}" for violation in of_op]
    found += _table_violations(graph)
    return found


def describe_op(graph: Graph, op: Op) -> str:
    """`op 12 (dot_general -> f32[8, 16] at train.py:30 (loss))`."""
    made = ", ".join(graph.values[v].type_text for v in op.results if 0 <= v < len(graph.values))
    text = f"{op.name} -> {made}" if made else op.name
    return f"op {op.index} ({text} at {op.source})" if op.source else f"op {op.index} ({text})"


def _index_violations(graph: Graph) -> Iterator[str]:
    num_values, num_ops, num_regions = len(graph.values), len(graph.ops), len(graph.regions)
    for place, op in enumerate(graph.ops):
        if op.index != place:
            yield f"{describe_op(graph, op)}: stands at place {place}"
        for value in (*op.operands, *op.results):
            if not 0 <= value < num_values:
                yield f"{describe_op(graph, op)}: no value {value}; there are {num_values}"
        if not 0 <= op.region < num_regions:
            where = describe_op(graph, op)
            yield f"{where}: no region {op.region}; there are {num_regions}"
    makers: dict[int, int] = {}
    for op in graph.ops:
        for value in op.results:
            if value in makers:
                yield f"{describe_op(graph, op)}: value {value} is made by op {makers[value]} too"
            makers[value] = op.index
    for place, made in enumerate(graph.values):
        if made.index != place:
            yield f"value {made.index} stands at place {place}"
        if not 0 <= made.op < num_ops:
            yield f"value {place}: made by op {made.op}, which does not exist"
        elif makers.get(place) != made.op:
            yield f"value {place}: says op {made.op} makes it, which does not list it"
        if any(size < 0 for size in made.shape) or made.bits < 0:
            yield f"value {place}: {made.type_text} of {made.bits} bits has no size"


def _region_violations(regions: tuple[Region, ...], num_ops: int) -> Iterator[str]:
    if not regions:
        yield "there is no main region"
        return
    last_stop: dict[int, int] = {}
    for place, region in enumerate(regions):
        where = f"region {place} ({region.kind})"
        if region.index != place:
            yield f"{where}: calls itself {region.index}"
        if region.kind not in REGION_KINDS:
            yield f"{where}: unknown kind; known are {', '.join(sorted(REGION_KINDS))}"
        if (region.kind == "main") != (place == 0) or (region.parent < 0) != (place == 0):
            yield f"{where}: only the first region is main, and only it has no parent"
            continue
        if not region.parent < place:
            yield f"{where}: its parent {region.parent} does not come before it"
            continue
        if not (isfinite(region.trip_count) and region.trip_count >= 0):
            yield f"{where}: runs {region.trip_count} times"
        if region.manual_axes and region.kind != "manual":
            yield f"{where}: has manual axes {', '.join(region.manual_axes)}"
        if place == 0:
            if (region.start, region.stop) != (0, num_ops):
                yield f"{where}: spans {region.start} to {region.stop} of {num_ops} ops"
            continue
        outer = regions[region.parent]
        if not outer.start <= region.start <= region.stop <= outer.stop:
            yield (
                f"{where}: {region.start} to {region.stop} is not inside its parent's"
                f" {outer.start} to {outer.stop}"
            )
        if region.start < last_stop.get(region.parent, 0):
            yield f"{where}: starts at {region.start}, inside the region before it"
        last_stop[region.parent] = region.stop


def _home_violations(graph: Graph) -> Iterator[str]:
    home = [0] * len(graph.ops)
    for region in graph.regions:  # a parent comes before what is inside it
        home[region.start : region.stop] = [region.index] * (region.stop - region.start)
    for op, region_index in zip(graph.ops, home, strict=True):
        if op.region != region_index:
            where = describe_op(graph, op)
            yield f"{where}: says region {op.region}, stands in region {region_index}"


def _repeat_by_region(regions: tuple[Region, ...]) -> list[float]:
    repeats: list[float] = []
    for region in regions:
        outer = repeats[region.parent] if region.parent >= 0 else 1.0
        repeats.append(outer * region.trip_count)
    return repeats


def _op_violations(op: Op, repeat: float) -> Iterator[str]:
    least, most, num_results = _ARITY[op.kind]
    if len(op.operands) < least or (most is not None and len(op.operands) > most):
        yield f"{op.kind.value} with {len(op.operands)} operands"
    if num_results is not None and len(op.results) != num_results:
        yield f"{op.kind.value} with {len(op.results)} results"
    if (op.kind in _PINNED) != bool(op.pinned):
        yield f"{op.kind.value} {'without' if not op.pinned else 'with'} a written sharding"
    if not (isfinite(op.flops) and op.flops >= 0):
        yield f"does {op.flops} floating-point operations"
    if not (isfinite(op.repeat) and op.repeat >= 0):
        yield f"repeats {op.repeat} times"
    elif not isclose(op.repeat, repeat, rel_tol=1e-9):
        yield f"repeats {op.repeat:g} times, the regions around it {repeat:g}"
    if op.operand_repeats:
        if len(op.operand_repeats) != len(op.operands):
            yield f"{len(op.operand_repeats)} operand repeats for {len(op.operands)} operands"
        if not all(isfinite(r) and r >= 0 for r in op.operand_repeats):
            yield f"operand repeats {op.operand_repeats}"


# -- reads -----------------------------------------------------------------------------------------


class _Visibility:
    def __init__(self, graph: Graph) -> None:
        self.regions = graph.regions
        self._ancestors: dict[int, frozenset[int]] = {}

    def ancestors(self, region: int) -> frozenset[int]:
        found = self._ancestors.get(region)
        if found is None:
            parent = self.regions[region].parent
            found = (self.ancestors(parent) if parent >= 0 else frozenset()) | {region}
            self._ancestors[region] = found
        return found


def _loop_by_join(graph: Graph) -> dict[int, Region]:
    """By op index of each loop carry, the region of its loop: the next one after it."""
    loops: dict[int, Region] = {}
    for region in graph.regions:
        if region.kind != "loop":
            continue
        index = region.start - 1
        while index >= 0 and _is_carry(graph.ops[index], region.parent):
            loops.setdefault(index, region)
            index -= 1
    return loops


def _is_carry(op: Op, region: int) -> bool:
    return op.kind is OpKind.JOIN and op.name == "while" and op.region == region


def _read_violations(
    graph: Graph, op: Op, loops: dict[int, Region], visible: _Visibility
) -> Iterator[str]:
    inside = visible.ancestors(op.region)
    loop = loops.get(op.index)
    for position, value in enumerate(op.operands):
        producer = graph.maker(value)
        if loop is not None and position > 0:
            seen = visible.ancestors(producer.region)
            is_ours = loop.index in seen or producer.index < loop.start
            if not is_ours:
                yield f"operand {position} is made by op {producer.index}, outside its loop"
            continue
        if producer.index >= op.index:
            yield f"operand {position} is made later, by op {producer.index}"
        if producer.region in inside:
            continue
        leaves = op.kind is OpKind.LEAVE_MANUAL or (op.kind is OpKind.JOIN and op.name == "case")
        if not leaves or op.region not in visible.ancestors(producer.region):
            yield f"operand {position} is made in region {producer.region}, hidden from it"


# -- rules -----------------------------------------------------------------------------------------


def _rule_violations(graph: Graph, op: Op, checked: set[tuple[object, ...]]) -> Iterator[str]:
    if (op.rule is None) != (op.kind is OpKind.FREE):
        yield f"{op.kind.value} {'without' if op.rule is None else 'with'} a sharding rule"
    if op.rule is None:
        return
    operands = tuple(graph.values[v].shape for v in op.operands)
    results = tuple(graph.values[v].shape for v in op.results)
    # At the border of a shard_map body the rule speaks of the local tensor.
    if op.kind is OpKind.ENTER_MANUAL:
        operands = results
    elif op.kind is OpKind.LEAVE_MANUAL:
        results = operands
    key = (op.rule, operands, results)
    if key in checked:
        return
    violations = tuple(rule_violations(op.rule, operands, results))
    if not violations:
        checked.add(key)
    yield from violations


def rule_violations(
    rule: Rule,
    operand_shapes: tuple[tuple[int, ...], ...],
    result_shapes: tuple[tuple[int, ...], ...],
) -> Iterator[str]:
    """What keeps a rule from describing an op on tensors of these shapes."""
    num_factors = len(rule.factor_sizes)
    for label in ("reduction", "need_replication", "permutation"):
        strange = sorted(f for f in getattr(rule, label) if not 0 <= f < num_factors)
        if strange:
            yield f"{label} names factors {strange}, the rule has {num_factors}"
            return
    loose = rule.need_replication | rule.permutation
    for role, tensors, shapes in (
        ("operand", rule.operands, operand_shapes),
        ("result", rule.results, result_shapes),
    ):
        if len(tensors) != len(shapes):
            yield f"the rule has {len(tensors)} {role}s, the op {len(shapes)}: {rule}"
            continue
        for position, (dims, shape) in enumerate(zip(tensors, shapes, strict=True)):
            for violation in _tensor_violations(rule.factor_sizes, loose, dims, shape):
                yield f"{role} {position}: {violation}: {rule}"
    for position, dims in enumerate(rule.results):
        summed = sorted(rule.reduction.intersection(f for dim in dims for f in dim))
        if summed:
            yield f"result {position} keeps summed factors {summed}: {rule}"
    if rule.results:
        read = {f for dims in rule.operands for dim in dims for f in dim}
        made = {f for dims in rule.results for dim in dims for f in dim}
        big = {f for f, size in enumerate(rule.factor_sizes) if size > 1}
        lost = sorted((read & big) - made - rule.reduction - loose)
        if lost:
            yield f"factors {lost} are neither kept nor summed: {rule}"


def _tensor_violations(
    sizes: tuple[int, ...], loose: frozenset[int], dims: Dims, shape: tuple[int, ...]
) -> Iterator[str]:
    if len(dims) != len(shape):
        yield f"the rule has {len(dims)} dimensions, the tensor {len(shape)}"
        return
    seen: set[int] = set()
    for dim, (factors, size) in enumerate(zip(dims, shape, strict=True)):
        if any(not 0 <= factor < len(sizes) for factor in factors):
            yield f"dimension {dim} names factors {list(factors)} of {len(sizes)}"
            return
        twice = sorted(seen.intersection(factors))
        if twice or len(set(factors)) < len(factors):
            yield f"dimension {dim} uses factors {twice or list(factors)} again"
        seen.update(factors)
        # What is kept whole or exchanged may be larger or smaller than its factor: a slice, a pad.
        # So may what has a factor of 1, which nothing cuts: the taps of a dilated convolution.
        covered = prod([sizes[f] for f in factors])
        if covered not in (size, 1) and not loose.intersection(factors):
            yield f"dimension {dim} has size {size}, its factors make {covered}"


# -- tables ----------------------------------------------------------------------------------------


def _table_violations(graph: Graph) -> Iterator[str]:
    num_values = len(graph.values)
    for number, group in enumerate(graph.groups):
        outside = [v for v in group if not 0 <= v < num_values]
        if outside:
            yield f"group {number}: values {outside} do not exist"
        elif len({graph.values[v].shape for v in group}) > 1:
            types = ", ".join(graph.values[v].type_text for v in group)
            yield f"group {number}: members of different shapes: {types}"
    for path, index in graph.value_by_path.items():
        if not 0 <= index < num_values:
            yield f"path {path}: value {index} does not exist"
    for value in graph.values:
        if value.path and value.path not in graph.value_by_path:
            yield f"value {value.index}: no value is known by its path {value.path}"
    num_arguments = len(graph.arguments)
    if not 0 <= graph.num_captured <= num_arguments:
        yield f"{graph.num_captured} arguments are captured of {num_arguments}"
    for position in graph.donated:
        if not graph.num_captured <= position < num_arguments:
            yield (
                f"donated argument {position} does not exist; the caller's are"
                f" {graph.num_captured} to {num_arguments - 1}"
            )
