"""Tensor-parallel layouts as tables: the end of a parameter's path to the dimensions it cuts."""

from __future__ import annotations

from collections.abc import Mapping

from experiments.workloads.workload import MegatronRule


def rule_by_path_end(table: Mapping[str, tuple[str | None, ...]]) -> MegatronRule:
    """Turn a table into a rule; what the table does not name is replicated.

    Args:
        table: Path ends such as `"['attn']['wq']"`, each with `"model"` or `None` for the last
            dimensions of that parameter. Dimensions before those, as the layers of a scanned
            stack, stay uncut. The first end that fits wins.

    Returns:
        The rule.
    """

    def rule(path: str, shape: tuple[int, ...]) -> tuple[str | None, ...] | None:
        for end, dims in table.items():
            if path.endswith(end):
                return (None,) * (len(shape) - len(dims)) + dims
        return None

    return rule
