"""Markup as data, and as text: what is text in it is shown as it is, and obeyed nowhere."""

from __future__ import annotations

import html
from dataclasses import dataclass
from typing import TypeAlias

_EMPTY_TAGS = frozenset({"br", "input", "meta"})

Attribute: TypeAlias = str | int | bool | None


@dataclass(frozen=True, slots=True)
class Element:
    """An element of HTML or SVG.

    Args:
        tag: `td`.
        attributes: Names as they are written, and values.
        children: What is inside: text that is not markup, and elements.
    """

    tag: str
    attributes: tuple[tuple[str, str], ...]
    children: tuple[Node, ...]


Node: TypeAlias = "Element | str"


def element(tag: str, *children: Node | None, **attributes: Attribute) -> Element:
    """An element; children that are None are left out.

    Args:
        tag: Its name.
        children: What is inside.
        attributes: Underscores stand for hyphens, but for one at the end, which goes: `class_`,
            `aria_label`. One that is None or False is left out, one that is True has no value.
    """
    return Element(
        tag,
        tuple(
            (name.rstrip("_").replace("_", "-"), "" if value is True else str(value))
            for name, value in attributes.items()
            if value is not None and value is not False
        ),
        tuple(child for child in children if child is not None),
    )


def write_markup(node: Node) -> str:
    """Markup as text, every letter of the text in it escaped where it needs to be."""
    parts: list[str] = []
    _write(node, parts)
    return "".join(parts)


def _write(node: Node, parts: list[str]) -> None:
    if isinstance(node, str):
        parts.append(html.escape(visible(node)))
        return
    attributes = "".join(
        f' {name}="{html.escape(visible(value))}"' if value else f" {name}"
        for name, value in node.attributes
    )
    parts.append(f"<{node.tag}{attributes}>")
    if node.tag in _EMPTY_TAGS:
        return
    for child in node.children:
        _write(child, parts)
    parts.append(f"</{node.tag}>")


def visible(text: str) -> str:
    """Text as it is, but for control characters, which are shown instead of obeyed."""
    if text.isprintable():
        return text
    return "".join(
        letter if letter.isprintable() or letter == "\n" else repr(letter)[1:-1] for letter in text
    )
