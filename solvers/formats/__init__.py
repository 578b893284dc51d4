"""Problem files."""

from solvers.formats.any_format import read_any
from solvers.formats.iopddl import read_iopddl, write_iopddl
from solvers.formats.native import read_problem, write_problem

__all__ = ["read_any", "read_iopddl", "read_problem", "write_iopddl", "write_problem"]
