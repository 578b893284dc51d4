"""Reads the forward ops of a program that keeps every residual."""

from __future__ import annotations

from collections.abc import Iterator
from difflib import SequenceMatcher
from typing import Any

from jax.extend.core import Jaxpr, JaxprEqn, Var

from autoshard.frontend.jaxpr_paths import bodies
from autoshard.frontend.source_lines import SourceLines
from autoshard.remat.forward_op import ForwardOp, ForwardResult, ValuePaths
from autoshard.remat.joint_graph import RECOMPUTED, JointGraph, is_array, variables
from autoshard.remat.joint_program import Written


def forward_ops(written: Written) -> tuple[ForwardOp, ...]:
    """The ops that the backward passes of a program depend on, each after those that it reads."""
    reader = _Reader(written.closed.jaxpr)
    for number, graph in enumerate(written.graphs):
        reader.read(number, graph)
    return tuple(reader.found)


def value_paths(written: Written) -> ValuePaths:
    """Where a program makes the forward values, and computes them again."""
    path_of = _paths(written.closed.jaxpr)
    values = [
        (f"{number}:{name}", var)
        for number, graph in enumerate(written.graphs)
        for var, name in graph.names.items()
    ]
    copies = [(name, written.copies[var]) for name, var in values if var in written.copies]
    return ValuePaths(
        {name: path_of[var] for name, var in values if var in path_of},
        {name: path_of[var] for name, var in copies if var in path_of},
    )


def same_equations(one: Jaxpr, other: Jaxpr) -> dict[str, str]:
    """By path in a program, the path of the same equation in that with other residuals."""
    return dict(_same(one, other, "", ""))


def _same(one: Jaxpr, other: Jaxpr, prefix: str, other_prefix: str) -> Iterator[tuple[str, str]]:
    ours, theirs = _written_once(one), _written_once(other)
    keys, other_keys = ([_key(eqn) for _, eqn in eqns] for eqns in (ours, theirs))
    matcher = SequenceMatcher(None, keys, other_keys, autojunk=False)
    for start, other_start, size in matcher.get_matching_blocks():
        for (index, eqn), (other_index, other_eqn) in zip(
            ours[start : start + size], theirs[other_start : other_start + size], strict=True
        ):
            path, other_path = f"{prefix}{index}", f"{other_prefix}{other_index}"
            yield path, other_path
            for (key, body), (_, other_body) in zip(bodies(eqn), bodies(other_eqn), strict=True):
                yield from _same(body, other_body, f"{path}.{key}/", f"{other_path}.{key}/")


def _key(eqn: JaxprEqn) -> tuple[str, ...]:
    """Equal for an equation before and after other residuals are chosen; scans stack others."""
    name = eqn.primitive.name
    return (name,) if name == "scan" else (name, *(str(var.aval) for var in eqn.outvars))


def _written_once(jaxpr: Jaxpr) -> list[tuple[int, JaxprEqn]]:
    """Equations that are no copies, and nothing made for copies, with their positions."""
    return [
        (index, eqn)
        for index, eqn in enumerate(jaxpr.eqns)
        if RECOMPUTED not in str(eqn.source_info.name_stack)
        and eqn.primitive.name != "optimization_barrier"
    ]


