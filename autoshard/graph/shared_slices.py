"""Values of which kernels take slices that a TPU does not compute again for each of them."""

from __future__ import annotations

from autoshard.graph.program import Graph


def is_sliced_apart(graph: Graph, value: int) -> bool:
    """True for a value that several ops read, one of which takes a slice of it.

    Source: products, a tanh and conversions to float32, of whose halves, shifted rows, or half and
        whole one or two kernels compute, by libtpu 0.0.52 for a v5e: all are stored, also where no
        element is computed twice; read whole by two kernels, each computes them.
    """
    readers = graph.consumers[value]
    return len(readers) > 1 and any(graph.ops[index].name == "slice" for index in readers)
