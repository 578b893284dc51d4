"""Where in the user's program an op comes from: the module first, the source line second."""

from __future__ import annotations

import re
from dataclasses import dataclass

_BACKWARD = " backward"
_PLACE = re.compile(
    rf"(?:(?P<module>(?!/)[^\s,:]+)(?P<backward>{_BACKWARD})?(?:, |$))?"
    r"(?:(?P<line>.*?:\d+)(?: \((?P<function>.*)\))?)?"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SourcePlace:
    """The module and line of an op; prints as `h/0/attn backward, train.py:12 (loss)`.

    Args:
        module: Path of the module, `transformer/h/0/attn`; "" for code outside of modules.
        is_backward: The op computes a cotangent; only printed with a module.
        line: `train.py:12`, or "".
        function: That the line is in, or "".
    """

    module: str = ""
    is_backward: bool = False
    line: str = ""
    function: str = ""


def format_source(place: SourcePlace) -> str:
    """`h/0/attn backward, train.py:12 (loss)`, parts that are unknown left out."""
    module = f"{place.module}{_BACKWARD if place.is_backward else ''}" if place.module else ""
    line = f"{place.line} ({place.function})" if place.function else place.line
    return ", ".join(part for part in (module, line) if part)


def parse_source(text: str) -> SourcePlace:
    """Read what `format_source` writes; text of another form is a line as a whole."""
    found = _PLACE.fullmatch(text)
    if found is None:
        return SourcePlace(line=text)
    return SourcePlace(
        module=found["module"] or "",
        is_backward=bool(found["backward"]),
        line=found["line"] or "",
        function=found["function"] or "",
    )
