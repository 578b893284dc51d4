"""The ops inside an MLIR op, those in its regions included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def operations_of(op: Any) -> Iterator[Any]:
    """Every op inside, an op before those in its regions."""
    for region in op.regions:
        for block in region.blocks:
            for inner in list(block.operations):
                yield inner.operation
                yield from operations_of(inner.operation)
