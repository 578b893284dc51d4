"""Pages as tests see them: code blocks to run, what they print, links and headings."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).parents[2]

_FENCE = re.compile(r"^(?P<indent> *)```(?P<language>[a-z]*)\s*$")
_LINK = re.compile(r"(?<!!)\[[^\]]+\]\((?P<target>[^)\s]+)\)")
_HEADING = re.compile(r"^#+ (?P<title>.+?)\s*$")
_FILE_NAME = re.compile(r"# (?P<name>\w+\.(?:py|yaml))\n")


@dataclass(frozen=True, slots=True)
class Block:
    """A fenced block of a page.

    Args:
        language: What stands behind the opening fence: `python`, `console`, `text` or nothing.
        text: Its lines, without the fences.
        line: The line of the page its text begins on, counted from 1.
    """

    language: str
    text: str
    line: int

    @property
    def file_name(self) -> str:
        """The file a block is the content of, told by its first line: `# train.py`."""
        match = _FILE_NAME.match(self.text) if self.language in ("python", "yaml") else None
        return match["name"] if match else ""


def find_pages() -> list[Path]:
    """The README and every page of the documentation, in a stated order."""
    return [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    """The fenced blocks of a page, in order.

    Raises:
        ValueError: A fence is never closed.
    """
    found: list[Block] = []
    opening: re.Match[str] | None = None
    lines: list[str] = []
    start = 0
    for number, line in enumerate(page.read_text(encoding="utf-8").splitlines(), start=1):
        match = _FENCE.match(line)
        if opening is None:
            if match:
                opening, lines, start = match, [], number + 1
        elif match and not match["language"]:
            text = "".join(f"{kept}\n" for kept in lines)
            found.append(Block(opening["language"], text, start))
            opening = None
        else:
            lines.append(line.removeprefix(opening["indent"]))
    if opening is not None:
        raise ValueError(f"{page_name(page)}:{start - 1}: this fence is never closed")
    return found


def prose_of(page: Path) -> Iterator[str]:
    """The lines of a page outside its fenced blocks."""
    is_inside = False
    for line in page.read_text(encoding="utf-8").splitlines():
        if _FENCE.match(line):
            is_inside = not is_inside
        elif not is_inside:
            yield line


def links_of(page: Path) -> list[str]:
    return [match["target"] for line in prose_of(page) for match in _LINK.finditer(line)]


def anchors_of(page: Path) -> set[str]:
    """What `#...` links to a page may name: its headings, in lower case and with hyphens."""
    titles = [match["title"] for line in prose_of(page) if (match := _HEADING.match(line))]
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def section_of(page: Path, marker: str) -> str:
    """What stands between `<!-- marker -->` and the next `<!-- end -->`, without the comments."""
    _, found, rest = page.read_text(encoding="utf-8").partition(f"<!-- {marker} -->\n")
    inner, ended, _ = rest.partition("<!-- end -->")
    if not found or not ended:
        raise ValueError(f"{page_name(page)} has no section `{marker}`")
    return inner