class _Reader:
    def __init__(self, jaxpr: Jaxpr) -> None:
        self.path_of = _paths(jaxpr)
        self.stack_of = dict(_stacks(jaxpr, self.path_of))
        self.sources = SourceLines()
        self.found: list[ForwardOp] = []

    def read(self, number: int, graph: JointGraph) -> None:
        """Add the forward ops of one graph."""
        labels, place = _labels(graph), dict[Var, int]()
        needed, required = _needed(graph), frozenset(graph.required)
        # A scan makes all its stacks before the reverse one reads any.
        ends = graph.segments[-1:] if graph.stack_length is None else ()

        def add(eqn: JaxprEqn | None, made: list[Var], *, may_repeat: bool, segment: int) -> None:
            source = "" if eqn is None else self.sources.line(eqn)
            results = tuple(
                ForwardResult(
                    name=f"{number}:{graph.names[var]}",
                    path=self.path_of.get(var, ""),
                    stack=self.stack_of.get(var, ""),
                    is_required=var in required,
                    what=labels.get(var, "carry" if eqn is None else eqn.primitive.name),
                    is_named=var in labels,
                    source=source,
                    type_text=_type_text(var, graph.stack_length),
                    is_array=is_array(var),
                )
                for var in made
            )
            operands = () if eqn is None else variables(eqn.invars)
            path = next((one.path.rpartition(".")[0] for one in results if one.path), "")
            place.update(dict.fromkeys(made, len(self.found)))
            self.found.append(
                ForwardOp(
                    path="" if eqn is None else path,
                    results=results,
                    operands=tuple(dict.fromkeys(place[v] for v in operands if v in place)),
                    may_repeat=may_repeat,
                    pass_index=number,
                    segment=segment,
                    is_read_next=segment in ends,
                    stack_length=graph.stack_length,
                )
            )

        for var in graph.carried:
            if var in needed:
                add(None, [var], may_repeat=False, segment=0)
        for position, eqn in enumerate(graph.forward):
            made = [var for var in eqn.outvars if var in needed and var not in graph.free]
            if made and position not in graph.constants:
                may_repeat = all(map(graph.is_recomputable, made))
                add(eqn, made, may_repeat=may_repeat, segment=graph.segments[position])


def _needed(graph: JointGraph) -> set[Var]:
    """The values that backward passes read, and those that they could be computed again from."""
    found: set[Var] = set()
    todo = list(graph.required)
    while todo:
        var = todo.pop()
        if var in found or var in graph.free:
            continue
        found.add(var)
        if var in graph.maker:
            todo += variables(graph.forward[graph.maker[var]].invars)
    return found


def _labels(graph: JointGraph) -> dict[Var, str]:
    """Names of values that the user gave, by `checkpoint_name`."""
    found: dict[Var, str] = {}
    for eqn in graph.forward:
        if eqn.primitive.name == "name":
            label = str(eqn.params["name"])
            found.update(dict.fromkeys((*variables(eqn.invars), *eqn.outvars), label))
    return found


def _type_text(var: Var, stack_length: int | None) -> str:
    aval: Any = var.aval
    shape = (*(() if stack_length is None else (stack_length,)), *getattr(aval, "shape", ()))
    dtype = aval.str_short(short_dtypes=True).partition("[")[0]
    return f"{dtype}[{', '.join(map(str, shape))}]"


def _paths(jaxpr: Jaxpr, prefix: str = "") -> dict[Var, str]:
    """The path of every value, where it is made first."""
    found: dict[Var, str] = {}
    for position, var in enumerate(jaxpr.invars):
        found.setdefault(var, f"{prefix}in.{position}")
    for index, eqn in enumerate(jaxpr.eqns):
        for position, var in enumerate(eqn.outvars):
            found.setdefault(var, f"{prefix}{index}.{position}")
        for key, body in bodies(eqn):
            for var, path in _paths(body, f"{prefix}{index}.{key}/").items():
                found.setdefault(var, path)
    return found


def _stacks(jaxpr: Jaxpr, path_of: dict[Var, str]) -> Iterator[tuple[Var, str]]:
    """By value that a scan stacks, the path of the stack."""
    for eqn in jaxpr.eqns:
        for _, body in bodies(eqn):
            yield from _stacks(body, path_of)
            if eqn.primitive.name == "scan":
                first = eqn.params["num_carry"]
                stacks = zip(body.outvars[first:], eqn.outvars[first:], strict=True)
                for end, stack in stacks:
                    if isinstance(end, Var) and stack in path_of:
                        yield end, path_of[stack]
