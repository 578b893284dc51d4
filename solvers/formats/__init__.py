"""Problem files."""

from solvers.formats.iopddl import read_iopddl

__all__ = ["read_iopddl"]
