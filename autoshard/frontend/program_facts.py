"""A traced program as selectors see it: names, equations, source lines, who reads what."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.constraints import Equation, Program, TensorType
from autoshard.frontend.equation_places import equation_places
from autoshard.frontend.jaxpr_paths import CALLS, bodies, is_constrainable, used_variables
from autoshard.source_place import SourcePlace


def read_program(
    closed: ClosedJaxpr, argument_names: Sequence[str], result_names: Sequence[str]
) -> Program:
    """What selectors pick from in a program.

    Values and equations are those that `tag_jaxpr` names, in the same paths.

    Args:
        closed: The program, flat in and out.
        argument_names: Per flat argument.
        result_names: Per flat result.
    """
    reader = _Reader(equation_places(closed))
    returned = reader.read(closed.jaxpr, "", None)
    return Program(
        arguments=tuple(argument_names),
        argument_types=tuple(_type(var.aval) for var in closed.jaxpr.invars),
        results=tuple(result_names),
        result_types=tuple(_type(atom.aval) for atom in closed.jaxpr.outvars),
        returned=returned,
        equations={path: reader.equations[path] for path in reader.order},
        types=reader.types,
        passed=reader.passed,
        manual=reader.manual,
    )


class _Reader:
    def __init__(self, places: Mapping[str, SourcePlace]) -> None:
        self.places = places
        self.equations: dict[str, Equation] = {}
        self.order: list[str] = []
        self.types: dict[str, TensorType] = {}
        self.passed: dict[str, str] = {}
        self.manual: dict[str, frozenset[str]] = {}

    def read(
        self, jaxpr: Jaxpr, prefix: str, outer: Sequence[str | None] | None
    ) -> tuple[str | None, ...]:
        """Read a body and those inside it; the paths of what it returns.

        Args:
            jaxpr: The body.
            prefix: Of its paths.
            outer: Per argument, the value outside that it is unchanged, or None; None for the
                whole program.
        """
        used = used_variables(jaxpr)
        path_of: dict[Var, str] = {}

        def name(var: Var, path: str) -> str | None:
            if var not in used or not is_constrainable(var.aval):
                return None
            path_of[var] = path
            self.types[path] = _type(var.aval)
            if axes := var.aval.sharding.mesh.manual_axes:
                self.manual[path] = frozenset(map(str, axes))
            return path

        def paths(atoms: Sequence[Any]) -> tuple[str | None, ...]:
            return tuple(None if isinstance(a, Literal) else path_of.get(a) for a in atoms)

        for position, var in enumerate(jaxpr.constvars):
            name(var, f"{prefix}const.{position}")
        for position, var in enumerate(jaxpr.invars):
            path = name(var, f"{prefix}in.{position}")
            same = outer[position] if outer is not None and position < len(outer) else None
            if path is not None and same is not None:
                self.passed[path] = same
        for index, eqn in enumerate(jaxpr.eqns):
            path = f"{prefix}{index}"
            self.order.append(path)
            operands = paths(eqn.invars)
            returned = {
                key: self.read(body, f"{path}.{key}/", list(_passed_to(eqn, key, operands)))
                for key, body in bodies(eqn)
            }
            self.equations[path] = Equation(
                primitive=eqn.primitive.name,
                place=self.places[path],
                name=str(eqn.params["name"]) if eqn.primitive.name == "name" else "",
                operands=operands,
                results=tuple(
                    name(var, f"{path}.{position}") for position, var in enumerate(eqn.outvars)
                ),
                bodies=returned,
                carried=_num_carried(eqn),
            )
        return paths(jaxpr.outvars)


def _passed_to(eqn: JaxprEqn, body: str, operands: Sequence[str | None]) -> Iterator[str | None]:
    """Per argument of a body of an equation, the operand it is unchanged; those after are none."""
    primitive = eqn.primitive.name
    if primitive in CALLS:
        yield from operands
    elif primitive == "cond":
        yield from operands[1:]
    elif primitive == "scan":
        yield from operands[: eqn.params["num_consts"]]
    elif primitive == "while":
        split = eqn.params["cond_nconsts"]
        stop = split + eqn.params["body_nconsts"]
        yield from operands[:split] if body == "cond_jaxpr" else operands[split:stop]


def _num_carried(eqn: JaxprEqn) -> int:
    if eqn.primitive.name == "scan":
        return int(eqn.params["num_carry"])
    return len(eqn.outvars) if eqn.primitive.name == "while" else 0


def _type(aval: Any) -> TensorType:
    return TensorType(tuple(aval.shape), str(aval.dtype))
