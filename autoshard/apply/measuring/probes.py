"""What is measured: collectives by size and group, ops by class, dtype and size."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

COLLECTIVES = ("all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter")


@dataclass(frozen=True, slots=True)
class CollectiveProbe:
    """A collective of float32 in groups of neighbours, all groups at once.

    Attributes:
        kind: Of collective.
        group_size: Devices of one group.
        full_bytes: Of one device, the larger side.
    """

    kind: str
    group_size: int
    full_bytes: int


@dataclass(frozen=True, slots=True)
class OpProbe:
    """An op, on every device the same.

    Attributes:
        op_class: "copy", "elementwise", "matmul", "gather", "scatter" or "sort".
        dtype: Of the operands.
        dims: (m, n, k) of a product, (rows, columns) of a gather or scatter, (elements,) else.
    """

    op_class: str
    dtype: str
    dims: tuple[int, ...]


Probe = CollectiveProbe | OpProbe
Family = tuple[Probe, ...]
"""Probes of one kind and dtype."""


def family_name(family: Family) -> str:
    """`all-gather`, `matmul of bfloat16`."""
    first = family[0]
    if isinstance(first, CollectiveProbe):
        return first.kind
    return f"{first.op_class} of {first.dtype}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeSizes:
    """How large the probes are; each list begins with what tells most.

    Attributes:
        collective_bytes: Of the larger side, multiples of 4 times the number of devices.
        copy_elements: Of a copy.
        arithmetic_elements: Of an element-wise op bound by arithmetic.
        matmul_dims: (m, n, k): large, small, flat and ragged.
        rows: (rows, columns) that are gathered and scattered.
        sort_elements: Of a sort.
        rough_flops_per_second: Of one device; tells only how often a probe is repeated.
        rough_bytes_per_second: Likewise.
    """

    collective_bytes: tuple[int, ...]
    copy_elements: tuple[int, ...]
    arithmetic_elements: tuple[int, ...]
    matmul_dims: tuple[tuple[int, int, int], ...]
    rows: tuple[tuple[int, int], ...]
    sort_elements: tuple[int, ...]
    rough_flops_per_second: float
    rough_bytes_per_second: float


_KIB, _MIB = 2**10, 2**20

HOST_SIZES = ProbeSizes(
    collective_bytes=(4 * _KIB, _MIB, 64 * _KIB, 4 * _MIB, 256 * _KIB),
    copy_elements=(256, _MIB, 64 * _KIB, 256 * _KIB, 8 * _KIB),
    arithmetic_elements=(64 * _KIB, 4 * _KIB, 16 * _KIB),
    matmul_dims=(
        (256, 256, 256),
        (64, 64, 64),
        (100, 300, 77),
        (384, 384, 384),
        (8, 512, 512),
        (512, 512, 32),
        (129, 257, 511),
    ),
    rows=((4 * _KIB, 64), (256, 64), (_KIB, 64), (4 * _KIB, 8), (8 * _KIB, 64)),
    sort_elements=(_KIB, 32 * _KIB, 8 * _KIB),
    rough_flops_per_second=1e10,
    rough_bytes_per_second=1e9,
)
"""For the CPU devices of a host, which share its cores and its memory."""

ACCELERATOR_SIZES = ProbeSizes(
    collective_bytes=(64 * _KIB, 256 * _MIB, 4 * _MIB, 64 * _MIB, 4 * _KIB, _MIB, 16 * _MIB),
    copy_elements=(256, 256 * _MIB, 4 * _MIB, 64 * _MIB, 256 * _KIB, 16 * _MIB),
    arithmetic_elements=(64 * _MIB, 4 * _MIB, 16 * _MIB),
    matmul_dims=(
        (8192, 8192, 8192),
        (256, 256, 256),
        (4096, 4096, 4096),
        (1000, 3000, 777),
        (16, 8192, 8192),
        (8192, 8192, 128),
        (1024, 1024, 1024),
        (2049, 4097, 1023),
    ),
    rows=((512 * _KIB, 256), (16 * _KIB, 256), (128 * _KIB, 256), (128 * _KIB, 32)),
    sort_elements=(16 * _MIB, 64 * _KIB, _MIB),
    rough_flops_per_second=3e14,
    rough_bytes_per_second=1e12,
)
"""For GPUs and TPUs."""


def plan_probes(sizes: ProbeSizes, num_devices: int) -> tuple[Family, ...]:
    """Families of probes that one fit is made from, the most telling families and probes first.

    One device has no collectives.
    """
    collectives = {
        kind: tuple(_collectives(kind, sizes, num_devices)) if num_devices > 1 else ()
        for kind in COLLECTIVES
    }
    families: list[Family] = [
        _ops("copy", "float32", [(count,) for count in sizes.copy_elements]),
        collectives["all-gather"],
        collectives["all-reduce"],
        _ops("matmul", "float32", sizes.matmul_dims),
        collectives["all-to-all"],
        collectives["collective-permute"],
        collectives["reduce-scatter"],
        _ops("matmul", "bfloat16", sizes.matmul_dims),
        _ops("elementwise", "float32", [(count,) for count in sizes.arithmetic_elements]),
        _ops("gather", "float32", sizes.rows),
        _ops("scatter", "float32", sizes.rows),
        _ops("sort", "float32", [(count,) for count in sizes.sort_elements]),
        _ops("elementwise", "bfloat16", [(count,) for count in sizes.arithmetic_elements]),
        # Slow where no unit is made for it: small ones first.
        _ops("matmul", "int8", sorted(sizes.matmul_dims, key=math.prod)),
    ]
    return tuple(family for family in families if family)


def _collectives(kind: str, sizes: ProbeSizes, num_devices: int) -> Iterator[CollectiveProbe]:
    """Every size in every group, the whole machine first."""
    groups = [size for size in range(num_devices, 1, -1) if num_devices % size == 0]
    for full_bytes in sizes.collective_bytes:
        for group_size in groups:
            unit = 4 * group_size  # whole elements for every device
            yield CollectiveProbe(kind, group_size, max(1, full_bytes // unit) * unit)


def _ops(op_class: str, dtype: str, dims: Iterable[tuple[int, ...]]) -> tuple[OpProbe, ...]:
    return tuple(OpProbe(op_class, dtype, sizes) for sizes in dims)
