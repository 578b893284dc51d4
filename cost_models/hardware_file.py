"""A machine in a YAML file: read, checked with every error at once, and written.

The file has the fields of `Hardware` as keys, sections nested as the dataclasses are:

    name: my-machine
    backend: gpu                      # cpu, tpu or gpu
    has_reduce_scatter: true
    collective_launch_seconds: 8.0e-06
    compute: {matmul: {...}, vector: {...}, matmul_tile: [16, 16, 16], ..., source: ...}
    memory: {capacity_bytes: 80000000000, ..., source: ...}
    torus: null                       # this or `switch`
    switch: {link: {...}, domain_size: 8, source: ...}
    network: {bytes_per_second: 50.0e+9, ..., source: ...}

Fields that have a default may be left out.

`format_hardware(get_hardware("h100"))` prints a whole one to start from.
"""

from __future__ import annotations

import dataclasses
import math
import os
import re
import sys
import types
import typing
from typing import Any

import yaml

from cost_models.errors import CostModelError
from cost_models.files import read_file, write_file
from cost_models.hardware import (
    Hardware,
    hardware_error,
    quantity_of,
)
from cost_models.measured import CollectiveSample, OpSample
from cost_models.quantities import Quantity, quantity_problem
from cost_models.yaml_document import MOST_BYTES, DocumentLoader

_MOST_SHOWN = 100  # letters of a value in a message
_NUMBER = r"(?P<number>[0-9]+\.?[0-9]*(?:e[+-]?[0-9]+)?)\s*"
_PREFIX = r"(?P<prefix>[kmgtp]?)(?P<binary>i?)"
_PREFIXES = {"": 1.0, "k": 1e3, "m": 1e6, "g": 1e9, "t": 1e12, "p": 1e15}
_SMALL_PREFIXES = {"": 1.0, "m": 1e-3, "u": 1e-6, "\u00b5": 1e-6, "n": 1e-9}
_UNITS: tuple[tuple[str, re.Pattern[str]], ...] = (
    ("seconds", re.compile(_NUMBER + "(?P<prefix>[mun\u00b5]?)s(ec(onds?)?)?")),
    (
        "bytes per second",
        re.compile(
            rf"{_NUMBER}{_PREFIX}(?P<unit>bits?/s(ec)?|bps|b/s|bytes/s(ec)?)", re.IGNORECASE
        ),
    ),
    ("bytes", re.compile(rf"{_NUMBER}{_PREFIX}(?P<unit>bytes|bits?|b)", re.IGNORECASE)),
    ("FLOP per second", re.compile(rf"{_NUMBER}{_PREFIX}(flops?(/s)?|ops?(/s)?)", re.IGNORECASE)),
    ("cycles per second", re.compile(rf"{_NUMBER}{_PREFIX}hz", re.IGNORECASE)),
    ("a fraction of the peak", re.compile(rf"{_NUMBER}%")),
)
"""What a number with a unit measures, and how it is written."""


class _Row(dict[str, Any]):
    """Fields that are written on one line: there are many samples."""


class _Dumper(yaml.SafeDumper):
    """YAML's safe dumper that knows rows."""


def _row(dumper: _Dumper, row: _Row) -> yaml.Node:
    return dumper.represent_mapping("tag:yaml.org,2002:map", row.items(), flow_style=True)


_Dumper.add_representer(_Row, _row)


def load_hardware(path: str | os.PathLike[str]) -> Hardware:
    """Reads a machine from a YAML file.

    Raises:
        CostModelError: The file cannot be read, is no YAML, or describes no machine; every
            problem is named with the path of its field.
    """
    where = f"hardware file {os.fspath(path)}"
    fix = "give the path of a YAML file"
    try:
        text = read_file(path, most_bytes=MOST_BYTES).decode()
    except OSError as error:
        raise CostModelError(
            f"the file cannot be read: {error.strerror or error}", where=where, fix=fix
        ) from error
    except UnicodeDecodeError as error:
        raise CostModelError(
            f"the file is not text: byte {error.start} is not UTF-8", where=where, fix=fix
        ) from error
    return parse_hardware(text, where=where)


