"""Values of the models, as compilers were recorded to show them."""

from __future__ import annotations

import math

import pytest

from autoshard.backends import get_backend

MIB = 2**20


@pytest.mark.parametrize(
    ("name", "num_bytes", "has_matmul_results"),
    [
        ("tpu-v5e", 112 * MIB, True),
        ("tpu-v5p", 47 * MIB, False),
        ("tpu-v6e", 95 * MIB, True),
        ("tpu7x", 31 * MIB, True),
        ("h100", 0, False),
        ("cpu", 0, False),
    ],
)
def test_vmem_holds_temporaries_on_probed_tpus(
    name: str, num_bytes: int, *, has_matmul_results: bool
) -> None:
    memory = get_backend(name).memory
    assert memory.vmem_bytes == num_bytes
    assert memory.matmul_results_in_vmem == has_matmul_results


@pytest.mark.parametrize(
    ("name", "usual", "tight"),
    [("cpu", 1.1, 1.13), ("h100", 1.0, 1.0), ("tpu-v5e", 1.0, 1.1), ("tpu", 1.0, 1.1)],
)
def test_fragmentation_is_larger_where_memory_is_tight(
    name: str, usual: float, tight: float
) -> None:
    memory = get_backend(name).memory
    assert memory.fragmentation(is_tight=False) == usual
    assert memory.fragmentation(is_tight=True) == tight


@pytest.mark.parametrize(
    ("name", "kinds"),
    [
        ("tpu-v5e", {"all-gather", "collective-permute"}),
        ("tpu-v5p", {"collective-permute"}),
        ("tpu-v6e", {"collective-permute"}),
        ("cpu", set()),
        (
            "h100",
            {"all-gather", "all-reduce", "all-to-all", "collective-permute", "reduce-scatter"},
        ),
    ],
)
def test_collectives_are_asynchronous_by_chip(name: str, kinds: set[str]) -> None:
    schedule = get_backend(name).schedule
    assert schedule.async_collectives == kinds
    assert schedule.overlaps == bool(kinds)
    assert schedule.is_async("collective-permute") == bool(kinds)


def test_only_tpus_multiply_float32_as_bfloat16_and_only_cpus_widen_bfloat16() -> None:
    reads = {name: get_backend(name).layout.operand_bits("f32", 32) for name in ("tpu", "gpu")}
    keeps = {n: get_backend(n).layout.intermediate_bits("bf16", 16) for n in ("tpu", "gpu", "cpu")}
    assert reads == {"tpu": 16, "gpu": 32}
    assert keeps == {"tpu": 16, "gpu": 16, "cpu": 32}


@pytest.mark.parametrize(
    ("name", "group", "slice_size", "limit"),
    [
        ("tpu-v5e", 64, 64, 2.0**24),
        ("tpu-v5e", 32, 32, 0.0),  # a slice of 4x8 gathers
        ("tpu-v5e", 64, 128, 0.0),  # and so does a group of 64 in a larger one
        ("tpu-v5e", 128, 128, 2.0**24),
        ("tpu-v5p", 64, 64, math.inf),
        ("tpu-v6e", 64, 64, 2.0**24),
        ("tpu7x", 64, 64, math.inf),
        ("h100", 64, 64, 0.0),
    ],
)
def test_all_gathers_over_a_whole_large_slice_run_as_sums(
    name: str, group: int, slice_size: int, limit: float
) -> None:
    assert get_backend(name).collectives.gather_by_sum_bytes(group, slice_size) == limit
