"""Reads a problem file in whichever format it is."""

from __future__ import annotations

from pathlib import Path

from solvers.errors import FormatError
from solvers.formats.iopddl import parse_iopddl
from solvers.formats.json_file import read_document
from solvers.formats.native import parse_problem
from solvers.problem import Problem


def read_any(path: str | Path, *, until: float | None = None) -> Problem:
    """Reads a problem in our own format or the contest's, told apart by content.

    Args:
        path: A regular file.
        until: `time.monotonic` value by which it must be read; None for no limit.

    Raises:
        FormatError: It is neither; names the path inside the file.
        TimeoutError: Time is up.
        OSError: The file cannot be read.
    """
    document = read_document(path, until=until)
    if isinstance(document, dict) and "format" in document:
        return parse_problem(document, source=str(path))
    if not isinstance(document, dict) or "problem" not in document:
        raise FormatError(
            'has neither "problem" (IOPDDL) nor "format" (this package\'s own)',
            where=str(path),
            fix="the formats are described in solvers.formats.iopddl and solvers.formats.native",
        )
    return parse_iopddl(document, source=str(path))