def parse_hardware(text: str, *, where: str = "hardware description") -> Hardware:
    """Reads a machine from YAML text; `where` names it in errors.

    Raises:
        CostModelError: As `load_hardware`.
    """
    try:
        data = yaml.load(text, Loader=DocumentLoader)
    except yaml.YAMLError as error:
        raise CostModelError(
            f"the text is no YAML: {error}", where=where, fix="correct the line it names"
        ) from error
    problems: list[str] = []
    hardware = _read(data, Hardware, "", problems)
    if problems:
        raise hardware_error(problems, where=where)
    assert isinstance(hardware, Hardware)
    return hardware


def format_hardware(hardware: Hardware) -> str:
    """The machine as YAML text that `parse_hardware` reads back to an equal value."""
    return yaml.dump(
        _plain(hardware),
        Dumper=_Dumper,
        sort_keys=False,
        default_flow_style=False,
        allow_unicode=True,
        width=100,
    )


def save_hardware(hardware: Hardware, path: str | os.PathLike[str]) -> None:
    """Writes the machine to a YAML file; the file is there whole or not at all.

    Raises:
        CostModelError: The file cannot be written.
    """
    try:
        write_file(path, format_hardware(hardware).encode())
    except OSError as error:
        raise CostModelError(
            f"the file cannot be written: {error.strerror or error}",
            where=f"hardware file {os.fspath(path)}",
            fix="give a path in a directory that exists and may be written to",
        ) from error


def _plain(value: object) -> Any:
    if dataclasses.is_dataclass(value):
        fields = {
            field.name: _plain(getattr(value, field.name)) for field in dataclasses.fields(value)
        }
        return _Row(fields) if isinstance(value, (CollectiveSample, OpSample)) else fields
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    return value


def _read(value: object, hint: object, path: str, problems: list[str]) -> object:
    """The value a type hint asks for; problems are added to the list, and None returned."""
    if dataclasses.is_dataclass(hint) and isinstance(hint, type):
        return _read_section(value, hint, path, problems)
    origin = typing.get_origin(hint)
    if origin in (typing.Union, types.UnionType):
        inner = next(arg for arg in typing.get_args(hint) if arg is not type(None))
        return None if value is None else _read(value, inner, path, problems)
    if origin is tuple:
        return _read_tuple(value, hint, path, problems)
    if origin is typing.Literal:
        allowed = typing.get_args(hint)
        if value in allowed:
            return value
        problems.append(f"`{path}` is {_shown(value)}; expected one of {', '.join(allowed)}")
        return None
    quantity = quantity_of(hint)
    if quantity is not None:
        return _read_number(value, hint, quantity, path, problems)
    expected = {str: "text", bool: "true or false"}[typing.cast("type", hint)]
    if isinstance(value, typing.cast("type", hint)) and value != "":
        return value
    problems.append(f"`{path}` is {_shown(value)}; expected {expected}")
    return None


def _read_section(value: object, kind: type, path: str, problems: list[str]) -> object:
    name = f"`{path}`" if path else "the description"
    if not isinstance(value, dict):
        problems.append(f"{name} is {_shown(value)}; expected a section with fields")
        return None
    hints = typing.get_type_hints(kind, include_extras=True)
    before = len(problems)
    problems.extend(
        f"`{_inner(path, _key(key))}` is not a field; {name} has {', '.join(hints)}"
        for key in value
        if key not in hints
    )
    optional = _optional_fields(kind)
    read: dict[str, object] = {}
    for field, hint in hints.items():
        inner = _inner(path, field)
        if field in value:
            read[field] = _read(value[field], hint, inner, problems)
        elif field not in optional:
            problems.append(f"`{inner}` is missing{_expectation(hint)}")
    if len(problems) > before:
        return None
    try:
        return typing.cast("object", kind(**read))
    except CostModelError as error:
        problems.extend(line.strip("- ") for line in error.what.splitlines()[1:])
        return None


