"""Which line of the user's code an equation or an exception comes from."""

from __future__ import annotations

import functools
import os
import sysconfig
from types import CodeType, TracebackType
from typing import Any

import jax
import jaxlib
from jax.extend.core import JaxprEqn

_LIBRARY_DIRECTORIES = tuple(
    os.path.join(os.path.dirname(os.path.realpath(path)), "")
    for path in (jax.__file__, jaxlib.__file__, os.path.dirname(os.path.realpath(__file__)))
)
_STANDARD_LIBRARY = os.path.join(os.path.realpath(sysconfig.get_path("stdlib")), "")
_INSTALLED = (f"{os.sep}site-packages{os.sep}", f"{os.sep}dist-packages{os.sep}")


@functools.cache
def _rank(filename: str) -> int:
    """0: the user's own file, 1: an installed library, 2: JAX, autoshard, Python itself."""
    path = os.path.realpath(filename)
    if filename.startswith("<frozen ") or path.startswith(_LIBRARY_DIRECTORIES):
        return 2
    if any(part in path for part in _INSTALLED):
        return 1
    return 2 if path.startswith(_STANDARD_LIBRARY) else 0


class SourceLines:
    """Reads the user's line off equations, remembering what each code position is called.

    The user's own files win over installed libraries (so a Flax layer is shown by the line that
    calls it), and the innermost such frame wins over its callers.
    """

    def __init__(self) -> None:
        self._texts: dict[tuple[CodeType, int], str] = {}

    def line(self, eqn: JaxprEqn) -> str:
        """`file.py:12 (function)`, or "" when no frame of the user's is known."""
        traceback = eqn.source_info.traceback
        if traceback is None:
            return ""
        codes, positions = traceback.raw_frames()
        library: tuple[CodeType, int] | None = None
        for frame in zip(codes, positions, strict=True):
            rank = _rank(frame[0].co_filename)
            if rank == 0:
                return self._text(traceback, frame)
            if rank == 1 and library is None:
                library = frame
        return "" if library is None else self._text(traceback, library)

    def _text(self, traceback: Any, frame: tuple[CodeType, int]) -> str:
        text = self._texts.get(frame)
        if text is None:
            code, position = frame
            number = type(traceback).code_addr2line(code, position)
            text = self._texts[frame] = f"{code.co_filename}:{number} ({code.co_name})"
        return text


def line_of_exception(error: BaseException) -> str:
    """The innermost line of the user's own files that an exception comes from, or "".

    Where it was raised after tracing, JAX keeps the line of the operation in its cause.
    """
    found = ("", 2)
    cause: BaseException | None = error
    while cause is not None and found[1] > 0:
        line, rank = _innermost_line(cause.__traceback__)
        if rank < found[1]:
            found = (line, rank)
        cause = cause.__cause__
    return found[0]


def _innermost_line(traceback: TracebackType | None) -> tuple[str, int]:
    found = ""
    found_rank = 2
    while traceback is not None:
        code = traceback.tb_frame.f_code
        rank = _rank(code.co_filename)
        if rank <= found_rank and rank < 2:
            found = f"{code.co_filename}:{traceback.tb_lineno} ({code.co_name})"
            found_rank = rank
        traceback = traceback.tb_next
    return found, found_rank
