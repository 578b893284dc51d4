"""Plans as JSON files: versioned, checked when read and when written, the same bytes every time.

The file is one JSON object. `format` and `version` say what it is; the other members are the fields
of `PlanData`, objects within objects as in the dataclasses. Meshes and shardings are text in
Shardy's grammar, tuples are arrays, an infinite number is the text `inf`; NaN has no place in a
plan. Members stand in alphabetical order, one item of a list or mapping to a line, so that two
plans compare line by line.
"""

from __future__ import annotations

import json
import os
import string
from collections import Counter

from autoshard.argument_types import check_types
from autoshard.errors import PlanError
from autoshard.plans.json_records import Json, RecordReader, encode_record, shown
from autoshard.plans.plan import FORMAT_VERSION, PlanData
from autoshard.plans.verify_plan import verify_plan
from autoshard.printable import printable
from autoshard.user_files import read_or_refuse, write_or_refuse

FORMAT_NAME = "autoshard plan"

# Files without them are read; defaults stand in.
_ADDED_LATER = frozenset(
    {
        "Baseline.overlapped_seconds",
        "DotSchedule.both_ways",
        "DotSchedule.moved",
        "DotSchedule.rings",
        "MemoryUse.held",
        "MemoryUse.host_bytes",
        "MemoryUse.order",
        "PlanData.accumulation",
        "PlanData.compiler_model",
        "PlanData.mesh_search",
        "PlanData.offloaded",
        "PlanData.on_examples",
        "PlanData.overlapped_seconds",
        "PlanData.places",
        "PlanData.refinement",
        "PlanData.residuals",
        "PlanData.waiting_seconds",
        "PlannedTensor.is_on_host",
        "ProgramRecord.argument_axes",
        "Residual.is_offloaded",
        "TriedResiduals.offloaded_bytes",
        "ProgramRecord.explicit_axes",
        "SolverFacts.model_gap",
        "SolverFacts.overlap",
        "StreamedUpdate.pieces",
        "TriedPlan.also",
    }
)
MOST_MEMBERS, MOST_LISTS = 4_000_000, 4_000_000
"""In a plan file: it is read in some seconds, and what holds more is no plan."""

_MAX_SHOWN = 20
_OF_NUMBERS_AND_WORDS = string.ascii_letters + string.digits + string.whitespace + "+-."
_REMAKE = "make the plan again with `autoshard plan`, or take the file from where it was saved"


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
    members.update(encode_record(data))
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
    reader = RecordReader(_ADDED_LATER)
    del members["format"], members["version"]
    data = reader.record(PlanData, members)
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
    check_types(path=path)
    write_or_refuse(path, dump_plan(data).encode(), "the plan", PlanError)


def load_plan_data(path: str | os.PathLike[str]) -> PlanData:
    """Read a plan from a file that `save_plan` wrote.

    Raises:
        PlanError: The file cannot be read, or as `parse_plan`.
    """
    check_types(path=path)
    where = os.fspath(path)
    fix = "give the path of a file that `autoshard plan --out` or `plan.save` wrote"
    content = read_or_refuse(path, "the plan file", fix, PlanError)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise PlanError(
            f"the file is not text: byte {error.start} is not UTF-8", where=where, fix=_REMAKE
        ) from error
    return parse_plan(text, where)


def _listed(problems: list[str], place: str) -> str:
    noun = "problem" if len(problems) == 1 else "problems"
    lines = "".join(f"\n  - {problem}" for problem in problems[:_MAX_SHOWN])
    rest = len(problems) - _MAX_SHOWN
    more = f"\n  - and {rest} more" if rest > 0 else ""
    return f"{len(problems)} {noun} {place}:{lines}{more}"


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


def _parse_json(text: str, where: str) -> dict[str, Json]:
    repeated: list[str] = []

    num_members = 0

    def members(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
        nonlocal num_members
        num_members += 1 + len(pairs)
        if num_members > MOST_MEMBERS:
            raise ValueError(f"more than {MOST_MEMBERS:,} objects and members")
        found = dict(pairs)
        if len(found) != len(pairs):
            counts = Counter(key for key, _ in pairs)
            repeated.extend(sorted(key for key, count in counts.items() if count > 1))
        return found

    try:
        if text.count("[") > MOST_LISTS:
            raise ValueError(f"more than {MOST_LISTS:,} lists")
        read = json.loads(text, object_pairs_hook=members)
    except json.JSONDecodeError as error:
        at = f"line {error.lineno}, column {error.colno}"
        is_last = text[error.pos :].strip(_OF_NUMBERS_AND_WORDS) == ""
        is_cut = is_last or error.msg.startswith("Unterminated")
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
            f"the plan file names {_named(repeated)} twice in one object",
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


def _named(keys: list[str]) -> str:
    return ", ".join(f"`{printable(key, 60)}`" for key in keys[:_MAX_SHOWN])


def _check_header(members: dict[str, Json], where: str) -> None:
    version = members.get("version")
    if isinstance(version, bool) or not isinstance(version, int):
        raise PlanError(
            f"`version`: expected a whole number, found {shown(version)}",
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
