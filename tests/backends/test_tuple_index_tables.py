"""Tuple index tables that a TPU program holds, for its arguments and matmuls."""

from __future__ import annotations

import pytest

from autoshard.backends import backend_for
from cost_models import get_hardware

TABLE = 2**14


def num_tables(machine: str, arguments: list[int], num_matmuls: int = 0) -> float:
    memory = backend_for(get_hardware(machine)).memory
    return memory.tuple_index_bytes(arguments, num_matmuls) / TABLE


@pytest.mark.parametrize("machine", ["tpu-v5e", "tpu-v5p", "2x tpu-v5p:2x2x4"])
def test_vectors_have_fewer_tables_than_matrices_and_so_has_what_is_too_large(machine: str) -> None:
    of_vectors, of_matrices = (num_tables(machine, [size] * 100) for size in (2**9, 2**16))
    assert 100 <= of_vectors < of_matrices
    assert num_tables(machine, [2**25] * 100) < num_tables(machine, [2**23] * 100)


def test_only_a_v5e_brings_large_arguments_onto_the_chip_in_slices() -> None:
    matrices, large = [2**16] * 10, [2**20] * 10
    assert num_tables("tpu-v5e", large) == 4 * num_tables("tpu-v5e", matrices)
    assert num_tables("tpu-v5p", large) == num_tables("tpu-v5p", matrices)


def test_products_of_a_v5p_have_more_tables_as_their_results_are_copied_onto_the_chip() -> None:
    assert num_tables("tpu-v5p", [], 30) > 2 * num_tables("tpu-v5e", [], 30) > 0


@pytest.mark.parametrize("machine", ["h100", "cpu-host"])
def test_other_machines_have_none(machine: str) -> None:
    assert num_tables(machine, [2**20] * 10, 30) == 0
