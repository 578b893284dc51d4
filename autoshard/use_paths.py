"""Paths of reads: `7.jaxpr/38<1` is operand 1 of an equation, `7.jaxpr/38<1&52<0` is two reads.

Reads that share a path are of one value, in one body of the program.
"""

from __future__ import annotations

from collections.abc import Sequence

_AND = "&"


def join_uses(uses: Sequence[str]) -> str:
    """The path of several reads of one body, in the order given."""
    body = uses[0].rpartition("/")[0]
    prefix = f"{body}/" if body else ""
    return prefix + _AND.join(use.removeprefix(prefix) for use in uses)


def split_uses(path: str) -> tuple[str, ...]:
    """The single reads of a path; a path of anything else is its own only one."""
    body, slash, inside = path.rpartition("/")
    return tuple(f"{body}{slash}{use}" for use in inside.split(_AND))