def _optional_fields(kind: type) -> frozenset[str]:
    return frozenset(
        field.name
        for field in dataclasses.fields(kind)
        if field.default is not dataclasses.MISSING
        or field.default_factory is not dataclasses.MISSING
    )


def _inner(path: str, field: str) -> str:
    return f"{path}.{field}" if path else field


def _expectation(hint: object) -> str:
    quantity = quantity_of(hint)
    return f"; expected {quantity.unit}, such as {quantity.example}" if quantity else ""


def _read_tuple(value: object, hint: object, path: str, problems: list[str]) -> object:
    args = typing.get_args(hint)
    any_length = len(args) == 2 and args[1] is Ellipsis
    if not isinstance(value, list) or not (any_length or len(value) == len(args)):
        size = "a list" if any_length else f"a list of {len(args)}"
        problems.append(f"`{path}` is {_shown(value)}; expected {size}")
        return None
    return tuple(
        _read(item, args[0] if any_length else args[index], f"{path}[{index}]", problems)
        for index, item in enumerate(value)
    )


def _read_number(
    value: object, hint: object, quantity: Quantity, path: str, problems: list[str]
) -> float | int | None:
    whole = typing.get_args(hint)[0] is int
    number: float | None = None
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        number = value if abs(value) <= sys.float_info.max else math.inf
    elif isinstance(value, str):
        number = _number_in(value)
    if number is None:
        instead = _suggestion(value, quantity, whole)
        problems.append(f"`{path}` is {_shown(value)}; expected {quantity.unit}, {instead}")
        return None
    problem = quantity_problem(number, quantity)
    if not problem and whole and number != int(number):
        problem = f"is {number}; expected a whole number"
    if problem:
        problems.append(f"`{path}` {problem}")
        return None
    return int(number) if whole else float(number)


def _key(key: object) -> str:
    return key if isinstance(key, str) and len(key) <= _MOST_SHOWN else _shown(key)


def _shown(value: object) -> str:
    """A value of the file, cut where it is long."""
    try:
        text = repr(value)
    except ValueError:  # Python prints no integer of more than 4300 digits
        text = "a number of more than 4300 digits"
    return text if len(text) <= _MOST_SHOWN else f"{text[: _MOST_SHOWN - 3]}..."


def _number_in(text: str) -> float | None:
    """A number that YAML 1.1 reads as text because of its exponent, such as 3.35e12."""
    try:
        return float(text)
    except ValueError:
        return None


def _suggestion(value: object, quantity: Quantity, whole: bool) -> str:
    """What to write instead of a number with a unit; an example where that cannot be told."""
    text = value.strip() if isinstance(value, str) else ""
    for measured, pattern in _UNITS:
        match = pattern.fullmatch(text)
        if match is None:
            continue
        if measured != quantity.unit:
            return f"not {measured}, such as {quantity.example}"
        number = float(match["number"]) * _scale(measured, match)
        return f"so write {round(number) if whole else _yaml_number(number)}"
    return f"such as {quantity.example}"


def _scale(measured: str, match: re.Match[str]) -> float:
    """What a unit multiplies its number with."""
    if measured == "a fraction of the peak":
        return 0.01
    if measured == "seconds":
        return _SMALL_PREFIXES[match["prefix"]]
    prefix = match["prefix"].lower()
    if match["binary"] and prefix:
        scale = 1024.0 ** ("kmgtp".index(prefix) + 1)
    else:
        scale = _PREFIXES[prefix]
    unit = match.groupdict().get("unit") or ""
    is_bits = unit.lower().startswith("bit") or unit in ("b", "b/s", "bps")
    return scale / 8 if is_bits else scale


def _yaml_number(number: float) -> str:
    return str(yaml.safe_dump(float(f"{number:.12g}"))).removesuffix("...\n").strip()
