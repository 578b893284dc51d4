"""The verdict of the Shardy inside jaxlib, to hold ours against."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import jax  # noqa: F401  (importing it registers Shardy's passes and dialect)
from jax._src.interpreters import mlir
from jaxlib.mlir import ir


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether Shardy accepts a text, and how it prints it (or what it says against it)."""

    accepts: bool
    text: str

    @property
    def accepted_text(self) -> str | None:
        return self.text if self.accepts else None


class SdyOracle:
    """Parses and verifies text in one MLIR context."""

    def __init__(self) -> None:
        self._context = mlir.make_ir_context()

    def module(self, text: str) -> Verdict:
        with self._context:
            try:
                module = ir.Module.parse(text)
                module.operation.verify()
            except ir.MLIRError as error:
                return Verdict(accepts=False, text=str(error))
            return Verdict(accepts=True, text=str(module))

    def mesh(self, text: str) -> Verdict:
        """Verdict on an `sdy.mesh` line; the text is that line."""
        verdict = self.module(text)
        if not verdict.accepts:
            return verdict
        line = next(line for line in verdict.text.splitlines() if "sdy.mesh" in line)
        return Verdict(accepts=True, text=line.strip())

    def sharding(self, text: str, mesh_lines: Iterable[str], tensor_type: str) -> Verdict:
        """Verdict on a sharding without its `#sdy.sharding`, on an argument of the given type."""
        attribute = f"{{sdy.sharding = #sdy.sharding{text}}}"
        function = f"func.func @f(%arg0: {tensor_type} {attribute}) {{\n  return\n}}"
        with self._context:
            try:
                module = ir.Module.parse("\n".join([*mesh_lines, function]))
                module.operation.verify()
            except ir.MLIRError as error:
                return Verdict(accepts=False, text=str(error))
            operation = _function(module)
            attributes = ir.ArrayAttr(operation.attributes["arg_attrs"])
            printed = str(ir.DictAttr(attributes[0])["sdy.sharding"])
            return Verdict(accepts=True, text=printed.removeprefix("#sdy.sharding"))

    def rule(self, text: str, operand_types: Sequence[str], result_types: Sequence[str]) -> Verdict:
        """Verdict on an op sharding rule without its prefix, on a custom call."""
        names = [f"%arg{index}" for index in range(len(operand_types))]
        arguments = ", ".join(map("{}: {}".format, names, operand_types))
        results = f"%0:{len(result_types)} = " if result_types else ""
        function = (
            f"func.func @f({arguments}) {{\n  {results}stablehlo.custom_call @g"
            f"({', '.join(names)}) {{has_side_effect = true, "
            f"sdy.sharding_rule = #sdy.op_sharding_rule{text}}} : "
            f"({', '.join(operand_types)}) -> ({', '.join(result_types)})\n  return\n}}"
        )
        with self._context:
            try:
                module = ir.Module.parse(function)
                module.operation.verify()
            except ir.MLIRError as error:
                return Verdict(accepts=False, text=str(error))
            call = _function(module).regions[0].blocks[0].operations[0]
            printed = str(call.attributes["sdy.sharding_rule"])
            return Verdict(accepts=True, text=printed.removeprefix("#sdy.op_sharding_rule"))


def _function(module: ir.Module) -> ir.Operation:
    return next(op.operation for op in module.body.operations if op.operation.name == "func.func")


def mlir_type(shape: Sequence[int | None] | None) -> str:
    """`tensor<4x?xf32>`; a value without a shape is a token."""
    if shape is None:
        return "!stablehlo.token"
    sizes = "".join("?x" if size is None else f"{size}x" for size in shape)
    return f"tensor<{sizes}f32>"
