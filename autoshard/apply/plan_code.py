"""A plan as Python code: the shardings of arguments and results, and the constraints between."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import jax

from autoshard.apply.code_writer import CodeWriter, LeafCode, has_literal, leaves_of
from autoshard.apply.constraint_places import constraint_places
from autoshard.apply.named_shardings import JaxMesh, flat_named_shardings
from autoshard.constraints.selector import name_steps
from autoshard.frontend.trace import Traced
from autoshard.sharding import Sharding


def plan_code(
    traced: Traced,
    arguments: Sequence[Sharding],
    results: Sequence[Sharding],
    constraints: Mapping[str, Sharding],
    mesh: JaxMesh,
    *,
    function: str,
    donate_argnums: tuple[int, ...],
) -> str:
    """Python text that makes `in_shardings` and `out_shardings`, and shows the constraints.

    Args:
        traced: The program.
        arguments: By flat argument.
        results: By flat result.
        constraints: By path.
        mesh: The mesh of the plan.
        function: Its name.
        donate_argnums: Arguments it may reuse.
    """
    writer = CodeWriter(mesh)
    given = _leaf_codes(writer, traced.in_names, arguments)
    positional, keywords = jax.tree.unflatten(traced.in_tree, given)
    made = _leaf_codes(writer, traced.out_names, results)
    returned = jax.tree.unflatten(traced.out_tree, made)
    variables = tuple(map(_variable, positional))
    body = [
        "",
        "# One for each positional argument, as jax.jit takes them.",
        f"in_specs = {writer.trees(positional, variables)}",
        *_result_lines(writer, returned, f"{function}, {', '.join(variables)}"),
    ]
    if keywords:
        body.append(f"keyword_specs = {writer.tree(keywords, 'keywords')}")
    body += [
        "",
        "",
        "def on_mesh(spec):",
        "    return spec if isinstance(spec, NamedSharding) else NamedSharding(mesh, spec)",
        "",
        "",
        "in_shardings, out_shardings = jax.tree.map(on_mesh, (in_specs, out_specs))",
        "",
        *_constraint_lines(writer, traced, constraints),
    ]
    if any(sharding.memory_kind for sharding in arguments):
        body += [
            "",
            "# The function as it is written cannot compute on arguments in host memory:",
            "# plan.jit() and plan.wrap() bring them to the device, part by part.",
        ]
    donated = f", donate_argnums={donate_argnums!r}" if donate_argnums else ""
    body += [
        "",
        f"# jax.jit({function}, in_shardings=in_shardings, out_shardings=out_shardings{donated})",
    ]
    return "\n".join([*writer.header(), *body]) + "\n"


def _leaf_codes(
    writer: CodeWriter, names: Sequence[str], shardings: Sequence[Sharding]
) -> list[LeafCode]:
    named = flat_named_shardings(shardings, writer.mesh, [f"`{name}`" for name in names])
    return [LeafCode(n, writer.spec(sharding)) for n, sharding in zip(names, named, strict=True)]


def _result_lines(writer: CodeWriter, returned: Any, call: str) -> list[str]:
    lines = [] if has_literal(returned) else [f"result = jax.eval_shape({call})"]
    if type(returned) is tuple:
        places = [f"result[{place}]" for place in range(len(returned))]
        return [*lines, f"out_specs = {writer.trees(returned, places)}"]
    return [*lines, f"out_specs = {writer.tree(returned, 'result')}"]


def _variable(argument: Any) -> str:
    """What holds a positional argument: the root of its arrays' names; `...` if it has none."""
    first = next(leaves_of(argument), None)
    return "..." if first is None else name_steps(first.name)[0]


def _constraint_lines(
    writer: CodeWriter, traced: Traced, constraints: Mapping[str, Sharding]
) -> list[str]:
    """The constraints inside the function, as comments: where each goes, and its line."""
    if not constraints:
        return ["# The program needs no constraint inside: propagation does the rest."]
    lines = ["# Constraints inside the function, in program order."]
    for path, place in constraint_places(traced, constraints).items():
        code = writer.sharding(writer.mesh.named_sharding(constraints[path], where=path))
        lines += [
            "#",
            f"# {place} [{path}]:",
            f"#     x = jax.lax.with_sharding_constraint(x, {code})",
        ]
    return lines
