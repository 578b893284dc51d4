"""Equal layers of a tagged module: the equations that are copies, and the module with few of them.

Layers written one after the other make runs of equations: forward, backward, and through each stage
of the optimizer. What propagation makes of a few of them, it makes of all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.apply.flat_module import MlirOp, MlirValue, equation_of, functions_of, tagged_path
from autoshard.apply.nested_ops import operations_of
from autoshard.apply.propagation.propagator import PlannedProgram
from autoshard.graph.equal_layers import Run, equal_layers
from autoshard.mlir_modules import module_bytecode
from autoshard.sharding import Sharding
from autoshard.use_paths import join_uses, split_uses

Shardings: TypeAlias = Sequence[Sharding | None]

_VALUES = frozenset({"callee", "limit_indices", "start_indices", "value"})
"""Attributes in which equal layers differ, and of which propagation knows nothing."""
_EQUATION = re.compile(r"(\d+)(.*)", re.DOTALL)


@dataclass(frozen=True, eq=False)
class FewLayers:
    """A program in which runs of equal equations have few copies, under their paths in the whole.

    Args:
        module: Tagged StableHLO, as bytecode.
        in_avals: Of the whole program.
        out_avals: Likewise.
        operand_paths: Of the equations that are left; what they read from others they read from
            copies of them.
        prefix: Of the paths of the body that has the runs.
        runs: Of that body.
    """

    module: bytes
    in_avals: Sequence[Any]
    out_avals: Sequence[Any]
    operand_paths: Mapping[str, Sequence[str | None]]
    prefix: str
    runs: Sequence[Run]

    @cached_property
    def _run_of(self) -> dict[int, Run]:
        return {e: run for run in self.runs for e in range(run.start, run.stop)}

    @cached_property
    def _left_out(self) -> frozenset[int]:
        return frozenset(e for run in self.runs for e in run.left_out)

    def has(self, path: str) -> bool:
        """A value, or the equation of a use, is in the smaller program."""
        equation, _ = _split(path, self.prefix)
        return equation not in self._left_out

    def copies_of(self, path: str) -> Hashable:
        """A key that the paths of all copies of a value share; the path where it has none."""
        equation, rest = _split(path, self.prefix)
        run = self._run_of.get(equation)
        return path if run is None else (run.start, (equation - run.start) % run.period, rest)

    def with_copy(self, path: str | None) -> str | None:
        """The path of a value, or of the copy in the place of one that was left out."""
        if path is None or self.has(path):
            return path
        equation, rest = _split(path, self.prefix)
        return f"{self.prefix}{self._run_of[equation].kept_copy(equation)}{rest}"

    def argument_copies(
        self, operand_paths: Mapping[str, Sequence[str | None]]
    ) -> Iterator[tuple[str, str]]:
        """Arguments that equations left out read, with those that the copies of these read.

        Args:
            operand_paths: Of the whole program.
        """
        for run in self.runs:
            for equation in run.left_out:
                own = operand_paths.get(f"{self.prefix}{equation}", ())
                kept = operand_paths.get(f"{self.prefix}{run.kept_copy(equation)}", ())
                for path, copy in zip(own, kept, strict=True):
                    if path is not None and copy is not None and path.startswith("in."):
                        yield path, copy

    def of_uses(self, required: Mapping[str, Sharding]) -> dict[str, Sharding]:
        """Constraints as far as they are on what the smaller program has."""
        found = {}
        for path, sharding in required.items():
            uses = [use for use in split_uses(path) if self.has(use)]
            if uses:
                found[join_uses(uses)] = sharding
        return found


def few_layers_of(
    program: PlannedProgram, wanted: Mapping[str, Sharding], in_shardings: Shardings
) -> FewLayers | None:
    """The program with few copies of each layer; None where none repeat.

    Layers are equal if their ops are of one kind and of one type, and shardings wanted in them are.
    None, too, where a call in which layers may go on (a backward pass) reads those left out.

    Args:
        program: Tagged.
        wanted: Shardings of values and uses, by path.
        in_shardings: Of its arguments.
    """
    with jax_mlir.make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(program.module)
        functions = functions_of(parsed)
        body, prefix = _innermost(functions)
        if body is None:
            return None
        ops = _by_equation(body, prefix)
        colours = _Colours(functions, body, prefix, wanted, in_shardings).of(ops)
        reads = list(_reads(program.operand_paths, prefix, len(ops)))
        ways = equal_layers(colours, reads)
        closed = (runs for runs in ways if not _is_read_in_a_call(functions, ops, reads, runs))
        runs = next(closed, None)
        if runs is None:
            return None
        _leave_out(ops, runs)
        _erase_unread_constants(body)
        PassManager.parse("builtin.module(symbol-dce)").run(parsed.operation)
        module = module_bytecode(parsed)
    whole = program.in_avals, program.out_avals, program.operand_paths
    found = FewLayers(module, *whole, prefix, runs)
    paths = {
        equation: tuple(map(found.with_copy, operands))
        for equation, operands in program.operand_paths.items()
        if found.has(equation)
    }
    return replace(found, operand_paths=paths)


def _innermost(functions: Mapping[str, MlirOp]) -> tuple[MlirOp | None, str]:
    """The first function from `main` on that is more than a call, and the prefix of its paths."""
    function, prefix = functions.get("main"), ""
    while function is not None:
        ops = [op.operation for op in function.regions[0].blocks[0].operations]
        calls = [op for op in ops if op.name == "func.call"]
        if len(calls) != 1 or len({equation_of(op) for op in ops} - {""}) != 1:
            break
        function = functions[ir.FlatSymbolRefAttr(calls[0].attributes["callee"]).value]
        inner = next(filter(None, map(equation_of, operations_of(function))), "")
        prefix = inner.rpartition("/")[0] + "/"
    return function, prefix


def _split(path: str, prefix: str) -> tuple[int, str]:
    """The equation of a body that a path lies in, and the rest of the path; -1 for none."""
    match = _EQUATION.fullmatch(path, len(prefix)) if path.startswith(prefix) else None
    return (int(match[1]), match[2]) if match else (-1, path)


def _reads(
    operand_paths: Mapping[str, Sequence[str | None]], prefix: str, num_equations: int
) -> Iterator[list[int]]:
    """Per equation of a body, the equations it reads, and arguments as numbers below 0."""
    arguments: dict[str, int] = {}
    for equation in range(num_equations):
        found = []
        for path in operand_paths.get(f"{prefix}{equation}", ()):
            if path is not None:
                maker, _ = _split(path, prefix)
                found.append(
                    maker if maker >= 0 else arguments.setdefault(path, -1 - len(arguments))
                )
        yield found


def _by_equation(body: MlirOp, prefix: str) -> list[list[MlirOp]]:
    """The ops of a function by the equation they were lowered from, tags after what they name."""
    found: defaultdict[int, list[MlirOp]] = defaultdict(list)
    for op in body.regions[0].blocks[0].operations:
        equation, _ = _split(tagged_path(op.operation) or equation_of(op.operation), prefix)
        if equation >= 0:
            found[equation].append(op.operation)
    return [found[equation] for equation in range(max(found, default=-1) + 1)]


@dataclass(slots=True)
class _Colours:
    """Numbers the equations of a body: equal ones have one number.

    Args:
        functions: Of the module.
        body: The function.
        prefix: Of its paths.
        wanted: Shardings of values and uses, by path.
        in_shardings: Of the arguments of the function, those that come last.
    """

    functions: Mapping[str, MlirOp]
    body: MlirOp
    prefix: str
    wanted: Mapping[str, Sharding]
    in_shardings: Shardings
    _numbers: dict[Hashable, int] = field(default_factory=dict)
    _functions: dict[str, int] = field(default_factory=dict)

    def of(self, ops: Sequence[Sequence[MlirOp]]) -> list[int]:
        wanted = self._wanted_by_equation()
        arguments = self._arguments()
        return [
            self._number(
                (
                    tuple(self._op(op, arguments) for op in of_equation),
                    tuple(wanted.get(equation, ())),
                )
            )
            for equation, of_equation in enumerate(ops)
        ]

    def _number(self, colour: Hashable) -> int:
        return self._numbers.setdefault(colour, len(self._numbers))

    def _wanted_by_equation(self) -> dict[int, list[Hashable]]:
        found: defaultdict[int, list[Hashable]] = defaultdict(list)
        for path, sharding in self.wanted.items():
            for one in split_uses(path):
                equation, rest = _split(one, self.prefix)
                found[equation].append((rest, self._number(sharding)))
        return found

    def _arguments(self) -> dict[MlirValue, Hashable]:
        arguments = list(self.body.regions[0].blocks[0].arguments)
        given = [*(None,) * (len(arguments) - len(self.in_shardings)), *self.in_shardings]
        return {
            argument: self._number(("argument", sharding))
            for argument, sharding in zip(arguments, given, strict=False)
        }

    def _op(self, op: MlirOp, arguments: Mapping[MlirValue, Hashable]) -> int:
        attributes = op.attributes
        colour: list[Hashable] = [op.name, *(result.type for result in op.results)]
        colour += [(name, attributes[name]) for name in attributes if name not in _VALUES]
        colour += [arguments.get(value) for value in op.operands]
        for block in (block for region in op.regions for block in region.blocks):
            colour += [self._op(inner.operation, {}) for inner in block.operations]
        if op.name == "func.call":
            colour.append(self._function(ir.FlatSymbolRefAttr(op.attributes["callee"]).value))
        return self._number(tuple(colour))

    def _function(self, name: str) -> int:
        if name not in self._functions:
            ops = self.functions[name].regions[0].blocks[0].operations
            self._functions[name] = self._number(tuple(self._op(op.operation, {}) for op in ops))
        return self._functions[name]


def _is_read_in_a_call(
    functions: Mapping[str, MlirOp],
    ops: Sequence[Sequence[MlirOp]],
    reads: Sequence[Sequence[int]],
    runs: Sequence[Run],
) -> bool:
    """An equation of no run, of more ops than a layer has, reads what is left out."""
    in_runs = {equation for run in runs for equation in range(run.start, run.stop)}
    left_out = {equation for run in runs for equation in run.left_out}
    of_a_layer = max(run.period for run in runs)
    return any(
        sum(_num_ops(functions, op) for op in ops[equation]) > of_a_layer
        for equation, read in enumerate(reads)
        if equation not in in_runs and not left_out.isdisjoint(read)
    )


def _num_ops(functions: Mapping[str, MlirOp], op: MlirOp) -> int:
    """An op, and those in its regions and in the functions that it calls."""
    inner = [one.operation for region in op.regions for block in region.blocks for one in block]
    if op.name == "func.call":
        inner.append(functions[ir.FlatSymbolRefAttr(op.attributes["callee"]).value])
    return 1 + sum(_num_ops(functions, one) for one in inner)


def _leave_out(ops: Sequence[Sequence[MlirOp]], runs: Sequence[Run]) -> None:
    """Take out the copies in the middle of runs; what reads them reads copies of them."""
    for run in sorted(runs, key=lambda run: run.start, reverse=True):
        for equation in reversed(run.left_out):
            copies = ops[run.kept_copy(equation)]
            for op, copy in reversed(list(zip(ops[equation], copies, strict=True))):
                for result, other in zip(op.results, copy.results, strict=True):
                    result.replace_all_uses_with(other)
                op.erase()


def _erase_unread_constants(body: MlirOp) -> None:
    """Take out the constants of what was left out: they are of no equation."""
    ops = [op.operation for op in body.regions[0].blocks[0].operations]
    for op in ops:
        if op.name == "stablehlo.constant" and not any(True for _ in op.results[0].uses):
            op.erase()
