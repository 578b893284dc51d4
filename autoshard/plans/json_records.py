"""Dataclasses as JSON or YAML and back, by the declared types of their fields.

Meshes and shardings are text in Shardy's grammar, tuples are arrays, an infinite number is the text
`inf`.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import math
import operator
import types
import typing
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeAlias, TypeVar

from autoshard.errors import AutoshardError
from autoshard.printable import printable
from autoshard.sharding import (
    Mesh,
    Sharding,
    format_mesh,
    format_sharding,
    parse_mesh,
    parse_sharding,
)

Json: TypeAlias = Any  # what `json.loads` returns
T = TypeVar("T")

MOST_LETTERS = 10_000
"""Of a line of text."""

_LONG = frozenset(
    {"ProgramRecord.line_digests", "CompiledAhead.text", "CompiledAhead.memory_report"}
)
"""Texts of any length, which nobody is shown."""

_INFINITY = "inf"


def encode_record(value: Any) -> Json:
    """A dataclass as JSON; a float field that holds an int is written as a float."""
    kind: Any = type(value)
    return _encoder(kind)(value)


@functools.cache
def _encoder(hint: Any) -> Callable[[Any], Json]:
    if hint is float:
        return _encode_float
    if hint is int:
        return operator.index
    if hint is str:
        return functools.partial(printable, most_letters=MOST_LETTERS)
    if hint is Sharding:
        return functools.lru_cache(maxsize=4096)(format_sharding)
    if hint is Mesh:
        return format_mesh
    if dataclasses.is_dataclass(hint):
        as_class: Any = hint
        members = [
            (name, str if f"{as_class.__name__}.{name}" in _LONG else _encoder(inner))
            for name, inner in sorted(_fields(as_class).items())
        ]
        return lambda value: {name: encode(getattr(value, name)) for name, encode in members}
    inner_hints = typing.get_args(hint)
    origin = typing.get_origin(hint)
    if origin is Sequence or (origin is tuple and inner_hints[-1] is Ellipsis):
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


@dataclass(slots=True)
class RecordReader:
    """Turns JSON into values by their declared types, and keeps every problem on the way.

    A value that cannot be read is None, and its problem is on the list.

    Args:
        added_later: Fields, as `Class.name`, that a file may be without; defaults stand in.
        problems: What is wrong so far, each with its path inside the file.
    """

    added_later: frozenset[str] = frozenset()
    problems: list[str] = field(default_factory=list)
    _sharding_by_text: dict[str, Sharding] = field(default_factory=dict)

    def record(self, cls: type[T], read: Json, path: str = "") -> T | None:
        """A dataclass from the object that stands at a path of the file."""
        if not isinstance(read, dict):
            self._refuse(path, "an object", read)
            return None
        before = len(self.problems)
        hints = _fields(typing.cast("Any", cls))
        prefix = f"{path}." if path else ""
        values = {}
        for name, hint in hints.items():
            if name in read:
                item = read[name]
                if f"{cls.__name__}.{name}" in _LONG and isinstance(item, str):
                    values[name] = item
                else:
                    values[name] = self._value(hint, item, f"{prefix}{name}")
            elif f"{cls.__name__}.{name}" not in self.added_later:
                self.problems.append(f"`{prefix}{name}`: is missing")
        self.problems += [
            f"`{prefix}{name}`: is not a field here" for name in read if name not in hints
        ]
        return cls(**values) if len(self.problems) == before else None

    def _value(self, hint: Any, read: Json, path: str) -> Any:
        if hint in (str, int, float, bool):
            return self._scalar(hint, read, path)
        if hint is Sharding:
            return self._sharding(read, path)
        if hint is Mesh:
            return self._mesh(read, path)
        if dataclasses.is_dataclass(hint):
            return self.record(typing.cast("type[Any]", hint), read, path)
        inner = typing.get_args(hint)
        origin = typing.get_origin(hint)
        if origin is types.UnionType:
            return None if read is None else self._value(_without_none(inner), read, path)
        if origin is Mapping:
            return self._mapping(inner[1], read, path)
        return self._array((*inner, ...) if origin is Sequence else inner, read, path)

    def _scalar(self, hint: type, read: Json, path: str) -> Any:
        if hint is float:
            if read == _INFINITY:
                return math.inf
            if isinstance(read, (int, float)) and not isinstance(read, bool):
                try:
                    return float(read)
                except OverflowError:
                    return math.inf
            self._refuse(path, "a number", read)
            return None
        if isinstance(read, str) and hint is str:
            return self._text(read, path)
        if isinstance(read, hint) and (hint is bool or not isinstance(read, bool)):
            return read
        expected = {str: "text", int: "a whole number", bool: "true or false"}[hint]
        self._refuse(path, expected, read)
        return None

    def _text(self, read: str, path: str) -> str | None:
        if printable(read, MOST_LETTERS) == read:
            return read
        self._refuse(path, f"text of at most {MOST_LETTERS:,} printable letters", read)
        return None

    def _mesh(self, read: Json, path: str) -> Mesh | None:
        found = self._parsed(parse_mesh, "a mesh as text", read, path)
        if found is not None and not all(axis.name.isprintable() for axis in found.axes):
            self._refuse(path, "axes whose names are printable", read)
        return found

    def _sharding(self, read: Json, path: str) -> Sharding | None:
        if isinstance(read, str) and read in self._sharding_by_text:
            return self._sharding_by_text[read]
        found = self._parsed(parse_sharding, "a sharding as text", read, path)
        if found is not None:
            self._sharding_by_text[read] = found
        return found

    def _parsed(self, parse: Callable[[str], T], expected: str, read: Json, path: str) -> T | None:
        if not isinstance(read, str):
            self._refuse(path, expected, read)
            return None
        try:
            return parse(read)
        except AutoshardError as error:
            self.problems.append(f"`{path}`: {error.what} in {shown(read)}")
            return None

    def _mapping(self, hint: Any, read: Json, path: str) -> dict[str, Any] | None:
        if not isinstance(read, dict):
            self._refuse(path, "an object", read)
            return None
        return {
            self._scalar(str, key, path) or "": self._value(
                hint, item, f"{path}[{json.dumps(key)}]"
            )
            for key, item in read.items()
        }

    def _array(self, hints: tuple[Any, ...], read: Json, path: str) -> tuple[Any, ...] | None:
        if not isinstance(read, list):
            self._refuse(path, "a list", read)
            return None
        if hints[-1] is Ellipsis:
            hints = (hints[0],) * len(read)
        elif len(hints) != len(read):
            self._refuse(path, f"a list of {len(hints)}", read)
            return None
        pairs: Iterable[tuple[Any, Json]] = zip(hints, read, strict=True)
        return tuple(
            self._value(hint, item, f"{path}[{index}]") for index, (hint, item) in enumerate(pairs)
        )

    def _refuse(self, path: str, expected: str, read: Json) -> None:
        self.problems.append(f"`{path}`: expected {expected}, found {shown(read)}")


@functools.cache
def _fields(cls: type) -> dict[str, Any]:
    hints = typing.get_type_hints(cls)
    return {item.name: hints[item.name] for item in dataclasses.fields(cls)}


def _without_none(hints: tuple[Any, ...]) -> Any:
    (hint,) = (hint for hint in hints if hint is not type(None))
    return hint


def shown(read: Json) -> str:
    """A JSON value as the file has it, cut where it is long."""
    if isinstance(read, int) and read.bit_length() > 64:  # Python writes none of 4300 digits
        return "a number of many digits"
    text = ""
    for piece in json.JSONEncoder().iterencode(read):  # no more of it than is shown
        text += piece[:61]
        if len(text) > 60:
            return f"`{text[:57]}...`"
    return f"`{text}`"
