"""An independent check of a sharded module: nothing moves unless an op says so.

Shares no code with the passes that insert reshards and collectives: factors are followed through
axis references here, and through mesh parts there.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from jaxlib.mlir import ir

from autoshard.apply.nested_ops import operations_of
from autoshard.collectives import CollectiveKind, check_collective
from autoshard.collectives.steps import braced
from autoshard.errors import ShardingError
from autoshard.export.collective_ops import KIND_BY_OP, read_collective, with_partial
from autoshard.export.op_rules import SOURCES, WITHOUT_RULE, rule_of, write_rules
from autoshard.export.value_shardings import (
    ValueShardings,
    blocks_of_work,
    manual_axes,
    per_value,
)
from autoshard.graph.rule import Dims, Rule
from autoshard.mlir_modules import (
    MLIR_MAGIC,
    MlirOp,
    MlirValue,
    Module,
    Place,
    functions_of,
    located,
    meshes_of,
    module_context,
    number_of,
    parse_module,
    place_of,
    shape_of,
)
from autoshard.sharding import (
    AxisRef,
    Mesh,
    Sharding,
    format_sharding,
    in_mesh_order,
    merge_axes,
    translate_sharding,
    verify_sharding,
)

Axes = tuple[AxisRef, ...]
_SUMS = frozenset({CollectiveKind.ALL_REDUCE, CollectiveKind.REDUCE_SCATTER})


@dataclass(frozen=True, slots=True)
class Violation:
    """Something a sharded module may not have.

    Args:
        place: Line and column; of a module given as bytecode, or with locations of its own, those
            of the module as it is printed.
        op: The op.
        what: What is wrong with it.
    """

    place: Place
    op: str
    what: str

    def __str__(self) -> str:
        return f"{self.place}: {self.op}: {self.what}"


def verify_module(module: str | bytes) -> tuple[Violation, ...]:
    """Every op of a module whose operands and results do not agree, and every unsound sharding.

    * The operands and results of an op agree where each factor of its sharding rule is cut by the
      same axes in all tensors that have it, no axis cuts two factors, and factors that need
      replication are not cut. An op without a rule has whole operands and results.
    * What a cut sum leaves on each device is added up at once, by an `sdy.all_reduce` or an
      `sdy.reduce_scatter` over those axes, or the result says that it is unreduced.
    * Loops, branches, barriers, calls and manual computations hand values on as they are.
    * The result of a collective lies as follows from its operand.
    * Axes are sound: of the mesh, used once, sub-axes in place.

    Args:
        module: Text or bytecode; all values carry shardings, and one without is whole.

    Returns:
        In program order.

    Raises:
        ExportError: It does not parse.
    """
    with module_context():
        parsed = parse_module(module)
        is_text = isinstance(module, str) or not module.startswith(MLIR_MAGIC)
        ops = operations_of(parsed.operation)
        if not is_text or any(str(op.location)[:6] != 'loc("-' for op in ops):
            parsed, _ = located(parsed)
        return tuple(violations_in(parsed))


def violations_in(module: Module) -> Iterator[Violation]:
    """As `verify_module`, of a parsed module, whose ops get their sharding rules written on."""
    meshes = meshes_of(module)
    grid = next((name for name, mesh in meshes.items() if not mesh.is_maximal), None)
    if grid is None:
        return
    write_rules(module)
    checker = _Checker(ValueShardings(module, grid), meshes, grid)
    for function in functions_of(module).values():
        yield from checker.check_function(function)


@dataclass(slots=True)
class _Checker:
    values: ValueShardings
    meshes: dict[str, Mesh]
    grid: str

    def check_function(self, function: MlirOp) -> Iterator[Violation]:
        block = function.regions[0].blocks[0]
        terminator = list(block.operations)[-1].operation
        for value in block.arguments:
            yield from self._told(function, self._unsound(value, f"argument {number_of(value)}"))
        for position, sharding in enumerate(self.values.wanted(terminator) or ()):
            shape = shape_of(terminator.operands[position])
            if sharding is not None and shape is not None:
                faults = verify_sharding(sharding, self._mesh(sharding), shape)
                yield from self._told(function, (f"result {position}: {f}" for f in faults))
        yield from self._check_blocks(function)

    def _check_blocks(self, holder: MlirOp) -> Iterator[Violation]:
        for block in blocks_of_work(holder):
            for op in [found.operation for found in block.operations]:
                yield from self._told(op, self._faults(op))
                yield from self._check_blocks(op)

    def _told(self, op: MlirOp, faults: Iterator[str]) -> Iterator[Violation]:
        for what in faults:
            yield Violation(place_of(op), op.name, what)

    def _faults(self, op: MlirOp) -> Iterator[str]:
        unsound = [
            fault
            for value in op.results
            for fault in self._unsound(value, f"result {number_of(value)}")
        ]
        yield from unsound
        if unsound:
            return
        wanted = self.values.wanted(op)
        if wanted is not None:
            yield from self._handed_on(op, wanted)
        elif op.name in KIND_BY_OP:
            yield from self._collective(op)
        elif op.name not in WITHOUT_RULE and op.name not in SOURCES:
            yield from self._work(op)

    # -- single shardings -----------------------------------------------------------------------

    def _mesh(self, sharding: Sharding) -> Mesh:
        return sharding.inlined_mesh or self.meshes[sharding.mesh_name]

    def _of(self, value: MlirValue) -> Sharding:
        """The sharding of a value, in axes of the first mesh where those say it."""
        return self._said(self.values.of(value))

    def _said(self, sharding: Sharding) -> Sharding:
        mesh, first = self._mesh(sharding), self.meshes[self.grid]
        if mesh in (first, Mesh(())):
            return sharding
        return translate_sharding(sharding, mesh, first, mesh_name=self.grid) or sharding

    def _unsound(self, value: MlirValue, name: str) -> Iterator[str]:
        sharding, shape = self.values.written(value), shape_of(value)
        if sharding is None or shape is None:
            return
        try:
            for fault in verify_sharding(sharding, self._mesh(sharding), shape):
                yield f"{name}: {fault}"
        except ShardingError as error:
            yield f"{name}: {error.what}"
            return
        taken = _axes_around(value)
        for ref in sharding.axis_refs():
            if ref.name in taken:
                yield f"{name}: axis {ref} is manual here"

    # -- ops that hand values on ----------------------------------------------------------------

    def _handed_on(self, op: MlirOp, wanted: Sequence[Sharding | None]) -> Iterator[str]:
        for position, sharding in enumerate(wanted):
            value = op.operands[position]
            if sharding is None or not shape_of(value):
                continue
            have = self.values.of(value)
            if self._cuts(have) != self._cuts(sharding):
                yield (
                    f"operand {position} is {format_sharding(have)} and is handed on as"
                    f" {format_sharding(sharding)}"
                )

    def _order(self, value: MlirValue) -> tuple[int, ...] | None:
        """The order of the devices that a tensor is cut over, None for a whole one."""
        sharding = self._of(value)
        is_cut = any(dim.axes for dim in sharding.dims)
        return self._mesh(sharding).device_order if is_cut else None

    def _cuts(self, sharding: Sharding) -> tuple[tuple[Axes, ...], frozenset[AxisRef]]:
        sharding = self._said(sharding)
        mesh = self._mesh(sharding)
        dims = tuple(merge_axes(dim.axes, mesh) for dim in sharding.dims)
        return dims, frozenset(sharding.unreduced)

    # -- collectives ----------------------------------------------------------------------------

    def _collective(self, op: MlirOp) -> Iterator[str]:
        operand = self.values.of(op.operands[0])
        mesh = self._mesh(operand)
        partial = with_partial(operand, self._partial(op.operands[0]), mesh)
        step = read_collective(op, partial, mesh)
        yield from check_collective(step, mesh)
        if step.kind in _SUMS:
            summed = step.axes
            told = set(_atoms(operand.unreduced, mesh))
            left = [axis for axis in _atoms(summed, mesh) if axis not in told]
            made = set(_atoms(self._partial(op.operands[0]), mesh))
            if not set(left) <= made:
                yield (
                    f"it sums over {braced(summed)}, and its operand is a partial sum over"
                    f" {braced(merge_axes(in_mesh_order(made | told, mesh), mesh))}"
                )

    def _partial(self, value: MlirValue) -> Axes:
        """Axes over which a value is a partial sum, by the rule of the op that makes it."""
        if isinstance(value.owner, ir.Block):
            return ()
        op = value.owner.operation
        if op.name in WITHOUT_RULE or op.name in SOURCES:
            return ()
        rule, _ = rule_of(op)
        if rule is None or len(rule.operands) != len(op.operands):
            return ()
        found: list[AxisRef] = []
        for operand, dims in zip(op.operands, rule.operands, strict=True):
            if not shape_of(operand):
                continue
            sharding = self._of(operand)
            by_factor, _ = axes_by_factor(dims, sharding, rule, self._mesh(sharding))
            for factor in sorted(rule.reduction):
                found += [axis for axis in by_factor.get(factor, ()) if axis not in found]
        return tuple(found)

    # -- ops with a rule ------------------------------------------------------------------------

    def _work(self, op: MlirOp) -> Iterator[str]:
        tensors = [(f"operand {number}", value) for number, value in enumerate(op.operands)] + [
            (f"result {number}", value) for number, value in enumerate(op.results)
        ]
        if not any(shape_of(value) for _, value in tensors):
            return
        rule, is_summable = rule_of(op)
        counts = (len(op.operands), len(op.results))
        if rule is None or (len(rule.operands), len(rule.results)) != counts:
            for name, value in tensors:
                if shape_of(value) and any(dim.axes for dim in self.values.of(value).dims):
                    yield f"{name} is cut, and nothing tells how to work on a piece of it"
            return
        cuts: dict[int, tuple[str, Axes]] = {}
        orders = {self._order(value) for _, value in tensors if shape_of(value)} - {None}
        if len(orders) > 1:
            yield "its tensors are cut by meshes in different device orders"
        for (name, value), dims in zip(tensors, (*rule.operands, *rule.results), strict=True):
            if not shape_of(value):
                continue
            sharding = self._of(value)
            mesh = self._mesh(sharding)
            by_factor, fault = axes_by_factor(dims, sharding, rule, mesh)
            if fault:
                yield f"{name} {format_sharding(sharding)}: {fault}"
                return
            for factor in {factor for dim in dims for factor in dim}:
                own = merge_axes(by_factor.get(factor, ()), mesh)
                first, axes = cuts.setdefault(factor, (name, own))
                if axes != own:
                    yield (
                        f"{_factor(rule, factor)} is cut by {braced(axes)} in {first} and by"
                        f" {braced(own)} in {name}"
                    )
        yield from self._factors(rule, cuts, is_summable=is_summable)
        yield from self._sums(op, rule, cuts)

    def _factors(
        self, rule: Rule, cuts: dict[int, tuple[str, Axes]], *, is_summable: bool
    ) -> Iterator[str]:
        whole = rule.need_replication | (frozenset() if is_summable else rule.reduction)
        for factor in sorted(whole):
            if cuts.get(factor, ("", ()))[1]:
                yield (
                    f"{_factor(rule, factor)} is cut by {braced(cuts[factor][1])} and has to be"
                    " whole"
                )
        items = sorted(cuts.items())
        for index, (factor, (_, axes)) in enumerate(items):
            for other, (_, others) in items[index + 1 :]:
                for axis in axes:
                    if any(axis.overlaps(used) for used in others):
                        yield (
                            f"{axis} cuts both {_factor(rule, factor)} and {_factor(rule, other)}"
                        )

    def _sums(self, op: MlirOp, rule: Rule, cuts: dict[int, tuple[str, Axes]]) -> Iterator[str]:
        """Whether every result that is a partial sum is added up at once."""
        summed = [axis for f in sorted(rule.reduction) for axis in cuts.get(f, ("", ()))[1]]
        if not summed:
            return
        for value in op.results:
            sharding = self._of(value)
            mesh = self._mesh(sharding) if sharding.dims else next(iter(self.meshes.values()))
            left = set(_atoms(summed, mesh)) - set(_atoms(sharding.unreduced, mesh))
            if not left:
                continue
            shown = braced(merge_axes(in_mesh_order(left, mesh), mesh))
            for use in value.uses:
                reader = use.owner.operation
                if KIND_BY_OP.get(reader.name) not in _SUMS:
                    yield (
                        f"result {number_of(value)} is a partial sum over"
                        f" {shown}, and {reader.name} at"
                        f" {place_of(reader)} reads it before it is added up"
                    )
                    continue
                step = read_collective(reader, sharding, mesh)
                if not left <= set(_atoms((*step.axes, *step.after.unreduced), mesh)):
                    yield (
                        f"result {number_of(value)} is a partial sum over"
                        f" {shown}, and {reader.name} at"
                        f" {place_of(reader)} adds up less"
                    )


def axes_by_factor(
    dims: Dims, sharding: Sharding, rule: Rule, mesh: Mesh
) -> tuple[dict[int, Axes], str]:
    """The axes that cut each factor of a tensor, major to minor.

    An axis that is larger than what is left of a factor is split; the minor-most factor of a
    dimension takes all that remains.

    Returns:
        By factor; and what is wrong where an axis ends inside a factor, else "".
    """
    found: dict[int, list[AxisRef]] = {}
    for number, (factors, dim) in enumerate(zip(dims, sharding.dims, strict=True)):
        queue = list(dim.axes)
        for place, factor in enumerate(factors):
            is_last = place == len(factors) - 1
            room = rule.factor_sizes[factor]
            while queue and (is_last or room > 1):
                axis = queue.pop(0)
                size = axis.size_on(mesh)
                if is_last or room % size == 0:
                    room //= size if not is_last else 1
                    found.setdefault(factor, []).append(axis)
                elif size % room == 0:
                    found.setdefault(factor, []).append(AxisRef(axis.name, axis.pre_size, room))
                    queue.insert(0, AxisRef(axis.name, axis.pre_size * room, size // room))
                    room = 1
                else:
                    return {}, (
                        f"{axis} of size {size} in dimension {number} ends inside a factor of"
                        f" which {room} is left"
                    )
    return {factor: tuple(axes) for factor, axes in found.items()}, ""


def _atoms(axes: Sequence[AxisRef], mesh: Mesh) -> list[AxisRef]:
    """Axes cut into parts of prime size, so that sets of them can be compared."""
    found = []
    for axis in axes:
        pre_size, left = axis.pre_size, axis.size_on(mesh)
        while left > 1:
            prime = next(p for p in range(2, left + 1) if left % p == 0)
            found.append(AxisRef(axis.name, pre_size, prime).canonical(mesh))
            pre_size, left = pre_size * prime, left // prime
    return found


def _axes_around(value: MlirValue) -> frozenset[str]:
    """Axes that manual computations around a value take."""
    taken: frozenset[str] = frozenset()
    block = value.owner if isinstance(value.owner, ir.Block) else value.owner.operation.block
    while True:
        holder = block.owner.operation
        if holder.name == "sdy.manual_computation":
            taken |= manual_axes(holder)
        if holder.name in {"func.func", "builtin.module"}:
            return taken
        block = holder.block


def _factor(rule: Rule, factor: int) -> str:
    """What to call a factor: the dimensions it is of."""
    places = []
    tensors = [("operand", rule.operands), ("result", rule.results)]
    for kind, all_dims in tensors:
        for number, dims in enumerate(all_dims):
            for dim, factors in enumerate(dims):
                if factor in factors:
                    places.append(f"dimension {dim} of {kind} {number}")
    size = math.prod([rule.factor_sizes[factor]])
    return f"the factor of size {size} in {' and '.join(places)}"


__all__ = ["Violation", "axes_by_factor", "per_value", "verify_module", "violations_in"]
