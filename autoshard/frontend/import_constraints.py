"""What the program itself says of shardings: constraints, groups, and our own tags."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.frontend.asked_inside import add_constraint, add_copy
from autoshard.frontend.importer import Env, Importer, Scope, says_nothing, tag_of


def import_constraint(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    operand = env[op.operands[0]]
    path = tag_of(op)
    if path is not None:
        env[op.results[0]] = _tagged(importer, op, path, operand, scope)
        return
    if says_nothing(sdy.TensorShardingAttr(op.attributes["sharding"])):
        env[op.results[0]] = operand
        return
    is_placed = next(iter(op.results[0].uses), None) is None
    if not is_placed:  # one that nothing reads stands right behind its value already
        text, place = importer.sharding_text(op), importer.scoped(op, scope)
        env[op.results[0]] = add_constraint(importer.build, operand, text, place)


def _tagged(importer: Importer, op: Any, path: str, value: int, scope: Scope) -> int:
    """The value at a jaxpr path; what is asked of it there stands right behind it."""
    asked = importer.asked
    if path in asked.values:
        place = importer.scoped_to(op, path, scope)
        value = add_constraint(importer.build, value, asked.values[path], place)
    elif path in asked.held:
        value = _held(importer, op, value, scope)
    importer.build.name_path(path, value)
    return value


def import_group(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    group = ir.IntegerAttr(op.attributes["group_id"]).value
    value = env[op.operands[0]] = _held(importer, op, env[op.operands[0]], scope)
    importer.build.tie(group, value)


def _held(importer: Importer, op: Any, value: int, scope: Scope) -> int:
    """A value that has one sharding: of what every device makes itself, a copy."""
    if value not in importer.free or not importer.build.shape(value):
        return value
    return add_copy(importer.build, value, importer.scoped(op, scope))
