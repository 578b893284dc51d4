"""Random text in Shardy's grammar, and the verdict of the Shardy inside jaxlib on it."""

from __future__ import annotations

from experiments.shardy_oracle.agreement import KINDS, Agreement, count_agreement
from experiments.shardy_oracle.oracle import SdyOracle, Verdict

__all__ = ["KINDS", "Agreement", "SdyOracle", "Verdict", "count_agreement"]
