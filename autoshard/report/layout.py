"""How reports are laid out: headings, tables that adapt to the width, and a console to print on."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from io import StringIO
from typing import TextIO

from rich import box
from rich.console import Console, ConsoleOptions, Group, RenderableType, RenderResult
from rich.padding import Padding
from rich.table import Table
from rich.text import Text

from autoshard.report.markup import visible

_NARROWEST_TABLE = 70  # columns; below it, lists read better


def plain(text: str, style: str = "") -> Text:
    """Text as it is, but for control characters, which are shown instead of obeyed."""
    return Text.assemble((visible(text), style))


def heading(text: str, remark: str = "") -> Text:
    """A section's title, with a remark in a quieter voice."""
    title = plain(text, "bold")
    if remark:
        title.append("  ").append_text(plain(remark, "dim"))
    return title


def section(title: Text, *body: RenderableType) -> RenderableType:
    """A title with its body, a blank line before."""
    return Group(Text(), title, *body)


def indented(text: str, style: str = "") -> RenderableType:
    return Padding(plain(text, style), (0, 0, 0, 2))


@dataclass(frozen=True, slots=True)
class FoldingTable:
    """A table; where the width is short, a list with one entry per row instead.

    Args:
        columns: Headers; one that begins with `>` holds numbers: right-aligned, kept whole.
        rows: A cell per column, taken as it is: no markup.
    """

    columns: tuple[str, ...]
    rows: tuple[tuple[Text, ...], ...]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        wide = options.max_width >= _NARROWEST_TABLE
        yield Padding(self._grid() if wide else self._entries(), (0, 0, 0, 2))

    def _grid(self) -> RenderableType:
        grid = Table(box=box.SIMPLE_HEAD, pad_edge=False, show_edge=False, header_style="dim")
        for header in self.columns:
            if header.startswith(">"):
                grid.add_column(Text(header[1:]), justify="right", no_wrap=True)
            else:
                grid.add_column(Text(header), overflow="fold")
        for row in self.rows:
            grid.add_row(*row)
        return grid

    def _entries(self) -> RenderableType:
        lines: list[RenderableType] = []
        for first, *others in self.rows:
            lines.append(first)
            for header, cell in zip(self.columns[1:], others, strict=True):
                if cell.plain:
                    line = plain(f"{header.removeprefix('>')} ", "dim").append_text(cell)
                    lines.append(Padding(line, (0, 0, 0, 2)))
        return Group(*lines)


def table(columns: Iterable[str], rows: Iterable[Iterable[str | Text]]) -> FoldingTable:
    """A `FoldingTable` of plain or styled cells."""
    return FoldingTable(
        tuple(columns),
        tuple(
            tuple(cell if isinstance(cell, Text) else plain(cell) for cell in row) for row in rows
        ),
    )


def render_text(body: RenderableType, width: int) -> str:
    """Plain text, no line longer than `width`, no colours, no blanks at line ends."""
    file = StringIO()
    console = Console(
        file=file, width=width, color_system=None, force_terminal=False, legacy_windows=False
    )
    console.print(body, highlight=False, markup=False, emoji=False)
    lines = [line.rstrip() for line in file.getvalue().split("\n")]
    return "\n".join(lines).strip("\n") + "\n"


def print_on(body: RenderableType, file: TextIO, width: int | None = None) -> None:
    """Print on a terminal in its width, with colours if it has them; elsewhere as plain text."""
    console = Console(file=file, width=width)
    if console.is_terminal:
        console.print(body, highlight=False, markup=False, emoji=False)
    else:
        file.write(render_text(body, width or 100))
