"""The API reference: what users call, with the docstrings that `help` shows."""

from __future__ import annotations

import inspect
import re
from collections.abc import Iterator
from typing import Any

import autoshard

_SECTIONS = {"Args": "Arguments", "Returns": "Returns", "Raises": "Raises"}
_ENTRY = re.compile(r"    ([*\w]+): (.*)")


def api_reference() -> str:
    """Functions and classes that users make, and the methods of a plan, in Markdown."""
    return "\n".join(_chapters())


def _chapters() -> Iterator[str]:
    for name in autoshard.__all__:
        value = getattr(autoshard, name)
        if inspect.isclass(value) and issubclass(value, BaseException):
            continue
        yield from _entry(f"autoshard.{name}", value, depth=2)
        if value is autoshard.Plan:
            for method, found in vars(value).items():
                if not method.startswith("_") and (
                    inspect.isfunction(found) or isinstance(found, property)
                ):
                    yield from _entry(f"Plan.{method}", found, depth=3)


def _entry(name: str, value: Any, *, depth: int) -> Iterator[str]:
    yield f"{'#' * depth} {name}\n"
    if callable(value):
        yield f"```\n{_signature(name, value)}\n```\n"
    yield from _paragraphs(inspect.getdoc(value) or "")


def _signature(name: str, value: Any) -> str:
    """Parameters one a line, with their defaults and without types."""
    found = [
        one.replace(annotation=one.empty)
        for one in inspect.signature(value).parameters.values()
        if one.name != "self"
    ]
    lines, is_keyword_only = [], False
    for one in found:
        if one.kind is one.KEYWORD_ONLY and not is_keyword_only:
            is_keyword_only = True
            if not any(other.kind is other.VAR_POSITIONAL for other in found):
                lines.append("*")
        lines.append(str(one))
    return (
        f"{name}(\n" + "".join(f"    {line},\n" for line in lines) + ")" if lines else f"{name}()"
    )


def _paragraphs(text: str) -> Iterator[str]:
    """A docstring in Google's style: its paragraphs as they are, its sections as lists."""
    for block in text.split("\n\n"):
        first, _, rest = block.partition("\n")
        title = _SECTIONS.get(first.removesuffix(":"))
        if title is None or not first.endswith(":"):
            yield f"{block}\n"
            continue
        yield f"**{title}**\n"
        yield "\n".join(_items(rest)) + "\n"


def _items(text: str) -> Iterator[str]:
    lines = text.splitlines()
    if not any(map(_ENTRY.fullmatch, lines)):
        yield " ".join(line.strip() for line in lines)
        return
    item = ""
    for line in lines:
        found = _ENTRY.fullmatch(line)
        if found and item:
            yield item
        item = f"* `{found[1]}`: {found[2]}" if found else f"{item} {line.strip()}"
    yield item
