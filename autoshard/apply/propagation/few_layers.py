"""Equal layers of a tagged module: the equations that are copies, and the module with few of them.

Layers written one after the other make runs of equations: forward, backward, and through each stage
of the optimizer. What propagation makes of a few of them, it makes of all.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Container, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, TypeAlias

from jax._src.interpreters import mlir as jax_mlir  # checked on jax 0.10.2
from jaxlib.mlir import ir
from jaxlib.mlir.passmanager import PassManager

from autoshard.apply.flat_module import MlirOp, MlirValue, equation_of, functions_of, tagged_path
from autoshard.apply.nested_ops import operations_of
from autoshard.apply.propagation.propagator import PlannedProgram
from autoshard.frontend.trace import Traced
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
        whole: The program with all of them.
        module: Tagged StableHLO, as bytecode.
        operand_paths: Of the equations that are left; what they read from others they read from
            copies of them.
        prefix: Of the paths of the body that has the runs.
        runs: Of that body.
    """

    whole: PlannedProgram
    module: bytes
    operand_paths: Mapping[str, Sequence[str | None]]
    prefix: str
    runs: Sequence[Run]

    @property
    def in_avals(self) -> Sequence[Any]:
        return self.whole.in_avals

    @property
    def out_avals(self) -> Sequence[Any]:
        return self.whole.out_avals

    @cached_property
    def _run_of(self) -> dict[int, Run]:
        return {e: run for run in self.runs for e in range(run.start, run.stop)}

    @cached_property
    def _left_out(self) -> frozenset[int]:
        return frozenset(e for run in self.runs for e in run.left_out)

    @cached_property
    def _inner(self) -> frozenset[int]:
        return frozenset(run.inner_copy(e) for run in self.runs for e in run.left_out)

    def has(self, path: str) -> bool:
        """A value, or the equation of a use, is in the smaller program."""
        equation, _ = _split(path, self.prefix)
        return equation not in self._left_out

    def copies_of(self, path: str) -> Hashable:
        """A key that the paths of all copies of a value share; the path where it has none."""
        equation, rest = _split(path, self.prefix)
        run = self._run_of.get(equation)
        return path if run is None else (run.start, (equation - run.start) % run.period, rest)

    def inner_copies_of(self, path: str) -> Hashable:
        """The same, of copies in layers that are left out and in the one that these are like."""
        equation, _ = _split(path, self.prefix)
        is_like = equation in self._left_out or equation in self._inner
        return self.copies_of(path) if is_like else path

    def with_copy(self, path: str | None) -> str | None:
        """The path of a value, or of the copy in the place of one that was left out."""
        if path is None or self.has(path):
            return path
        equation, rest = _split(path, self.prefix)
        return f"{self.prefix}{self._run_of[equation].kept_copy(equation)}{rest}"

    @cached_property
    def argument_copies(self) -> Mapping[str, str]:
        """By argument that equations left out read, the one that the copies of these read."""
        operands, found = self.whole.operand_paths, dict[str, str]()
        for run in self.runs:
            for equation in run.left_out:
                own = operands.get(f"{self.prefix}{equation}", ())
                kept = operands.get(f"{self.prefix}{run.kept_copy(equation)}", ())
                for path, copy in zip(own, kept, strict=True):
                    if path is not None and copy is not None and path.startswith("in."):
                        found[path] = copy
        return found

    def admits(self, wanted: Mapping[str, Sharding], in_shardings: Shardings) -> bool:
        """True where what is left out is sharded as the copies of it in a layer at no end.

        Args:
            wanted: Shardings of values and uses, by path.
            in_shardings: Of the arguments of the program.
        """
        given = {f"in.{index}": sharding for index, sharding in enumerate(in_shardings)}
        within = _by_equation_within(wanted, self.prefix)
        pairs = ((e, run.inner_copy(e)) for run in self.runs for e in run.left_out)
        return all(
            given.get(one) == given.get(kept) for one, kept in self.argument_copies.items()
        ) and all(within.get(one) == within.get(kept) for one, kept in pairs)

    def of_uses(self, required: Mapping[str, Sharding]) -> dict[str, Sharding]:
        """Constraints as far as they are on what the smaller program has."""
        found = {}
        for path, sharding in required.items():
            uses = [use for use in split_uses(path) if self.has(use)]
            if uses:
                found[join_uses(uses)] = sharding
        return found


