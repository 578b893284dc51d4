"""The function's border in the graph: captured arrays, arguments and results."""

from __future__ import annotations

from typing import Any

from jaxlib.mlir import ir

from autoshard.errors import ExportError
from autoshard.frontend.asked_inside import Place, add_copy
from autoshard.frontend.importer import Env, Importer
from autoshard.graph.program import OpKind
from autoshard.graph.rule import identity_rule


def import_arguments(importer: Importer, block: Any) -> Env:
    """Captured arrays, then arguments, in the order of `main`, before all else."""
    env: Env = {}
    given: list[Any] = []
    tokens: list[Any] = []
    for argument in block.arguments:
        (given if isinstance(argument.type, ir.RankedTensorType) else tokens).append(argument)
    importer.num_captured = len(given) - len(importer.names.arguments)
    captured = importer.names.captured or [f"captured[{i}]" for i in range(importer.num_captured)]
    # The first arrays captured may be written into the module as constants instead.
    num_written = len(captured) - importer.num_captured
    if importer.num_captured < 0 or num_written < 0:
        raise ExportError(
            f"main takes {len(given)} arrays, names are given for"
            f" {len(importer.names.arguments)} arguments and"
            f" {len(importer.names.captured)} captured arrays",
            where="main",
            fix="lower with keep_unused=True and name every flat argument",
        )
    for position, argument in enumerate(given):
        number = position - importer.num_captured
        if number >= 0:
            name, path = importer.names.arguments[number], f"in.{number}"
        else:
            name = captured[position + num_written]
            path = f"const.{position + num_written}"
        env[argument] = _source(importer, argument.type, name, path)
    for token in tokens:  # orders side effects; holds nothing
        made = importer.build.add(
            OpKind.FREE,
            "token",
            (),
            [importer.tensor_type(token.type)],
            rule=None,
            region=0,
            repeat=1.0,
        )
        env[token] = made.results[0]
    return env


def _source(importer: Importer, mlir_type: Any, name: str, path: str) -> int:
    found = importer.tensor_type(mlir_type)
    rule = identity_rule(found[0], 0)
    made = importer.build.add(
        OpKind.ARGUMENT, "argument", (), [found], rule=rule, region=0, repeat=1.0
    )
    (value,) = made.results
    importer.build.values[value].name = name
    importer.build.name_path(path, value)
    return value


def import_results(importer: Importer, returned: list[int]) -> None:
    arrays = [v for v in returned if not importer.build.values[v].type[1].startswith("!")]
    if len(arrays) != len(importer.names.results):
        raise ExportError(
            f"main returns {len(arrays)} arrays, names are given for {len(importer.names.results)}",
            where="main",
            fix="name every flat result",
        )
    for number, (name, returned_value) in enumerate(
        zip(importer.names.results, arrays, strict=True)
    ):
        value = _written_out(importer, returned_value)
        value = importer.reads.returned(importer.build, number, value)
        rule = identity_rule(importer.build.shape(value), 1, 0)
        importer.build.add(OpKind.RESULT, name, (value,), [], rule=rule, region=0, repeat=1.0)


def _written_out(importer: Importer, value: int) -> int:
    """A returned value that every device makes itself takes memory and time all the same."""
    if value not in importer.free or not importer.build.shape(value):
        return value
    return add_copy(importer.build, value, Place(0, 1.0))
