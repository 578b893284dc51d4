"""Tags of the memory terms of nodes that are not values themselves."""

from __future__ import annotations

PARTIAL, SUMMED, ROWS, WORK = "partial sum", "sum", "rows to sum", "working memory"
"""Partial sums until devices sum them, buffers that sums are written to meanwhile, rows whose place
the sum takes, and buffers that an op holds beside its operands and results."""
PEELED = "of the last run"
"""Stacks of the run that is peeled off a loop, while that runs."""
UNWRITTEN, WRITTEN = "result to write", "result"
"""Results of the program that take no argument's buffer, before they are written and after it."""