@dataclass(eq=False)
class EqualLayers:
    """The equal layers of a program; all that no sharding changes is found once.

    Args:
        program: Tagged.
    """

    program: Traced
    _known: dict[tuple[Run, ...], FewLayers] = field(default_factory=dict, init=False)

    def few(self, wanted: Mapping[str, Sharding], in_shardings: Shardings) -> FewLayers | None:
        """The program with few copies of each layer; None where none repeat.

        Layers are equal if their ops are of one kind and of one type, and shardings wanted in them
        are. Those that were lowered once are where these shardings are alike in them. None, too,
        where a call in which layers may go on (a backward pass) reads those left out.

        Args:
            wanted: Shardings of values and uses, by path.
            in_shardings: Of the arguments of the program.
        """
        if self._lowered is not None and self._lowered.admits(wanted, in_shardings):
            return self._lowered
        equations = self._equations
        if equations is None:
            return None
        colours = equations.colours_with(wanted, in_shardings)
        ways = map(tuple, equal_layers(colours, equations.reads))
        runs = next((runs for runs in ways if not equations.is_read_in_a_call(runs)), None)
        if runs is None:
            return None
        if runs not in self._known:
            self._known[runs] = self._without(equations, runs)
        return self._known[runs]

    @cached_property
    def _lowered(self) -> FewLayers | None:
        program, few = self.program, self.program.modules.few
        if few is None:
            return None
        return FewLayers(program, few.module, few.operand_paths, "", few.equations.runs)

    @cached_property
    def _equations(self) -> _Equations | None:
        with jax_mlir.make_ir_context(), ir.Location.unknown():
            parsed = ir.Module.parse(self.program.module)
            return _equations_of(parsed, self.program.operand_paths)

    def _without(self, equations: _Equations, runs: Sequence[Run]) -> FewLayers:
        """The program without the layers that runs leave out."""
        with jax_mlir.make_ir_context(), ir.Location.unknown():
            parsed = ir.Module.parse(self.program.module)
            ops, prefix = _innermost(functions_of(parsed))
            _leave_out(_by_equation(ops, equations.of_op), runs)
            _erase_unread(op for op, of in zip(ops, equations.of_op, strict=True) if of < 0)
            PassManager.parse("builtin.module(symbol-dce)").run(parsed.operation)
            module = module_bytecode(parsed)
        program = self.program
        found = FewLayers(program, module, program.operand_paths, prefix, runs)
        paths = {
            equation: tuple(map(found.with_copy, operands))
            for equation, operands in program.operand_paths.items()
            if found.has(equation)
        }
        return replace(found, operand_paths=paths)


@dataclass(frozen=True, slots=True, eq=False)
class _Equations:
    """The equations of the body that has the layers, whatever the shardings.

    Args:
        prefix: Of the paths of the body.
        of_op: Per op of the body, its equation; -1 for none.
        colours: Per equation; equal ones have one number.
        arguments: Per equation, the arguments of the body that its ops read, by position.
        num_arguments: Of the body.
        num_ops: By colour, the ops of an equation and those that they call or hold.
        reads: Per equation, as `equal_layers` takes them.
    """

    prefix: str
    of_op: Sequence[int]
    colours: Sequence[int]
    arguments: Sequence[Sequence[int]]
    num_arguments: int
    num_ops: Mapping[int, int]
    reads: Sequence[Sequence[int]]

    def colours_with(self, wanted: Mapping[str, Sharding], in_shardings: Shardings) -> list[int]:
        """Colours in which equations differ where shardings do.

        Args:
            wanted: Shardings of values and uses, by path.
            in_shardings: Of the last arguments.
        """
        numbers = _Numbers()
        by_equation = {
            equation: tuple((rest, numbers.of(sharding)) for rest, sharding in within.items())
            for equation, within in _by_equation_within(wanted, self.prefix).items()
        }
        unknown = (None,) * (self.num_arguments - len(in_shardings))
        given = [numbers.of(sharding) for sharding in (*unknown, *in_shardings)]
        return [
            numbers.of((colour, tuple(map(given.__getitem__, read)), by_equation.get(equation)))
            for equation, (colour, read) in enumerate(
                zip(self.colours, self.arguments, strict=True)
            )
        ]

    def is_read_in_a_call(self, runs: Sequence[Run]) -> bool:
        """An equation of no run, of more ops than a layer has, reads what is left out."""
        in_runs = {equation for run in runs for equation in range(run.start, run.stop)}
        left_out = {equation for run in runs for equation in run.left_out}
        of_a_layer = max(run.period for run in runs)
        return any(
            equation not in in_runs
            and not left_out.isdisjoint(read)
            and self.num_ops[self.colours[equation]] > of_a_layer
            for equation, read in enumerate(self.reads)
        )


