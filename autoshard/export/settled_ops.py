"""Ops between reshards, settled again: what moves before and after an op is decided at once.

A value that is resharded for each of its readers need not be made as it was meant to be. With every
op's real sources and real readers known, its shardings are chosen anew as long as that is cheaper.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.nested_ops import operations_of
from autoshard.collectives import Agreement, Collective, CollectiveKind, OpTensor
from autoshard.export.collective_ops import insert_collective
from autoshard.mlir_modules import (
    SHARDING,
    MlirOp,
    MlirValue,
    Module,
    next_op,
    per_value_attribute,
    shape_of,
    sharding_attribute,
)
from autoshard.sharding import Sharding

_MAX_ROUNDS = 4
_LEAST_GAIN = 1e-9  # of the cost: less is rounding

Agree = Callable[[MlirOp, list[OpTensor], list[OpTensor], list[Sharding]], Agreement]
Tensor = Callable[[MlirValue, MlirOp], OpTensor]


def settle_again(
    module: Module, *, agree: Agree, tensor: Tensor, is_work: Callable[[MlirOp], bool]
) -> None:
    """Choose the shardings of ops next to reshards anew, until no op gets cheaper.

    Args:
        module: Every op's operands and results agree; changed in place.
        agree: The cheapest agreement of an op with these operands and results, given the one it
            has.
        tensor: A value of an op as `collectives.agree` takes it.
        is_work: Whether an op works on tensors, by a rule or as a whole.
    """
    settler = _Settler(agree, tensor)
    for _ in range(_MAX_ROUNDS):
        _merge_reshards(module)
        changed = False
        # Ops that work are never erased on the way; reshards and sums between them are.
        for op in [found for found in operations_of(module.operation) if is_work(found)]:
            if _is_next_to_reshard(op):
                changed = settler.settle(op) or changed
        if not changed:
            return
    _merge_reshards(module)


def _is_next_to_reshard(op: MlirOp) -> bool:
    if any(_is_reshard(value) for value in op.operands):
        return True
    return any(
        use.owner.operation.name == "sdy.reshard"
        for value in op.results
        for use in _summed(value).uses
    )


def _is_reshard(value: MlirValue) -> bool:
    return not isinstance(value.owner, ir.Block) and value.owner.operation.name == "sdy.reshard"


def _summed(value: MlirValue) -> MlirValue:
    """A result after the all-reduce that adds it up, if there is one."""
    uses = list(value.uses)
    if len(uses) == 1 and uses[0].owner.operation.name == "sdy.all_reduce":
        return uses[0].owner.operation.results[0]
    return value


def _merge_reshards(module: Module) -> None:
    """Let reshards read what the reshard before them reads, and drop those nobody reads."""
    for op in list(operations_of(module.operation)):
        if op.name == "sdy.reshard":
            while _is_reshard(op.operands[0]):
                op.operands[0] = op.operands[0].owner.operation.operands[0]
    for op in reversed(list(operations_of(module.operation))):
        if op.name == "sdy.reshard" and not any(True for _ in op.results[0].uses):
            op.erase()


@dataclass(slots=True)
class _Settler:
    agree: Agree
    tensor: Tensor

    def settle(self, op: MlirOp) -> bool:
        """Choose an op's shardings anew; whether that made anything cheaper."""
        operands = [self._operand(value, op) for value in op.operands]
        results = [self._result(value, op) for value in op.results]
        have = [self.tensor(value, op).sharding for value in (*op.operands, *op.results)]
        now = self.agree(op, operands, results, have)
        if [*now.operands, *now.results] == have:
            return False
        for position, sharding in enumerate(now.operands):
            if shape_of(op.operands[position]):
                self._bring(op, position, sharding)
        self._remake(op, now)
        return True

    def _operand(self, value: MlirValue, op: MlirOp) -> OpTensor:
        """An operand where it comes from; other reshards of it are there to be used too."""
        if not shape_of(value):
            return self.tensor(value, op)
        source = _source(value)
        found = self.tensor(source, op)
        return replace(found, others=tuple(self._copies(source, op)))

    def _copies(self, source: MlirValue, op: MlirOp) -> dict[Sharding, MlirValue]:
        """Reshards of a value before an op that others read as well, by sharding."""
        found: dict[Sharding, MlirValue] = {}
        for use in source.uses:
            reader = use.owner.operation
            if reader.name != "sdy.reshard" or reader.block != op.block:
                continue
            others = [u for u in reader.results[0].uses if u.owner.operation != op]
            if others and _is_before(reader, op):
                sharding = self.tensor(reader.results[0], op).sharding
                found.setdefault(sharding, reader.results[0])
        return found

    def _bring(self, op: MlirOp, position: int, wanted: Sharding) -> None:
        source = _source(op.operands[position])
        if self.tensor(source, op).sharding == wanted:
            op.operands[position] = source
            return
        copies = self._copies(source, op)
        if wanted in copies:
            op.operands[position] = copies[wanted]
            return
        made = sdy.ReshardOp(
            source, sharding_attribute(wanted), ip=ir.InsertionPoint(op), loc=op.location
        )
        op.operands[position] = made.operation.results[0]

    def _result(self, value: MlirValue, op: MlirOp) -> OpTensor:
        """A result where its readers want it."""
        found = self.tensor(value, op)
        if not shape_of(value):
            return found
        wanted: dict[Sharding, None] = {}
        for use in _summed(value).uses:
            reader = use.owner.operation
            at = reader.results[0] if reader.name == "sdy.reshard" else value
            wanted[self.tensor(at, op).sharding] = None
        if not wanted:
            return found
        first, *others = wanted
        return replace(found, sharding=first, others=tuple(others))

    def _remake(self, op: MlirOp, now: Agreement) -> None:
        """Say how results are made, add them up, and bring them to readers that want them so."""
        before = [self.tensor(value, op).sharding for value in op.results]
        op.attributes[SHARDING] = per_value_attribute(list(now.results))
        for value, old, new in zip(op.results, before, now.results, strict=True):
            readers = [(u.owner.operation, u.operand_number) for u in _summed(value).uses]
            summing = _summed(value)
            following = next_op(op)
            made = value
            if now.reduced:
                step = Collective(
                    kind=CollectiveKind.ALL_REDUCE, before=new, after=new, reduced=now.reduced
                )
                made = insert_collective(value, step, following)
            kept: MlirValue | None = None
            for reader, number in readers:
                if reader.name == "sdy.reshard":
                    reader.operands[number] = made
                    if self.tensor(reader.results[0], op).sharding == new:
                        reader.results[0].replace_all_uses_with(made)
                    continue
                if old != new and kept is None and shape_of(value):
                    kept = sdy.ReshardOp(
                        made,
                        sharding_attribute(old),
                        ip=ir.InsertionPoint(following),
                        loc=op.location,
                    ).operation.results[0]
                reader.operands[number] = made if kept is None else kept
            if summing != value:
                summing.owner.operation.erase()


def _source(value: MlirValue) -> MlirValue:
    while _is_reshard(value):
        value = value.owner.operation.operands[0]
    return value


def _is_before(first: MlirOp, second: MlirOp) -> bool:
    for op in first.block.operations:
        if op.operation == first:
            return True
        if op.operation == second:
            return False
    return False
