"""What memory terms of nodes are for, beside values themselves."""

from __future__ import annotations

PARTIAL, SUMMED, ROWS, WORK = "partial sum", "sum", "rows to sum", "working memory"
"""What is held until it is summed over devices, what the sum is written to meanwhile, rows of which
the sum takes the place, and what an op holds beside its operands and results."""