def _equations_of(
    module: Any, operand_paths: Mapping[str, Sequence[str | None]]
) -> _Equations | None:
    """The equations of the innermost body of a module; None where there is no such body."""
    functions = functions_of(module)
    body, prefix = _innermost(functions)
    if not body:
        return None
    of_op = [_split(tagged_path(op) or equation_of(op), prefix)[0] for op in body]
    ops = _by_equation(body, of_op)
    arguments = {value: place for place, value in enumerate(body[0].block.arguments)}
    numbers = _Colours(functions, arguments)
    colours = [numbers.of(of_equation) for of_equation in ops]
    return _Equations(
        prefix=prefix,
        of_op=of_op,
        colours=colours,
        arguments=[
            [arguments[value] for op in of_equation for value in op.operands if value in arguments]
            for of_equation in ops
        ],
        num_arguments=len(arguments),
        num_ops={
            colour: sum(_num_ops(functions, op) for op in of_equation)
            for colour, of_equation in dict(zip(colours, ops, strict=True)).items()
        },
        reads=list(_reads(operand_paths, prefix, len(ops))),
    )


def _innermost(functions: Mapping[str, MlirOp]) -> tuple[list[MlirOp], str]:
    """Ops of the first function from `main` on that is more than a call; the prefix of its paths.

    None where there is no `main`.
    """
    function, ops, prefix = functions.get("main"), list[MlirOp](), ""
    while function is not None:
        ops = [op.operation for op in function.regions[0].blocks[0].operations]
        calls = [op for op in ops if op.name == "func.call"]
        if len(calls) != 1 or len({equation_of(op) for op in ops} - {""}) != 1:
            break
        function = functions[ir.FlatSymbolRefAttr(calls[0].attributes["callee"]).value]
        inner = next(filter(None, map(equation_of, operations_of(function))), "")
        prefix = inner.rpartition("/")[0] + "/"
    return ops, prefix


def _split(path: str, prefix: str) -> tuple[int, str]:
    """The equation of a body that a path lies in, and the rest of the path; -1 for none."""
    match = _EQUATION.fullmatch(path, len(prefix)) if path.startswith(prefix) else None
    return (int(match[1]), match[2]) if match else (-1, path)


def _by_equation_within(
    wanted: Mapping[str, Sharding], prefix: str
) -> Mapping[int, Mapping[str, Sharding]]:
    """By equation of a body, the shardings of values and uses, by the rest of their paths."""
    found: defaultdict[int, dict[str, Sharding]] = defaultdict(dict)
    for path, sharding in wanted.items():
        for one in split_uses(path):
            equation, rest = _split(one, prefix)
            found[equation][rest] = sharding
    return found


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


def _by_equation(ops: Sequence[MlirOp], of_op: Sequence[int]) -> list[list[MlirOp]]:
    """Ops by the equation they were lowered from, tags after what they name.

    Args:
        ops: Of a function.
        of_op: Per op, its equation; -1 for none.
    """
    found: list[list[MlirOp]] = [[] for _ in range(max(of_op, default=-1) + 1)]
    for op, equation in zip(ops, of_op, strict=True):
        if equation >= 0:
            found[equation].append(op)
    return found


class _Numbers:
    """Numbers values: equal ones have one number."""

    def __init__(self) -> None:
        self._known: dict[Hashable, int] = {}

    def of(self, value: Hashable) -> int:
        return self._known.setdefault(value, len(self._known))


@dataclass(slots=True)
class _Colours:
    """Numbers the equations of a body: those of equal ops have one number.

    Args:
        functions: Of the module.
        arguments: Of the body.
    """

    functions: Mapping[str, MlirOp]
    arguments: Container[MlirValue]
    _numbers: _Numbers = field(default_factory=_Numbers)
    _functions: dict[str, int] = field(default_factory=dict)

    def of(self, ops: Sequence[MlirOp]) -> int:
        return self._numbers.of(tuple(self._op(op, self.arguments) for op in ops))

    def _op(self, op: MlirOp, arguments: Container[MlirValue]) -> int:
        attributes = op.attributes
        colour: list[Hashable] = [op.name, *(result.type for result in op.results)]
        colour += [(name, attributes[name]) for name in attributes if name not in _VALUES]
        colour += [value in arguments for value in op.operands]
        for block in (block for region in op.regions for block in region.blocks):
            colour += [self._op(inner.operation, ()) for inner in block.operations]
        if op.name == "func.call":
            colour.append(self._function(ir.FlatSymbolRefAttr(op.attributes["callee"]).value))
        return self._numbers.of(tuple(colour))

    def _function(self, name: str) -> int:
        if name not in self._functions:
            ops = self.functions[name].regions[0].blocks[0].operations
            self._functions[name] = self._numbers.of(
                tuple(self._op(op.operation, ()) for op in ops)
            )
        return self._functions[name]


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


def _erase_unread(ops: Iterable[MlirOp]) -> None:
    """Take out the constants of what was left out, which are of no equation."""
    for op in ops:
        if op.name == "stablehlo.constant" and not any(True for _ in op.results[0].uses):
            op.erase()
