"""A chip's numbers as a YAML file: read, checked with every error at once, and written.

    chip: v5e
    title: null                 # of a generic model: how reports call it
    is_probed: true             # probes were compiled for this chip
    memory:                     # a section for each policy, a record for each of its fields
      vmem_bytes: {value: 117440512, unit: bytes, probe: "...", compiler: "...", date: 2026-11-22}

A generic model (`tpu.yaml`) has every field of every policy; a chip has those in which it differs
from the model that it replaces fields of, or which a probe confirmed on it.
"""

from __future__ import annotations

import dataclasses
import datetime
import math
import types
import typing
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from autoshard.backends.collectives import CollectivePolicy
from autoshard.backends.fusion import FusionPolicy
from autoshard.backends.layout import LayoutPolicy
from autoshard.backends.memory import MemoryPolicy
from autoshard.backends.probed import Probed
from autoshard.backends.schedule import SchedulePolicy
from autoshard.errors import InputError
from autoshard.files import read_file
from autoshard.yaml_document import MOST_BYTES, DocumentLoader

POLICIES: Mapping[str, type] = types.MappingProxyType(
    {
        "fusion": FusionPolicy,
        "layout": LayoutPolicy,
        "collectives": CollectivePolicy,
        "memory": MemoryPolicy,
        "schedule": SchedulePolicy,
    }
)
"""Policies of a backend by the name of their section."""

_DATA = Path(__file__).parent / "data"
_HEADER: Mapping[str, Any] = {"chip": str | None, "title": str | None, "is_probed": bool}
_RECORD = tuple(field.name for field in dataclasses.fields(Probed))


@dataclass(frozen=True, slots=True, kw_only=True)
class ChipData:
    """A chip's file.

    Args:
        name: Of the file, without its ending; as `Hardware.compiler` has it.
        chip: As people call it: `v5e`; None for a generic model.
        title: Of a generic model, how reports call it; None for a chip.
        is_probed: Probes were compiled for this chip.
        records: By `policy.field`, each of the type that the policy gives the field.
    """

    name: str
    chip: str | None
    title: str | None
    is_probed: bool
    records: Mapping[str, Probed]


def chip_data(name: str) -> ChipData:
    """The data of a chip that comes with autoshard."""
    return load_chip(_DATA / f"{name}.yaml")


def load_chip(path: Path) -> ChipData:
    """Read a chip's file.

    Raises:
        InputError: The file cannot be read or is no YAML, or has unknown keys, missing ones or
            values of another type; every one is named.
    """
    try:
        text = read_file(path, most_bytes=MOST_BYTES).decode("utf-8")
        data = yaml.load(text, Loader=DocumentLoader)
    except (OSError, UnicodeDecodeError, yaml.YAMLError) as error:
        raise InputError(
            f"the file cannot be read: {error}", where=f"chip data {path}", fix="give a YAML file"
        ) from error
    problems: list[str] = []
    found = _chip(path.stem, data, problems)
    if problems:
        raise chip_error(problems, str(path))
    return found


def chip_error(problems: list[str], where: str) -> InputError:
    """One error for all the problems of a chip's data."""
    noun = "problem" if len(problems) == 1 else "problems"
    return InputError(
        f"{len(problems)} {noun}:" + "".join(f"\n  - {problem}" for problem in problems),
        where=f"chip data {where}",
        fix="write each field of a policy as {value, unit, probe, compiler, date}",
    )


def format_chip(data: ChipData) -> str:
    """The chip as YAML text that `load_chip` reads back to an equal value."""
    lines = [f"{key}: {_flow(getattr(data, key))}\n" for key in _HEADER]
    for title, policy in POLICIES.items():
        found = {
            field.name: data.records[f"{title}.{field.name}"]
            for field in dataclasses.fields(policy)
            if f"{title}.{field.name}" in data.records
        }
        lines += [f"{title}:\n"] if found else []
        for name, record in found.items():
            parts = {key: _plain(getattr(record, key)) for key in _RECORD}
            lines.append(f"  {name}: {_flow(parts)}\n")
    return "".join(lines)


