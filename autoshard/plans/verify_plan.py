"""Rules that every plan keeps."""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import sys
from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from autoshard.plans.json_records import shown
from autoshard.plans.plan import PlanData
from autoshard.plans.searched_meshes import MESH_OUTCOMES
from autoshard.sharding import Mesh, Sharding, verify_mesh, verify_sharding

OVERLAPS = ("auto", "none")
STATUSES = ("optimal", "within gap", "feasible", "infeasible", "no solution")

_MAY_BE_INFINITE = frozenset({"solver.gap"})
_MAY_BE_NEGATIVE = ".extra_seconds"


def verify_plan(data: PlanData) -> list[str]:
    """Every rule of plans that `data` breaks, each with its path.

    * The mesh is sound, and (looked at only if it is) every sharding is sound on it.
    * The shardings of arguments and results have as many dimensions as the tensors.
    * Numbers are finite (the gap of a plan that was not found may be infinite) and not negative
      (what a miss costs may be); groups have at least one device.
    * The status is one a solver gives.
    * Schedules of products name axes of the mesh and variables of their statement.
    * There are no rounds or several; their priorities ascend, and each has shardings for every
      line of the listing.
    * Meshes that a search tried have its number of devices, and the chosen one is the plan's.

    Returns:
        One line per violation, none when the plan is sound.
    """
    problems = [f"`mesh`: {violation}" for violation in verify_mesh(data.mesh)]
    if not problems:
        problems += _sharding_problems(data)
    problems += _number_problems(data, "")
    problems += _solver_problems(data)
    problems += [
        f"`collectives[{index}].group_size`: is 0; expected at least 1"
        for index, collective in enumerate(data.collectives)
        if collective.group_size == 0
    ]
    problems += [
        f"`products[{index}].schedule`: {problem}"
        for index, product in enumerate(data.products)
        if product.schedule is not None
        for problem in product.schedule.problems(data.mesh)
    ]
    return problems + _round_problems(data) + _mesh_search_problems(data)


def _solver_problems(data: PlanData) -> list[str]:
    problems = []
    if data.solver.status not in STATUSES:
        problems.append(
            f'`solver.status`: "{data.solver.status}" is not a status; expected one of '
            + ", ".join(STATUSES)
        )
    if data.solver.overlap not in OVERLAPS:
        problems.append(
            f'`solver.overlap`: is "{data.solver.overlap}"; expected one of {", ".join(OVERLAPS)}'
        )
    return problems


def _round_problems(data: PlanData) -> list[str]:
    problems = []
    if len(data.rounds) == 1:
        problems.append("`rounds`: is a single one; expected none or several")
    for index, (before, after) in enumerate(pairwise(data.rounds), start=1):
        if after.priority <= before.priority:
            problems.append(
                f"`rounds[{index}].priority`: is {after.priority}; expected more than"
                f" {before.priority}"
            )
    problems += [
        f"`rounds[{index}].shardings`: are of {len(found.shardings)} lines; expected"
        f" {len(data.listing)}, as many as in `listing`"
        for index, found in enumerate(data.rounds)
        if len(found.shardings) != len(data.listing)
    ]
    return problems


def _mesh_search_problems(data: PlanData) -> list[str]:
    if data.mesh_search is None:
        return []
    tried = data.mesh_search.tried
    expected = ", ".join(MESH_OUTCOMES)
    problems = [
        f'`mesh_search.tried[{index}].outcome`: "{one.outcome}" is no outcome; expected one of'
        f" {expected}"
        for index, one in enumerate(tried)
        if one.outcome not in MESH_OUTCOMES
    ]
    for index, one in enumerate(tried):
        violations = verify_mesh(one.mesh)
        if not violations and one.mesh.num_devices != data.mesh_search.num_devices:
            violations = [
                f"has {one.mesh.num_devices} devices; expected {data.mesh_search.num_devices}"
            ]
        problems += [f"`mesh_search.tried[{index}].mesh`: {found}" for found in violations]
    chosen = [one.mesh.axes for one in tried if one.outcome == "chosen"]
    if chosen != [data.mesh.axes]:
        problems.append("`mesh_search.tried`: expected one chosen mesh, that of the plan")
    return problems


