"""A module that was read, as selectors see it: names, ops by line, who reads what."""

from __future__ import annotations

from autoshard.constraints import Equation, Program, TensorType
from autoshard.frontend.trace import Traced
from autoshard.graph.program import Graph, OpKind, Value
from autoshard.source_place import parse_source


def module_program(traced: Traced, graph: Graph) -> Program:
    """What selectors pick from in a module.

    Args:
        traced: As `read_module` gives it.
        graph: The same program as a graph, in which its values have their types.
    """
    values = {path: graph.values[value] for path, value in graph.value_by_path.items()}
    names = {op.equation: op.name for op in graph.ops if op.kind is not OpKind.CONSTRAINT}
    made: dict[str, list[str]] = {}
    for path in values:
        equation, _, _ = path.rpartition(".")
        made.setdefault(equation, []).append(path)
    arguments = [graph.values[op.results[0]] for op in graph.arguments[graph.num_captured :]]
    results = [graph.values[op.operands[0]] for op in graph.results]
    return Program(
        arguments=traced.in_names,
        argument_types=tuple(map(_type, arguments)),
        results=traced.out_names,
        result_types=tuple(map(_type, results)),
        returned=tuple(value.path or None for value in results),
        equations={
            path: Equation(
                primitive=names.get(path, ""),
                place=parse_source(source),
                operands=traced.operand_paths.get(path, ()),
                results=tuple(made.get(path, ())),
            )
            for path, source in traced.source_by_equation.items()
        },
        types={path: _type(value) for path, value in values.items()},
        passed={},
    )


def _type(value: Value) -> TensorType:
    return TensorType(value.shape, value.dtype)