def _flow(item: object) -> str:
    text = yaml.safe_dump(item, default_flow_style=True, sort_keys=False, width=math.inf)
    return str(text).removesuffix("...\n").strip()


def _plain(value: object) -> object:
    if isinstance(value, frozenset):
        return sorted(value)
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _chip(name: str, data: object, problems: list[str]) -> ChipData:
    if not isinstance(data, dict):
        problems.append(f"the file is {data!r}; expected a mapping")
        data = {}
    known = (*_HEADER, *POLICIES)
    problems.extend(
        f"`{key}` is unknown; expected {', '.join(known)}" for key in data if key not in known
    )
    header = {}
    for key, hint in _HEADER.items():
        if key not in data:
            problems.append(f"`{key}` is missing")
        header[key] = typed(data.get(key), hint, key, problems) if key in data else None
    records: dict[str, Probed] = {}
    for title, policy in POLICIES.items():
        section = data.get(title, {})
        if not isinstance(section, dict):
            problems.append(f"`{title}` is {section!r}; expected a section with fields")
            continue
        hints = typing.get_type_hints(policy)
        for key, record in section.items():
            path = f"{title}.{key}"
            if key not in hints:
                problems.append(f"`{path}` is unknown; `{title}` has {', '.join(hints)}")
            elif (found := _record(record, hints[key], path, problems)) is not None:
                records[path] = found
    return ChipData(
        name=name, **typing.cast("Any", header), records=types.MappingProxyType(records)
    )


def _record(data: object, hint: object, path: str, problems: list[str]) -> Probed | None:
    if not isinstance(data, dict) or set(data) != set(_RECORD):
        problems.append(f"`{path}` is {data!r}; expected {{{', '.join(_RECORD)}}}")
        return None
    before = len(problems)
    value = typed(data["value"], hint, f"{path}.value", problems)
    texts = {key: typed(data[key], str, f"{path}.{key}", problems) for key in ("unit", "probe")}
    compiler = typed(data["compiler"], str | None, f"{path}.compiler", problems)
    date = _date(data["date"])
    if date is None:
        problems.append(f"`{path}.date` is {data['date']!r}; expected a date such as 2026-11-22")
    if date is None or len(problems) > before:
        return None
    return Probed(value=value, **typing.cast("Any", texts), compiler=compiler, date=date)


def _date(value: object) -> datetime.date | None:
    """The day that a text names; None where it names none."""
    try:
        return datetime.date.fromisoformat(value) if isinstance(value, str) else None
    except ValueError:
        return None


def typed(value: object, hint: Any, path: str, problems: list[str]) -> Any:
    """The value in the type that a hint names; a problem is added where it is of another one."""
    origin, args = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else typed(value, args[0], path, problems)
    if origin is frozenset and isinstance(value, list):
        return frozenset(typed(item, args[0], path, problems) for item in value)
    if origin is tuple and isinstance(value, list) and args[-1] is Ellipsis:
        return tuple(typed(item, args[0], path, problems) for item in value)
    if origin is tuple and isinstance(value, list) and len(value) == len(args):
        pairs = zip(value, args, strict=True)
        return tuple(typed(item, arg, path, problems) for item, arg in pairs)
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if isinstance(hint, type) and type(value) is hint and value != "":
        return value
    problems.append(f"`{path}` is {value!r}; expected {_spoken(hint)}")
    return None


def _spoken(hint: Any) -> str:
    plain = {int: "a whole number", float: "a number", str: "text", bool: "true or false"}
    if hint in plain:
        return plain[hint]
    args = typing.get_args(hint)
    if typing.get_origin(hint) in (tuple, frozenset):
        return f"a list of {_spoken(args[0])}"
    return "text or null"