def _number_problems(value: object, path: str) -> list[str]:
    problems: list[str] = []
    if isinstance(value, (Mesh, Sharding, str, bool)) or value is None:
        return problems
    if dataclasses.is_dataclass(value):
        for item in dataclasses.fields(value):
            inner = f"{path}.{item.name}" if path else item.name
            problems += _number_problems(getattr(value, item.name), inner)
    elif isinstance(value, Mapping):
        for key, item in value.items():
            problems += _number_problems(item, f"{path}[{json.dumps(key)}]")
    elif isinstance(value, Sequence):
        for index, item in enumerate(value):
            problems += _number_problems(item, f"{path}[{index}]")
    elif isinstance(value, (int, float)):
        is_finite = abs(value) <= sys.float_info.max  # of whole numbers too
        if not is_finite and not (value == math.inf and path in _MAY_BE_INFINITE):
            found = value if isinstance(value, float) else shown(value)
            problems.append(f"`{path}`: is {found}; expected a finite number")
        elif value < 0 and not path.endswith(_MAY_BE_NEGATIVE):
            problems.append(f"`{path}`: is {value}; expected 0 or more")
    return problems


def _sharding_problems(data: PlanData) -> list[str]:
    @functools.cache
    def violations(sharding: Sharding, shape: tuple[int, ...] | None) -> list[str]:
        return verify_sharding(sharding, data.mesh, shape)

    tensors = [
        (f"{name}[{index}].sharding", tensor.sharding, tensor.shape)
        for name, listed in (("arguments", data.arguments), ("results", data.results))
        for index, tensor in enumerate(listed)
    ]
    of_any_shape = (*_by_path(data), *_in_lists(data), *_in_rounds(data))
    return [
        f"`{path}`: {violation}"
        for path, sharding, shape in (*tensors, *((*found, None) for found in of_any_shape))
        for violation in violations(sharding, shape)
    ]


def _by_path(data: PlanData) -> Iterator[tuple[str, Sharding]]:
    """Shardings of values by path, each with its place in the plan."""
    for name, shardings in (
        ("values", data.values),
        ("wanted_uses", data.wanted_uses),
        ("constraints", data.constraints or {}),
    ):
        for path, sharding in shardings.items():
            yield f"{name}[{json.dumps(path)}]", sharding
    for path, op in data.on_examples.items():
        place = f"on_examples[{json.dumps(path)}]"
        yield f"{place}.operand", op.operand
        yield from ((f"{place}.results[{i}]", result) for i, result in enumerate(op.results))


def _in_lists(data: PlanData) -> Iterator[tuple[str, Sharding]]:
    """Shardings of misses, ops, products and what is held, each with its place in the plan."""
    for index, miss in enumerate(data.misses):
        yield f"misses[{index}].planned", miss.planned
        yield f"misses[{index}].propagated", miss.propagated
    for name, shardings in (
        ("ops", [op.sharding for op in data.ops]),
        ("memory.live_at_peak", [live.sharding for live in data.memory.live_at_peak]),
        ("memory.held", [held.sharding for held in data.memory.held]),
    ):
        for index, sharding in enumerate(shardings):
            yield f"{name}[{index}].sharding", sharding
    for index, product in enumerate(data.products):
        for place, home in enumerate(product.schedule.homes if product.schedule else ()):
            yield f"products[{index}].schedule.homes[{place}]", home


def _in_rounds(data: PlanData) -> Iterator[tuple[str, Sharding]]:
    """Shardings asked for and decided in rounds, each with its place in the plan."""
    for index, decided in enumerate(data.rounds):
        for number, asked in enumerate(decided.asked):
            yield f"rounds[{index}].asked[{number}].sharding", asked.sharding
        for number, shardings in enumerate(decided.shardings):
            for place, sharding in enumerate(shardings):
                yield f"rounds[{index}].shardings[{number}][{place}]", sharding
