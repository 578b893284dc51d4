"""The ops inside an MLIR op, those in its regions included."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any


def operations_of(op: Any) -> Iterator[Any]:
    """Every op inside, an op before those in its regions."""
    for region in op.regions:
        for block in region.blocks:
            for view in list(block.operations):
                inner = view.operation
                yield inner
                if len(inner.regions):
                    yield from operations_of(inner)
