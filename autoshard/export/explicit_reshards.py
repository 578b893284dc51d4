"""Explicit reshards: after this step every op has operands and results that agree by its rule.

Where an op's tensors do not agree, `collectives.agree` says what each should be; the cheaper one
moves. Sums over cut factors become `sdy.all_reduce`, every other move an `sdy.reshard`.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field, replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.nested_ops import operations_of
from autoshard.candidates.partitioner_limits import whole_within_groups
from autoshard.collectives import (
    Agreement,
    Collective,
    CollectiveKind,
    ModulePrices,
    OpTensor,
    ReceivedBytes,
    agree,
)
from autoshard.export.collective_ops import insert_collective
from autoshard.export.module_mesh import ModuleMesh
from autoshard.export.op_rules import (
    SOURCES,
    WITHOUT_RULE,
    rule_of,
    work_of,
    write_rules,
)
from autoshard.export.settled_ops import settle_again
from autoshard.export.value_shardings import (
    HOLDS_PROGRAM,
    ValueShardings,
    blocks_of_work,
)
from autoshard.frontend.op_rules import unsummed
from autoshard.frontend.tensor_types import read_tensor_type
from autoshard.graph.rule import Rule
from autoshard.mlir_modules import (
    RULE,
    SHARDING,
    MlirOp,
    MlirValue,
    Module,
    functions_of,
    per_value_attribute,
    shape_of,
    sharding_attribute,
)
from autoshard.sharding import Sharding

_OWN_RULE = "autoshard_own_rule"
"""Marks ops whose sharding rule was there before; the others lose theirs afterwards."""


def insert_explicit_reshards(module: Module, prices: ModulePrices | None = None) -> None:
    """Insert reshards and all-reduces into a module, in place.

    Values keep their shardings, but for results of ops that are made otherwise and moved after. A
    value without a sharding is taken as whole on every device.

    Args:
        module: Its shardings are taken as closed.
        prices: What moving and working costs; the bytes received if not given.

    Raises:
        ExportError: The module has no mesh, or shardings on several.
    """
    for op in operations_of(module.operation):
        if RULE in op.attributes:
            op.attributes[_OWN_RULE] = ir.UnitAttr.get()
    write_rules(module)
    inserter = _Inserter(module, ModuleMesh(module), prices or ReceivedBytes())
    for function in functions_of(module).values():
        inserter.visit(function)
    settle_again(
        module, agree=inserter.agreement_of, tensor=inserter.tensor, is_work=inserter.is_work
    )
    for op in operations_of(module.operation):
        if _OWN_RULE in op.attributes:
            del op.attributes[_OWN_RULE]
        elif RULE in op.attributes:
            del op.attributes[RULE]


@dataclass(slots=True)
class _Inserter:
    module: Module
    mesh: ModuleMesh
    prices: ModulePrices
    values: ValueShardings = field(init=False)
    _moved: dict[tuple[MlirValue, Sharding], list[tuple[object, MlirValue]]] = field(
        default_factory=dict
    )

    _agreements: dict[Hashable, Agreement] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.values = ValueShardings(self.module, self.mesh.name)

    def visit(self, op: MlirOp) -> None:
        for block in blocks_of_work(op):
            for inner in [found.operation for found in block.operations]:
                self._agree(inner)
                self.visit(inner)

    def _agree(self, op: MlirOp) -> None:
        wanted = self.values.wanted(op)
        if wanted is not None:
            for position, sharding in enumerate(wanted):
                if sharding is not None and shape_of(op.operands[position]):
                    self._bring(op, position, self.mesh.plain(sharding, op))
            return
        if not self.is_work(op):
            return
        found = self._agreement(op)
        for position, sharding in enumerate(found.operands):
            if shape_of(op.operands[position]):
                self._bring(op, position, sharding)
        self._finish(op, found)

    def is_work(self, op: MlirOp) -> bool:
        """Whether an op works on tensors of the program, which have to agree."""
        if op.name in WITHOUT_RULE or op.name in SOURCES or self.values.wanted(op) is not None:
            return False
        if op.block.owner.operation.name not in HOLDS_PROGRAM:
            return False
        return any(shape_of(value) for value in (*op.operands, *op.results))

    def _agreement(self, op: MlirOp) -> Agreement:
        operands = [self.tensor(value, op) for value in op.operands]
        results = [self.tensor(value, op) for value in op.results]
        return self.agreement_of(op, operands, results)

    def agreement_of(
        self,
        op: MlirOp,
        operands: Sequence[OpTensor],
        results: Sequence[OpTensor],
        known: Sequence[Sharding] | None = None,
    ) -> Agreement:
        """The cheapest agreement of an op with such operands and results."""
        rule, is_summable = rule_of(op)
        if rule is not None and not is_summable:
            rule = unsummed(rule)
        rule = _fitting(rule, op)
        if rule is not None and op.name == "stablehlo.convolution":
            rule = whole_within_groups(rule)
        mesh, work = self.mesh.at(op), work_of(op)
        values = list(op.operands)
        operands = tuple(
            replace(tensor, key=values.index(value))
            for tensor, value in zip(operands, values, strict=True)
        )
        key = (rule, mesh, work, operands, tuple(results), tuple(known or ()))
        if key not in self._agreements:
            found = agree(rule, operands, results, mesh, self.prices, work, known=known)
            if rule is not None and _hides_slices(op, operands, found):
                rule = replace(rule, need_replication=rule.need_replication | rule.permutation)
                found = agree(rule, operands, results, mesh, self.prices, work, known=known)
            self._agreements[key] = found
        return self._agreements[key]

    def tensor(self, value: MlirValue, op: MlirOp) -> OpTensor:
        """A value an op reads or makes, as `collectives.agree` takes it."""
        shape, _, bits = read_tensor_type(value.type)
        if not shape:
            return OpTensor(shape=(), bits=bits, sharding=Sharding(mesh_name=self.mesh.name))
        sharding = self.mesh.plain(self.values.of(value), op)
        return OpTensor(shape=shape, bits=bits, sharding=sharding)

    def _bring(self, op: MlirOp, position: int, wanted: Sharding) -> None:
        """Reshard an operand where it is not as wanted."""
        value = op.operands[position]
        have = self.mesh.plain(self.values.of(value), op)
        if have == wanted:
            return
        for block, made in self._moved.get((value, wanted), []):
            if block == op.block:
                op.operands[position] = made
                return
        made = value
        if summed := tuple(axis for axis in have.unreduced if axis not in wanted.unreduced):
            done = replace(have, unreduced=wanted.unreduced)
            step = Collective(
                kind=CollectiveKind.ALL_REDUCE, before=have, after=done, reduced=summed
            )
            made, have = insert_collective(made, step, op), done
        if have != wanted:
            made = _reshard(made, wanted, ir.InsertionPoint(op), op)
        self._moved.setdefault((value, wanted), []).append((op.block, made))
        op.operands[position] = made

    def _finish(self, op: MlirOp, found: Agreement) -> None:
        """Say how results are made, and move them to where they have to be."""
        wanted = [self.tensor(value, op).sharding for value in op.results]
        if list(found.results) == wanted and not found.reduced:
            return
        op.attributes[SHARDING] = per_value_attribute(list(found.results))
        following = _after(op)
        for value, made, goal in zip(op.results, found.results, wanted, strict=True):
            if shape_of(value) is None or (not shape_of(value) and not found.reduced):
                continue
            moved = value
            if found.reduced:
                step = Collective(
                    kind=CollectiveKind.ALL_REDUCE, before=made, after=made, reduced=found.reduced
                )
                moved = insert_collective(moved, step, following)
            if made != goal:
                moved = _reshard(moved, goal, ir.InsertionPoint(following), op)
            if moved != value:
                first = _first_reader(value, moved)
                value.replace_all_uses_except(moved, first)


def _hides_slices(op: MlirOp, operands: Sequence[OpTensor], found: Agreement) -> bool:
    """True of a concatenation that reshards what it reads.

    Shardy lets slices of one value be concatenated in shards, and takes a reshard for no slice.
    """
    return op.name == "stablehlo.concatenate" and any(
        tensor.sharding != wanted for tensor, wanted in zip(operands, found.operands, strict=True)
    )


def _fitting(rule: Rule | None, op: MlirOp) -> Rule | None:
    """The rule, if it speaks of as many tensors as the op has."""
    if rule is None:
        return None
    counts = (len(rule.operands), len(rule.results))
    return rule if counts == (len(op.operands), len(op.results)) else None


def _reshard(value: MlirValue, sharding: Sharding, ip: ir.InsertionPoint, op: MlirOp) -> MlirValue:
    made = sdy.ReshardOp(value, sharding_attribute(sharding), ip=ip, loc=op.location)
    return made.operation.results[0]


def _after(op: MlirOp) -> MlirOp:
    """The op that follows, of which there is always one: blocks end in a terminator."""
    ops: Sequence[MlirOp] = [found.operation for found in op.block.operations]
    return ops[ops.index(op) + 1]


def _first_reader(value: MlirValue, moved: MlirValue) -> MlirOp:
    """The op put right on a value, at the start of what leads to `moved`."""
    reader = moved.owner.operation
    while reader.operands[0] != value:
        reader = reader.operands[0].owner.operation
    return reader
