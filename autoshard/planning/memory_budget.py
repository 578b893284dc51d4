"""What "memory_budget" may be, as bytes per device."""

from __future__ import annotations

import re

from autoshard.errors import InputError

_UNITS = {
    "": 1,
    "B": 1,
    "KB": 10**3,
    "MB": 10**6,
    "GB": 10**9,
    "TB": 10**12,
    "KIB": 2**10,
    "MIB": 2**20,
    "GIB": 2**30,
    "TIB": 2**40,
}
_AMOUNT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([A-Za-z]*)\s*")
_PERCENT = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*%\s*")
_LEAST_BYTES = 1024
"""Of a budget in text or with a fraction, without a unit: fewer are a slip for gigabytes."""


def parse_memory_budget(budget: str | float | None, device_bytes: int) -> int | None:
    """Bytes one device may hold.

    Args:
        budget: `"auto"` (all the device offers), None (no limit), a number of bytes, text with a
            unit (`"80GiB"`, `"64GB"`), or a share of the device: `"90%"`, `"0.9"`, 0.9.
        device_bytes: What the device offers to a program.

    Raises:
        InputError: It is none of these, or not above zero.
    """
    if budget is None or budget == "auto":
        return device_bytes if budget == "auto" else None
    amount: float
    if isinstance(budget, str) and (percent := _PERCENT.fullmatch(budget)) is not None:
        amount = float(percent[1]) / 100
        if amount > 1:
            raise _not_a_budget(budget)
        is_fraction = True
    elif isinstance(budget, str):
        match = _AMOUNT.fullmatch(budget)
        if match is None or match[2].upper() not in _UNITS:
            raise _not_a_budget(budget)
        amount = float(match[1]) * _UNITS[match[2].upper()]
        is_fraction = not match[2] and 0 < amount <= 1
        if not match[2] and 1 < amount < _LEAST_BYTES:
            raise _without_unit(budget)
    elif isinstance(budget, bool) or not isinstance(budget, (int, float)):
        raise _not_a_budget(budget)
    else:
        amount = float(budget)
        is_fraction = isinstance(budget, float) and 0 < amount <= 1
        if isinstance(budget, float) and 1 < amount < _LEAST_BYTES:
            raise _without_unit(budget)
    if not 0 < amount < 1e18:
        raise _not_a_budget(budget)
    return int(amount * device_bytes) if is_fraction else int(amount)


def parse_bytes(text: str) -> int:
    """An amount of memory as bytes: `80GiB`, `64GB`, `16000000000`.

    Raises:
        InputError: It is none, or not above zero.
    """
    match = _AMOUNT.fullmatch(text)
    amount = 0.0
    if match is not None and match[2].upper() in _UNITS:
        amount = float(match[1]) * _UNITS[match[2].upper()]
    if not 1 <= amount < 1e18:
        raise InputError(
            f"{text!r} is not an amount of memory",
            where=text,
            fix='write bytes (16000000000) or a unit ("16GiB", "16GB")',
        )
    return int(amount)


def _without_unit(budget: str | float) -> InputError:
    return InputError(
        f"memory budget {budget!r} has no unit, and so many bytes hold no program",
        where="memory_budget",
        fix=f'write the unit, as in "{str(budget).strip()}GiB"; a fraction of the device is at'
        " most 1",
    )


def _not_a_budget(budget: object) -> InputError:
    return InputError(
        f"memory budget {budget!r} is not an amount of memory above zero",
        where="memory_budget",
        fix='write bytes (16_000_000_000), a unit ("16GiB", "16GB"), a fraction of the device'
        ' (0.9), "auto" for all of it, or None for no limit',
    )
