"""Plans as JSON files: versioned, checked when read and when written, the same bytes every time.

The file is one JSON object. `format` and `version` say what it is; the other members are the fields
of `PlanData`, objects within objects as in the dataclasses. Meshes and shardings are text in
Shardy's grammar, tuples are arrays, an infinite number is the text `inf`; NaN has no place in a
plan. Members stand in alphabetical order, one item of a list or mapping to a line, so that two
plans compare line by line.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import os
import types
import typing
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from autoshard.errors import AutoshardError, PlanError
from autoshard.plans.plan import FORMAT_VERSION, MESH_OUTCOMES, PlanData
from autoshard.plans.whole_file import write_whole
from autoshard.sharding import (
    Mesh,
    Sharding,
    format_mesh,
    format_sharding,
    parse_mesh,
    parse_sharding,
    verify_mesh,
    verify_sharding,
)

FORMAT_NAME = "autoshard plan"
OVERLAPS = ("auto", "none")
STATUSES = ("optimal", "within gap", "feasible", "infeasible", "no solution")

_INFINITY = "inf"
_MAY_BE_INFINITE = frozenset({"solver.gap"})
_MAY_BE_NEGATIVE = ".extra_seconds"
# Files without them are read; defaults stand in.
_ADDED_LATER = frozenset(
    {
        "Baseline.overlapped_seconds",
        "DotSchedule.both_ways",
        "DotSchedule.moved",
        "DotSchedule.rings",
        "MemoryUse.held",
        "PlanData.mesh_search",
        "PlanData.overlapped_seconds",
        "PlanData.places",
        "PredictedCollective.is_windowed",
        "SolverFacts.overlap",
    }
)
_MAX_SHOWN = 20
_REMAKE = "make the plan again with `autoshard plan`, or take the file from where it was saved"

Json: TypeAlias = Any  # what `json.loads` returns
T = TypeVar("T")


def dump_plan(data: PlanData) -> str:
    """A plan as JSON text, which `parse_plan` reads back; equal plans give equal text.

    Raises:
        PlanError: The plan breaks a rule of `verify_plan`.
    """
    problems = verify_plan(data)
    if problems:
        raise PlanError(
            _listed(problems, "in the plan"),
            where=f"plan for {data.function}",
            fix="this plan was not made by autoshard, or autoshard made a mistake: report it",
        )
    members: dict[str, Json] = {"format": FORMAT_NAME, "version": FORMAT_VERSION}
    members.update(_encode(PlanData, data))
    lines = (f"{_text(key)}: {_lines(members[key])}" for key in sorted(members))
    return "{\n" + ",\n".join(lines) + "\n}\n"


def parse_plan(text: str, where: str = "") -> PlanData:
    """Read a plan and check it.

    Args:
        text: What `dump_plan` wrote.
        where: The file, for messages.

    Raises:
        PlanError: The text is cut, is no plan, is of another version, or breaks rules; then every
            one of them is named with its path inside the file, as in `arguments[3].sharding`.
    """
    members = _parse_json(text, where)
    _check_header(members, where)
    reader = _Reader()
    del members["format"], members["version"]
    data = reader.record(PlanData, members, "")
    problems = reader.problems
    if data is not None and not problems:
        problems = verify_plan(data)
    if data is None or problems:
        raise PlanError(_listed(problems, "in the plan file"), where=where, fix=_REMAKE)
    return data


def save_plan(data: PlanData, path: str | os.PathLike[str]) -> None:
    """Write a plan to a file, whole or not at all.

    Raises:
        PlanError: The plan breaks a rule of `verify_plan`, or the file cannot be written.
    """
    text = dump_plan(data)
    try:
        write_whole(path, text.encode())
    except OSError as error:
        raise PlanError(
            f"the plan cannot be written: {error.strerror or error}",
            where=os.fspath(path),
            fix="name a file in a folder that exists and that you may write to",
        ) from error


def load_plan_data(path: str | os.PathLike[str]) -> PlanData:
    """Read a plan from a file that `save_plan` wrote.

    Raises:
        PlanError: The file cannot be read, or as `parse_plan`.
    """
    where = os.fspath(path)
    try:
        text = Path(path).read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise PlanError(
            f"the file is not text: byte {error.start} is not UTF-8", where=where, fix=_REMAKE
        ) from error
    except OSError as error:
        raise PlanError(
            f"the plan file cannot be read: {error.strerror or error}",
            where=where,
            fix="give the path of a file that `autoshard plan --out` or `plan.save` wrote",
        ) from error
    return parse_plan(text, where)


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
    if data.solver.status not in STATUSES:
        problems.append(
            f'`solver.status`: "{data.solver.status}" is not a status; expected one of '
            + ", ".join(STATUSES)
        )
    if data.solver.overlap not in OVERLAPS:
        problems.append(
            f'`solver.overlap`: is "{data.solver.overlap}"; expected one of {", ".join(OVERLAPS)}'
        )
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
    elif isinstance(value, tuple):
        for index, item in enumerate(value):
            problems += _number_problems(item, f"{path}[{index}]")
    elif isinstance(value, (int, float)):
        if not math.isfinite(value) and not (value == math.inf and path in _MAY_BE_INFINITE):
            problems.append(f"`{path}`: is {value}; expected a finite number")
        elif value < 0 and not path.endswith(_MAY_BE_NEGATIVE):
            problems.append(f"`{path}`: is {value}; expected 0 or more")
    return problems


def _sharding_problems(data: PlanData) -> list[str]:
    @functools.cache
    def violations(sharding: Sharding, shape: tuple[int, ...] | None) -> list[str]:
        return verify_sharding(sharding, data.mesh, shape)

    found: list[tuple[str, Sharding, tuple[int, ...] | None]] = []
    for name, tensors in (("arguments", data.arguments), ("results", data.results)):
        found += [(f"{name}[{i}].sharding", t.sharding, t.shape) for i, t in enumerate(tensors)]
    for name, by_path in (
        ("values", data.values),
        ("wanted_uses", data.wanted_uses),
        ("constraints", data.constraints or {}),
    ):
        found += [(f"{name}[{json.dumps(path)}]", s, None) for path, s in by_path.items()]
    for index, miss in enumerate(data.misses):
        found.append((f"misses[{index}].planned", miss.planned, None))
        found.append((f"misses[{index}].propagated", miss.propagated, None))
    found += [(f"ops[{i}].sharding", op.sharding, None) for i, op in enumerate(data.ops)]
    found += [
        (f"memory.live_at_peak[{i}].sharding", live.sharding, None)
        for i, live in enumerate(data.memory.live_at_peak)
    ]
    found += [
        (f"memory.held[{i}].sharding", held.sharding, None)
        for i, held in enumerate(data.memory.held)
    ]
    for index, product in enumerate(data.products):
        homes = product.schedule.homes if product.schedule is not None else ()
        found += [
            (f"products[{index}].schedule.homes[{place}]", home, None)
            for place, home in enumerate(homes)
        ]
    for index, decided in enumerate(data.rounds):
        found += [
            (f"rounds[{index}].asked[{i}].sharding", asked.sharding, None)
            for i, asked in enumerate(decided.asked)
        ]
        found += [
            (f"rounds[{index}].shardings[{i}][{place}]", sharding, None)
            for i, shardings in enumerate(decided.shardings)
            for place, sharding in enumerate(shardings)
        ]
    return [
        f"`{path}`: {violation}"
        for path, sharding, shape in found
        for violation in violations(sharding, shape)
    ]


def _listed(problems: list[str], place: str) -> str:
    noun = "problem" if len(problems) == 1 else "problems"
    lines = "".join(f"\n  - {problem}" for problem in problems[:_MAX_SHOWN])
    rest = len(problems) - _MAX_SHOWN
    more = f"\n  - and {rest} more" if rest > 0 else ""
    return f"{len(problems)} {noun} {place}:{lines}{more}"


# Writing


def _encode(hint: Any, value: Any) -> Json:
    """A value as JSON, by its declared type: a float field that holds an int is written as one."""
    return _encoder(hint)(value)


@functools.cache
def _encoder(hint: Any) -> Callable[[Any], Json]:
    if hint is float:
        return _encode_float
    if hint is int:
        return operator.index
    if hint is Sharding:
        return functools.lru_cache(maxsize=4096)(format_sharding)
    if hint is Mesh:
        return format_mesh
    if dataclasses.is_dataclass(hint):
        as_class: Any = hint
        members = [(name, _encoder(inner)) for name, inner in sorted(_fields(as_class).items())]
        return lambda value: {name: encode(getattr(value, name)) for name, encode in members}
    inner_hints = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is tuple and inner_hints[-1] is Ellipsis:
        item = _encoder(inner_hints[0])
        return lambda value: [item(element) for element in value]
    if origin is tuple:
        items = tuple(_encoder(inner) for inner in inner_hints)
        return lambda value: [encode(x) for encode, x in zip(items, value, strict=True)]
    if origin is Mapping:
        item = _encoder(inner_hints[1])
        return lambda value: {key: item(value[key]) for key in value}
    if origin is types.UnionType:
        item = _encoder(_without_none(inner_hints))
        return lambda value: None if value is None else item(value)
    return lambda value: value


def _encode_float(value: float) -> float | str:
    return _INFINITY if value == math.inf else float(value)


def _text(value: Json) -> str:
    return json.dumps(value, sort_keys=True, separators=(", ", ": "), allow_nan=False)


def _lines(value: Json) -> str:
    """A member of the plan: one line per item of a long list or of a mapping."""
    if isinstance(value, dict) and value:
        items = [f"  {_text(key)}: {_text(value[key])}" for key in sorted(value)]
        return "{\n" + ",\n".join(items) + "\n}"
    if isinstance(value, list) and value:
        return "[\n" + ",\n".join(f"  {_text(item)}" for item in value) + "\n]"
    return _text(value)


# Reading


def _parse_json(text: str, where: str) -> dict[str, Json]:
    repeated: list[str] = []

    def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        found = dict(pairs)
        if len(found) != len(pairs):
            keys = [key for key, _ in pairs]
            repeated.extend(sorted({key for key in keys if keys.count(key) > 1}))
        return found

    try:
        read = json.loads(text, object_pairs_hook=members)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        is_cut = error.pos >= len(text.rstrip()) or error.msg.startswith("Unterminated")
        raise PlanError(
            f"the plan file is cut: it ends in the middle of a value ({at})"
            if is_cut
            else f"the plan file is not JSON: {error.msg.lower()} at {at}",
            where=where,
            fix=_REMAKE,
        ) from error
    except (RecursionError, ValueError) as error:
        raise PlanError(
            f"the plan file is not JSON that a plan could be: {error}", where=where, fix=_REMAKE
        ) from error
    if repeated:
        raise PlanError(
            f"the plan file names {', '.join(f'`{key}`' for key in repeated)} twice in one object",
            where=where,
            fix=_REMAKE,
        )
    if not isinstance(read, dict) or read.get("format") != FORMAT_NAME:
        raise PlanError(
            f'this JSON is not an autoshard plan: it has no `"format": "{FORMAT_NAME}"`',
            where=where,
            fix="give a file that `autoshard plan --out` or `plan.save` wrote",
        )
    return read


def _check_header(members: dict[str, Json], where: str) -> None:
    version = members.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise PlanError(
            f"`version`: expected a whole number, found {_shown(version)}",
            where=where,
            fix=_REMAKE,
        )
    if version != FORMAT_VERSION:
        newer = version > FORMAT_VERSION
        raise PlanError(
            f"the plan file is of version {version}; this autoshard reads version {FORMAT_VERSION}",
            where=where,
            fix="upgrade autoshard to the version that wrote it, or make the plan again here"
            if newer
            else "make the plan again with this version of autoshard",
        )


@dataclass(slots=True)
class _Reader:
    """Turns JSON into values by their declared types, and keeps every problem on the way.

    A value that cannot be read is None, and its problem is on the list.
    """

    problems: list[str] = field(default_factory=list)
    sharding_by_text: dict[str, Sharding] = field(default_factory=dict)

    def record(self, cls: type[T], read: Json, path: str) -> T | None:
        if not isinstance(read, dict):
            self.refuse(path, "an object", read)
            return None
        before = len(self.problems)
        hints = _fields(typing.cast("Any", cls))
        prefix = f"{path}." if path else ""
        values = {}
        for name, hint in hints.items():
            if name in read:
                values[name] = self.value(hint, read[name], f"{prefix}{name}")
            elif f"{cls.__name__}.{name}" not in _ADDED_LATER:
                self.problems.append(f"`{prefix}{name}`: is missing")
        self.problems += [
            f"`{prefix}{name}`: is not a field of a plan" for name in read if name not in hints
        ]
        return cls(**values) if len(self.problems) == before else None

    def value(self, hint: Any, read: Json, path: str) -> Any:
        if hint in (str, int, float, bool):
            return self.scalar(hint, read, path)
        if hint is Sharding:
            return self.sharding(read, path)
        if hint is Mesh:
            return self.parsed(parse_mesh, "a mesh as text", read, path)
        if dataclasses.is_dataclass(hint):
            return self.record(typing.cast("type[Any]", hint), read, path)
        inner = typing.get_args(hint)
        origin = typing.get_origin(hint)
        if origin is types.UnionType:
            return None if read is None else self.value(_without_none(inner), read, path)
        if origin is Mapping:
            return self.mapping(inner[1], read, path)
        return self.array(inner, read, path)

    def scalar(self, hint: type, read: Json, path: str) -> Any:
        if hint is float:
            if read == _INFINITY:
                return math.inf
            if isinstance(read, (int, float)) and not isinstance(read, bool):
                try:
                    return float(read)
                except OverflowError:
                    return math.inf
            self.refuse(path, "a number", read)
            return None
        if isinstance(read, hint) and (hint is bool or not isinstance(read, bool)):
            return read
        expected = {str: "text", int: "a whole number", bool: "true or false"}[hint]
        self.refuse(path, expected, read)
        return None

    def sharding(self, read: Json, path: str) -> Sharding | None:
        if isinstance(read, str) and read in self.sharding_by_text:
            return self.sharding_by_text[read]
        found = self.parsed(parse_sharding, "a sharding as text", read, path)
        if found is not None:
            self.sharding_by_text[read] = found
        return found

    def parsed(self, parse: Callable[[str], T], expected: str, read: Json, path: str) -> T | None:
        if not isinstance(read, str):
            self.refuse(path, expected, read)
            return None
        try:
            return parse(read)
        except AutoshardError as error:
            self.problems.append(f"`{path}`: {error.what} in {_shown(read)}")
            return None

    def mapping(self, hint: Any, read: Json, path: str) -> dict[str, Any] | None:
        if not isinstance(read, dict):
            self.refuse(path, "an object", read)
            return None
        return {
            key: self.value(hint, item, f"{path}[{json.dumps(key)}]") for key, item in read.items()
        }

    def array(self, hints: tuple[Any, ...], read: Json, path: str) -> tuple[Any, ...] | None:
        if not isinstance(read, list):
            self.refuse(path, "a list", read)
            return None
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(read)
        elif len(hints) != len(read):
            self.refuse(path, f"a list of {len(hints)}", read)
            return None
        pairs: Iterable[tuple[Any, Json]] = zip(hints, read, strict=True)
        return tuple(
            self.value(hint, item, f"{path}[{index}]") for index, (hint, item) in enumerate(pairs)
        )

    def refuse(self, path: str, expected: str, read: Json) -> None:
        self.problems.append(f"`{path}`: expected {expected}, found {_shown(read)}")


@functools.cache
def _fields(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)}


def _without_none(hints: tuple[Any, ...]) -> Any:
    (hint,) = (hint for hint in hints if hint is not type(None))
    return hint


def _shown(read: Json) -> str:
    """A JSON value as the file has it, cut where it is long."""
    text = json.dumps(read)
    return f"`{text}`" if len(text) <= 60 else f"`{text[:57]}...`"
