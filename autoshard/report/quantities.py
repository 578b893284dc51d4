"""Numbers as people read them: three digits and a decimal unit."""

from __future__ import annotations

import math

_SECONDS = ((1.0, "s"), (1e-3, "ms"), (1e-6, "us"), (1e-9, "ns"))
_BYTES = ((1e12, "TB"), (1e9, "GB"), (1e6, "MB"), (1e3, "kB"))


def format_bytes(num_bytes: float) -> str:
    """`1.34 GB`; decimal, as vendors count."""
    for unit, name in _BYTES:
        if num_bytes >= 0.9995 * unit:
            return f"{_three_digits(num_bytes / unit)} {name}"
    return f"{round(num_bytes):,} B"


def format_seconds(seconds: float) -> str:
    """`12.3 ms`."""
    if seconds == 0:
        return "0 s"
    for unit, name in _SECONDS:
        if seconds >= 0.9995 * unit:
            return f"{_three_digits(seconds / unit)} {name}"
    return f"{seconds / 1e-9:.2g} ns"


def format_percent(fraction: float) -> str:
    """`0.64 %`; a small one is never rounded to nothing."""
    percent = 100 * fraction
    if not math.isfinite(percent):
        return "unknown"
    if percent == 0:
        return "0 %"
    if percent < 0.01:
        return "< 0.01 %"
    if percent < 0.9995:
        return f"{percent:.2f} %"
    return f"{_three_digits(percent)} %"


def format_ratio(ratio: float) -> str:
    """`1.52x`."""
    return f"{_three_digits(ratio)}x" if math.isfinite(ratio) else "-"


def format_count(count: float) -> str:
    """`3`, `2.5`, `12,000`."""
    return f"{count:,.0f}" if count >= 1000 or count == round(count) else f"{count:.3g}"


def _three_digits(number: float) -> str:
    if number >= 999.5:
        return f"{number:,.0f}"
    if number >= 99.95:
        return f"{number:.0f}"
    return f"{number:.1f}" if number >= 9.995 else f"{number:.2f}"
