"""Small pictures as SVG text: boxes, words and arrows."""

from __future__ import annotations

import colorsys
from dataclasses import dataclass, field

FONT = "font-family='Helvetica,Arial,sans-serif'"


@dataclass(slots=True)
class Picture:
    """What has been drawn so far; `text` gives the file.

    Positions are in pixels from the upper left corner.
    """

    width: float
    height: float
    parts: list[str] = field(default_factory=list)
    heads: dict[str, str] = field(default_factory=dict)

    def box(self, x: float, y: float, width: float, height: float, fill: str = "none") -> None:
        """A rectangle with a thin edge."""
        self.parts.append(
            f"<rect x='{x:g}' y='{y:g}' width='{width:g}' height='{height:g}' fill='{fill}'"
            " stroke='#444' stroke-width='.7'/>"
        )

    def word(
        self, x: float, y: float, text: str, *, size: float = 11, anchor: str = "middle"
    ) -> None:
        """Text whose base line is at `y`."""
        escaped = text.replace("&", "&amp;").replace("<", "&lt;")
        self.parts.append(
            f"<text x='{x:g}' y='{y:g}' font-size='{size:g}' text-anchor='{anchor}'>{escaped}"
            "</text>"
        )

    def arrow(
        self,
        start: tuple[float, float],
        end: tuple[float, float],
        colour: str,
        bend: float,
        *,
        is_faint: bool = False,
    ) -> None:
        """A curve from one place to another, bent to its left by a share of its length."""
        name = self.heads.setdefault(colour, f"h{len(self.heads)}")
        dx, dy = end[0] - start[0], end[1] - start[1]
        middle = (
            (start[0] + end[0]) / 2 + dy * bend,
            (start[1] + end[1]) / 2 - dx * bend,
        )
        faint = " opacity='.35'" if is_faint else ""
        self.parts.append(
            f"<path{faint} d='M{start[0]:.0f} {start[1]:.0f}Q{middle[0]:.0f} {middle[1]:.0f}"
            f" {end[0]:.0f} {end[1]:.0f}' fill='none' stroke='{colour}' stroke-width='1.3'"
            f" marker-end='url(#{name})'/>"
        )

    def text(self) -> str:
        """The file."""
        heads = "".join(
            f"<marker id='{name}' viewBox='0 0 6 6' refX='5' refY='3' markerWidth='5'"
            f" markerHeight='5' orient='auto'><path d='M0 0L6 3L0 6z' fill='{colour}'/></marker>"
            for colour, name in self.heads.items()
        )
        inside = "\n".join(self.parts)
        return (
            f"<svg xmlns='http://www.w3.org/2000/svg' width='{self.width:g}'"
            f" height='{self.height:g}' viewBox='0 0 {self.width:g} {self.height:g}' {FONT}>\n"
            f"<defs>{heads}</defs>\n"
            f"<rect width='{self.width:g}' height='{self.height:g}' fill='#fff'/>\n"
            f"{inside}\n</svg>\n"
        )


def tint(index: int, num: int) -> str:
    """The `index`-th of `num` light colours that differ as much as they can."""
    red, green, blue = colorsys.hls_to_rgb(index / max(num, 1), 0.82, 0.65)
    return f"#{round(red * 255):02x}{round(green * 255):02x}{round(blue * 255):02x}"
