"""The verdict of the Shardy inside jaxlib, to hold ours against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import jax  # noqa: F401  (importing it registers Shardy's passes and dialect)
from jax._src.interpreters import mlir
from jaxlib.mlir import ir


@dataclass(frozen=True, slots=True)
class Verdict:
    """Whether Shardy accepts a text, and how it prints it (or what it says against it)."""

    accepts: bool
    text: str


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
            operation = next(
                op.operation for op in module.body.operations if op.operation.name == "func.func"
            )
            attributes = ir.ArrayAttr(operation.attributes["arg_attrs"])
            printed = str(ir.DictAttr(attributes[0])["sdy.sharding"])
            return Verdict(accepts=True, text=printed.removeprefix("#sdy.sharding"))
