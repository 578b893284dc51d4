"""A tagged StableHLO module in the form in which XLA's partitioner sees it, with its tags read.

XLA inlines calls, takes what a loop passes through unchanged out of the loop, and expands `chlo`
ops before it propagates shardings. The same is done here, once per program, on the module that
JAX lowers, so that what Shardy's passes say of it is what they say inside XLA.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import prod
from typing import Any, TypeAlias

from jaxlib.mlir import ir

from autoshard.apply.nested_ops import operations_of
from autoshard.errors import ExportError
from autoshard.mlir_modules import name_of, shape_of

MlirValue: TypeAlias = Any
MlirOp: TypeAlias = Any

_TAG = re.compile(r"(?:^|/)T\[((?:[^\[\]]|\[\d+\])+)\](?:/sharding_constraint)?$")
_EQUATION = re.compile(r"(?<![A-Za-z0-9_])E\[((?:[^\[\]]|\[\d+\])+)\]")
_RULE = "sdy.sharding_rule"
_CALLER = "autoshard_equation"
_CALLEE_BY_CALL = {"func.call": "callee", "stablehlo.composite": "decomposition"}
_NO_RULE_IN_XLA = frozenset({"chlo.erf", "chlo.ragged_dot"})
"""XLA turns erf into an op that Shardy has no rule for; propagation stops there in both."""


@dataclass(frozen=True, slots=True)
class Place:
    """A value of the module that a path names.

    Args:
        value: The op result or block argument that holds it.
        block: Where the path sees it; another one than where it is made, for a loop body or branch
            that reads a value from outside.
        readers: Ops and operand numbers that read the value under this path. A value passed to a
            call, or read from outside, has other readers beside those.
        copies: Further places of the path: a loop's body that is unrolled stands there again.
    """

    value: MlirValue
    block: Any
    readers: tuple[tuple[MlirOp, int], ...]
    copies: tuple[Place, ...] = ()

    @property
    def all(self) -> tuple[Place, ...]:
        """This place and its copies."""
        return self, *self.copies

    @property
    def is_from_outside(self) -> bool:
        return bool(block_of(self.value) != self.block)


@dataclass(slots=True)
class FlatModule:
    """The one function of a program, calls inlined and tags taken out.

    Args:
        module: Holds `main`; other functions are left over and unused.
        main: `func.func @main`.
        places: By path, in program order.
    """

    module: Any
    main: MlirOp
    places: dict[str, Place]

    @property
    def entry(self) -> Any:
        return self.main.regions[0].blocks[0]


def flatten_module(module: Any) -> FlatModule:
    """Inline calls, read and remove tags, lift what loops do not change, give rules to chlo ops.

    The module is changed in place.

    Args:
        module: Parsed; a context and a location must be entered.

    Raises:
        ExportError: There is no `main`.
    """
    functions = functions_of(module)
    main = functions.get("main")
    if main is None:
        raise ExportError(
            "the module has no function called main",
            fix="export the program through jax.jit(...).lower or name its entry @main",
        )
    for function in functions.values():
        _split_broadcasts(function)
        _order_as_xla(function)
    inline_calls(main, functions)
    tags, loops = [], []
    for op in operations_of(main):
        if path := tagged_path(op):
            tags.append((path, op))
        elif op.name == "stablehlo.while":
            loops.append(op)
        elif op.name.startswith("chlo."):
            _give_rule(op)
    _lift_loop_invariants(loops, {op.results[0] for _, op in tags})
    return FlatModule(module, main, _strip_tags(tags))


def functions_of(module: Any) -> dict[str, MlirOp]:
    """The functions of a module by name."""
    return {
        ir.StringAttr(op.attributes["sym_name"]).value: op.operation
        for op in module.body.operations
        if op.operation.name == "func.func"
    }


def equation_of(op: MlirOp) -> str:
    """Path of the jaxpr equation an op was lowered from, "" for none.

    An op that a lowering rule put into a loop body or a helper function has none of its own; it
    takes that of the loop or the call.
    """
    while op.name != "func.func":
        if equation := _own_equation(op):
            return equation
        op = op.block.owner.operation
    return ""


def _own_equation(op: MlirOp) -> str:
    if _CALLER in op.attributes:
        return str(ir.StringAttr(op.attributes[_CALLER]).value)
    paths = _EQUATION.findall(name_of(op.location))
    return paths[-1] if paths else ""


def block_of(value: MlirValue) -> Any:
    """The block that makes a value or takes it as an argument."""
    owner = value.owner
    return owner if isinstance(owner, ir.Block) else owner.operation.block


def tensor_shape(value: MlirValue) -> tuple[int, ...]:
    """Empty for what is no tensor, such as a token."""
    return shape_of(value) or ()


def is_inside(block: Any, body: Any) -> bool:
    """Whether a block is `body` or nested in it."""
    while block is not None:
        if block == body:
            return True
        owner = block.owner.operation
        if owner.name == "func.func":
            return False
        block = owner.block
    return False


def inline_calls(main: MlirOp, functions: dict[str, MlirOp]) -> None:
    """Put the ops of called functions in place of the calls, in place.

    Args:
        main: Where to; afterwards it calls nothing.
        functions: All functions by name; those that are called are used up.
    """
    uses: dict[str, int] = {}

    def calls_in(op: MlirOp) -> list[tuple[MlirOp, str]]:
        return [
            (inner, ir.FlatSymbolRefAttr(inner.attributes[attribute]).value)
            for inner in operations_of(op)
            if (attribute := _CALLEE_BY_CALL.get(inner.name)) is not None
        ]

    for function in functions.values():
        for _, name in calls_in(function):
            uses[name] = uses.get(name, 0) + 1
    pending = calls_in(main)
    while pending:
        call, name = pending.pop()
        callee = functions[name]
        if uses[name] > 1:
            body = callee.clone(ip=ir.InsertionPoint.after(callee))
            for _, inner in calls_in(body):
                uses[inner] += 1
        else:
            body = callee
        uses[name] -= 1
        pending.extend(calls_in(body))
        block = body.regions[0].blocks[0]
        for argument, operand in zip(block.arguments, call.operands, strict=True):
            argument.replace_all_uses_with(operand)
        *moved, terminator = list(block.operations)
        equation = equation_of(call)
        for op in moved:
            op.operation.move_before(call)
            if equation and not _own_equation(op.operation):
                op.operation.attributes[_CALLER] = ir.StringAttr.get(equation)
        for result, returned in zip(call.results, terminator.operation.operands, strict=True):
            result.replace_all_uses_with(returned)
        call.erase()
        body.erase()


def _split_broadcasts(function: MlirOp) -> None:
    """Write what a broadcast does with dimensions of size 1 as a reshape, as XLA does.

    XLA's own broadcast only adds dimensions: those it would stretch are dropped before, and one
    that only adds dimensions of size 1 is no broadcast. Shardy treats the two ops differently.
    """
    for op in list(operations_of(function)):
        if op.name != "stablehlo.broadcast_in_dim":
            continue
        shape = op.operands[0].type.shape
        result = op.results[0]
        dims = list(ir.DenseI64ArrayAttr(op.attributes["broadcast_dimensions"]))
        if shape and prod(shape) == prod(result.type.shape) and dims == sorted(dims):
            reshape = _reshape(op.operands[0], result.type, op)
            result.replace_all_uses_with(reshape)
            op.erase()
            continue
        kept = [
            index
            for index, dim in enumerate(dims)
            if shape[index] != 1 or result.type.shape[dim] == 1
        ]
        if len(kept) == len(dims):
            continue
        smaller = ir.RankedTensorType.get([shape[i] for i in kept], result.type.element_type)
        op.operands[0] = _reshape(op.operands[0], smaller, op)
        op.attributes["broadcast_dimensions"] = ir.DenseI64ArrayAttr.get([dims[i] for i in kept])
        if _RULE in op.attributes:
            del op.attributes[_RULE]


def _reshape(value: MlirValue, result_type: Any, before: MlirOp) -> MlirValue:
    return ir.Operation.create(
        "stablehlo.reshape",
        results=[result_type],
        operands=[value],
        loc=before.location,
        ip=ir.InsertionPoint(before),
    ).results[0]


def _order_as_xla(function: MlirOp) -> None:
    """Put the ops of every block in the order XLA gives them, on which conflicts depend.

    XLA keeps no program order: it visits what has no readers, and from there operands first, from
    left to right. What a region reads from outside is an operand of the op it belongs to. Calls are
    still calls at that time.
    """
    blocks = [function.regions[0].blocks[0]]
    while blocks:
        block = blocks.pop()
        ops = [op.operation for op in block.operations]
        index_of = {result: i for i, op in enumerate(ops) for result in op.results}
        read = [_read_from(op, index_of) for op in ops]
        is_read = {index for indices in read for index in indices}
        order: list[int] = []
        seen = bytearray(len(ops))
        for root in range(len(ops)):
            if root in is_read:
                continue
            stack = [root]
            while stack:
                index = stack[-1]
                if seen[index] == 2:
                    stack.pop()
                elif seen[index] == 1:
                    seen[index] = 2
                    order.append(stack.pop())
                else:
                    seen[index] = 1
                    stack.extend(i for i in reversed(read[index]) if not seen[i])
        terminator = ops[-1]
        for index in order:
            if index != len(ops) - 1:
                ops[index].move_before(terminator)
        blocks.extend(inner for op in ops for region in op.regions for inner in region.blocks)


def _read_from(op: MlirOp, index_of: dict[MlirValue, int]) -> list[int]:
    """The ops of a block, by index, that an op of the block and its regions read."""
    inner = operations_of(op) if len(op.regions) else ()
    found = [index_of.get(value) for one in (op, *inner) for value in one.operands]
    return [index for index in dict.fromkeys(found) if index is not None]


def tagged_path(op: MlirOp) -> str:
    """The path of the value that a tag names, "" for an op that is none."""
    if op.name != "sdy.sharding_constraint":
        return ""
    tag = _TAG.search(name_of(op.location))
    return "" if tag is None else str(tag[1])


def _strip_tags(tags: Sequence[tuple[str, MlirOp]]) -> dict[str, Place]:
    # By result, because the hash of an op changes with its operands.
    readers: dict[MlirValue, list[tuple[MlirOp, int]]] = {}
    for _, op in reversed(tags):  # what reads a tag of a tag reads both
        found = readers[op.results[0]] = []
        for use in op.results[0].uses:
            user = use.owner.operation
            inner = readers.get(user.results[0]) if len(user.results) == 1 else None
            found.extend([(user, use.operand_number)] if inner is None else inner)
    places: dict[str, list[Place]] = {}
    for path, op in tags:
        # The operand is no tag's result: that tag came before, and was replaced.
        value = op.operands[0]
        place = Place(value, op.block, tuple(readers[op.results[0]]))
        places.setdefault(path, []).append(place)
        op.results[0].replace_all_uses_with(value)
    for _, op in tags:
        op.erase()
    return {path: replace(first, copies=tuple(rest)) for path, (first, *rest) in places.items()}


def _lift_loop_invariants(loops: Sequence[MlirOp], tags: set[MlirValue]) -> None:
    """Read in a loop, and after it, what the loop passes through unchanged, from outside it.

    Args:
        loops: Outer ones before those in them.
        tags: Results of tags.
    """
    for loop in reversed(loops):  # inner loops before those around them
        cond, body = (region.blocks[0] for region in loop.regions)
        terminator = list(body.operations)[-1].operation
        unchanged = [
            index
            for index, (argument, returned) in enumerate(
                zip(body.arguments, terminator.operands, strict=True)
            )
            if argument == _untagged(returned, tags)
        ]
        for index in unchanged:
            initial = loop.operands[index]
            for stale in (body.arguments[index], cond.arguments[index], loop.results[index]):
                stale.replace_all_uses_with(initial)
        if unchanged:
            _drop_carried(loop, frozenset(unchanged))


def _untagged(value: MlirValue, tags: set[MlirValue]) -> MlirValue:
    while value in tags:
        value = value.owner.operation.operands[0]
    return value


def _drop_carried(loop: MlirOp, dropped: frozenset[int]) -> None:
    """Rebuild a loop without some of what it carries."""
    kept = [index for index in range(len(loop.operands)) if index not in dropped]
    made = ir.Operation.create(
        "stablehlo.while",
        results=[loop.results[index].type for index in kept],
        operands=[loop.operands[index] for index in kept],
        attributes={name: loop.attributes[name] for name in loop.attributes},
        regions=2,
        loc=loop.location,
        ip=ir.InsertionPoint(loop),
    )
    for old, new in zip(loop.regions, made.regions, strict=True):
        block = old.blocks[0]
        block.append_to(new)
        for index in sorted(dropped, reverse=True):
            block.erase_argument(index)
    terminator = list(made.regions[1].blocks[0].operations)[-1].operation
    ir.Operation.create(
        terminator.name,
        operands=[terminator.operands[index] for index in kept],
        loc=terminator.location,
        ip=ir.InsertionPoint(terminator),
    )
    terminator.erase()
    for index, result in zip(kept, made.results, strict=True):
        loop.results[index].replace_all_uses_with(result)
    loop.erase()


def _give_rule(op: MlirOp) -> None:
    """The rule that Shardy gives to what XLA makes of a chlo op: it has none for chlo itself."""
    if op.name in _NO_RULE_IN_XLA:
        return
    operands = [ir.RankedTensorType(value.type).shape for value in op.operands]
    results = [ir.RankedTensorType(value.type).shape for value in op.results]
    if op.name == "chlo.top_k":
        *batch, size = operands[0]
        chosen = results[0][-1]
        names = [f"{_factor(i)}={n}" for i, n in enumerate([*batch, size, chosen])]
        lead = [_factor(i) for i in range(len(batch))]
        whole = _factor(len(batch))
        taken = _factor(len(batch) + 1)
        one = f"[{', '.join([*lead, taken])}]"
        text = (
            f"([{', '.join([*lead, whole])}])->({one}, {one}) {{{', '.join(names)}}}"
            f" need_replication={{{whole}}}"
        )
    elif len({tuple(shape) for shape in (*operands, *results)}) == 1 and results[0]:
        shape = results[0]
        dims = f"[{', '.join(map(_factor, range(len(shape))))}]"
        sizes = ", ".join(f"{_factor(i)}={n}" for i, n in enumerate(shape))
        text = (
            f"({', '.join([dims] * len(operands))})->({', '.join([dims] * len(results))})"
            f" {{{sizes}}}"
        )
    else:
        return
    op.attributes[_RULE] = ir.Attribute.parse(f"#sdy.op_sharding_rule<{text}>")


def _factor(index: int) -> str:
    """How Shardy spells a factor: i, j, ..., z, z_1, z_2, ..."""
    letters = "ijklmnopqrstuvwxyz"
    if index < len(letters):
        return letters[index]
    return f"z_{index - len(letters) + 1}"
