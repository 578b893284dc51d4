"""One short text per program: equal programs have equal fingerprints, on every machine."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable
from typing import Any

import jax
import numpy as np
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.program_record import ProgramRecord, digest_lines
from autoshard.frontend.signature import Call, FlatTree
from autoshard.frontend.spec_entries import spec_entries

_OF_THE_TRACE = frozenset({"ctx_mesh"})
"""Parameters that say under which mesh JAX first traced a function whose trace it kept."""

_ADDRESS = re.compile(r" at 0x[0-9a-fA-F]+|(?<=id=)\d+")


def record_program(closed: ClosedJaxpr, call: Call, results: FlatTree) -> ProgramRecord:
    """What a plan keeps of a program, to know it again.

    The fingerprint is over the canonical text of the jaxpr and over the trees of its arguments and
    results. Variables are numbered as they appear. Source lines, name stacks, addresses, values of
    captured arrays and the device kind of meshes are left out.
    """
    lines = canonical_lines(closed)
    trees = [_without_addresses(str(tree)) for tree in (call.arguments.tree, results.tree)]
    digest = hashlib.sha256("\n".join([*lines, *trees]).encode())
    return ProgramRecord(
        fingerprint=digest.hexdigest(),
        argument_names=call.arguments.names,
        argument_types=tuple(_argument_type(var.aval) for var in closed.jaxpr.invars),
        result_names=results.names,
        result_types=tuple(atom.aval.str_short() for atom in closed.jaxpr.outvars),
        num_equations=sum(1 for line in lines if _is_equation(line)),
        line_digests=digest_lines(lines),
    )


def _argument_type(aval: Any) -> str:
    """`float32[8,16]`; a Python scalar, which promotes otherwise than an array, is told apart."""
    text = str(aval.str_short())
    return f"{text} of a Python scalar" if getattr(aval, "weak_type", False) else text


def canonical_lines(closed: ClosedJaxpr) -> list[str]:
    """The program as text, one line per equation; the lines of a body stand before its equation."""
    return _Writer().jaxpr(closed.jaxpr)


def _is_equation(line: str) -> bool:
    return line.split(" ", 1)[0].rpartition("/")[2].isdigit()


class _Writer:
    def __init__(self) -> None:
        self.settings: dict[Any, str] = {}
        self.types: dict[Any, str] = {}

    def jaxpr(self, jaxpr: Jaxpr, prefix: str = "") -> list[str]:
        numbers: dict[Var, int] = {}
        lines: list[str] = []

        def bind(variables: Iterable[Var]) -> str:
            words = []
            for var in variables:
                numbers[var] = len(numbers)
                words.append(f"{numbers[var]}:{self.type(var.aval)}")
            return " ".join(words)

        def read(atoms: Iterable[Any]) -> str:
            return " ".join(
                self.literal(atom) if isinstance(atom, Literal) else str(numbers[atom])
                for atom in atoms
            )

        lines.append(f"{prefix}consts {bind(jaxpr.constvars)}")
        lines.append(f"{prefix}in {bind(jaxpr.invars)}")
        for index, eqn in enumerate(jaxpr.eqns):
            operands = read(eqn.invars)
            params = self.params(eqn, f"{prefix}{index}.", lines)
            lines.append(
                f"{prefix}{index} {bind(eqn.outvars)} = {eqn.primitive.name}[{params}] {operands}"
            )
        lines.append(f"{prefix}out {read(jaxpr.outvars)}")
        return lines

    def params(self, eqn: JaxprEqn, prefix: str, lines: list[str]) -> str:
        words = []
        for name in sorted(eqn.params.keys() - _OF_THE_TRACE):
            value = eqn.params[name]
            members = value if isinstance(value, (tuple, list)) else (value,)
            if any(isinstance(member, (Jaxpr, ClosedJaxpr)) for member in members):
                for position, member in enumerate(members):
                    key = name if members is not value else f"{name}[{position}]"
                    if isinstance(member, (Jaxpr, ClosedJaxpr)):
                        body = member.jaxpr if isinstance(member, ClosedJaxpr) else member
                        lines += self.jaxpr(body, f"{prefix}{key}/")
                    else:
                        words.append(f"{key}={self.setting(member)}")
            else:
                words.append(f"{name}={self.setting(value)}")
        return " ".join(words)

    def type(self, aval: Any) -> str:
        text = self.types.get(aval)
        if text is None:
            short = getattr(aval, "str_short", None)
            text = self.types[aval] = short() if callable(short) else str(aval)
        return text

    def literal(self, literal: Literal) -> str:
        value = literal.val
        if np.shape(value):
            return f"array:{self.type(literal.aval)}"
        return f"{np.asarray(value).item()!r}:{self.type(literal.aval)}"

    def setting(self, value: Any) -> str:
        try:
            # 1, 1.0 and True are equal as keys but not as settings.
            key = (type(value), value)
            text = self.settings.get(key)
        except TypeError:
            return _setting_text(value)
        if text is None:
            text = self.settings[key] = _setting_text(value)
        return text


def _setting_text(value: Any) -> str:
    if isinstance(value, (frozenset, set)):
        return "{" + ", ".join(sorted(_setting_text(member) for member in value)) + "}"
    if isinstance(value, dict):
        items = sorted((str(key), _setting_text(member)) for key, member in value.items())
        return "{" + ", ".join(f"{key}: {text}" for key, text in items) + "}"
    if isinstance(value, tuple) and hasattr(value, "_fields"):
        fields = zip(value._fields, value, strict=True)
        text = ", ".join(f"{name}={_setting_text(member)}" for name, member in fields)
        return f"{type(value).__name__}({text})"
    if isinstance(value, (tuple, list)):
        return "(" + ", ".join(_setting_text(member) for member in value) + ")"
    if isinstance(value, (jax.sharding.Mesh, jax.sharding.AbstractMesh)):
        axes = zip(value.shape.items(), value.axis_types, strict=True)
        return (
            "mesh(" + ", ".join(f"{name}={size} {kind.name}" for (name, size), kind in axes) + ")"
        )
    if isinstance(value, jax.sharding.NamedSharding):
        if not any(spec_entries(value.spec)) and value.mesh.abstract_mesh.are_all_axes_auto:
            return "None"  # says nothing, on any mesh
        ids = value._logical_device_ids  # private; checked on jax 0.10.2
        order = "" if ids is None else f", device_ids={list(ids)}"
        return f"NamedSharding({_setting_text(value.mesh)}, {value.spec}{order})"
    if isinstance(value, (np.ndarray, jax.Array)) and np.ndim(value):
        return f"array:{value.dtype}{list(value.shape)}"
    if callable(value) and not isinstance(value, type):
        name = getattr(value, "__qualname__", None) or type(value).__qualname__
        return f"{getattr(value, '__module__', '')}.{name}"
    return _without_addresses(repr(value))


def _without_addresses(text: str) -> str:
    return _ADDRESS.sub("", text)
