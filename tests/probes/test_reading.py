"""What probes read from compiled programs, on programs small enough to check by eye."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from autoshard.aot.compile_process import CompiledAhead
from autoshard.sharding import parse_mesh_sizes
from experiments.probes.bench import Compiled, cycles, in_vmem
from experiments.probes.layout import _matmul_bend
from experiments.probes.probe import InconclusiveError
from experiments.probes.schedule import work_beside
from tests.probes.programs import compiled

PERMUTED = "source_target_pairs={{0,1},{1,2},{2,3},{3,4},{4,5},{5,6},{6,7},{7,0}}, channel_id=1"
START = f"%s = (f32[8,8], f32[8,8]) collective-permute-start(%x), {PERMUTED}"
DONE = "%t = f32[8,8] collective-permute-done(%s)"
MATMUL = "%m = f32[8,8] convolution(%x, %x), dim_labels=bf_io->bf"
SINE = "%e = f32[8,8] sine(%x)"


def program(*lines: str) -> Compiled:
    return compiled("\n".join(["%x = f32[8,8] parameter(0)", *lines]))


@pytest.mark.parametrize(
    ("lines", "beside_matmuls", "beside_others"),
    [
        ((START, MATMUL, DONE, SINE), True, False),
        ((START, SINE, DONE, MATMUL), False, True),
        ((START, MATMUL, SINE, DONE), True, True),
        ((MATMUL, START, DONE, SINE), False, False),
        (
            (f"%t = f32[8,8] collective-permute(%x), {PERMUTED}", MATMUL, SINE),
            False,
            False,
        ),
    ],
    ids=["matmul", "sine", "both", "neither", "blocking"],
)
def test_a_collective_runs_beside_what_stands_between_its_start_and_its_end(
    lines: tuple[str, ...], beside_matmuls: bool, beside_others: bool
) -> None:
    made = program(*lines)
    assert work_beside(made, "collective-permute", "matmul") is beside_matmuls
    assert work_beside(made, "collective-permute", "other") is beside_others
    assert not work_beside(made, "all-gather", "matmul"), "it is another kind"


def test_an_offloaded_collective_runs_beside_what_stands_before_its_done() -> None:
    gather = """\
%gathering (p: f32[8,8]) -> f32[64,8] {
  %p = f32[8,8] parameter(0)
  ROOT %g = f32[64,8] all-gather(%p), channel_id=1, replica_groups={{0,1,2,3,4,5,6,7}}, \
dimensions={0}
}

"""
    entry = f"""
        %x = f32[8,8] parameter(0)
        %s = ((f32[8,8]), f32[64,8], u32[]) async-start(%x), calls=%gathering
        %u = ((f32[8,8]), f32[64,8], u32[]) async-update(%s, %x)
        {MATMUL}
        %g2 = f32[64,8] async-done(%u)
        {SINE}
    """
    made = compiled(entry, computations=gather)
    assert work_beside(made, "all-gather", "matmul")
    assert not work_beside(made, "all-gather", "other")


def test_a_gather_carried_by_fusions_runs_beside_their_matmuls() -> None:
    text = (Path(__file__).parent.parent / "aot" / "tpu_fusions.hlo").read_text()
    ahead = CompiledAhead(
        text=text,
        memory={},
        memory_report="",
        device_kind="",
        device_order="",
        versions={},
        seconds=0.0,
    )
    made = Compiled(ahead, parse_mesh_sizes("x=2,y=4"))
    assert work_beside(made, "all-gather", "matmul")
    assert not work_beside(made, "reduce-scatter", "matmul"), "its fusion waits for it"


@pytest.mark.parametrize(
    ("layout", "is_there"),
    [("{1,0:T(8,128)S(1)}", True), ("{1,0:T(8,128)S(3)}", True), ("{1,0:T(8,128)}", False)],
    ids=["VMEM", "CMEM of a v4", "HBM"],
)
def test_memory_spaces_1_and_3_are_on_the_chip(layout: str, is_there: bool) -> None:
    made = program(f"%y = f32[8,8]{layout} sine(%x)")
    assert in_vmem(made.entry[-1]) is is_there


def test_cycles_are_those_the_compiler_wrote() -> None:
    config = 'backend_config={"window_config":{"estimated_cycles":"1820"}}'
    made = program(f"%y = f32[8,8] sine(%x), {config}", SINE)
    assert [cycles(one) for one in made.entry] == [None, 1820, None]


def test_the_report_of_libtpu_names_the_bytes_of_each_memory_space() -> None:
    report = """\
Memory Space: default (color=0)
Total bytes: 10518560 (10.03MiB)
  cumulative_size;       size;       offset; used_by_n_values; shapes_list


Memory Space: vmem (color=1)
Total bytes: 22020096 (21.00MiB)
"""
    ahead = compiled("%x = f32[8,8] parameter(0)", memory_report=report).ahead
    assert ahead.bytes_by_space() == {"default": 10518560, "vmem": 22020096}
    sizes = {"argument": 4_000_000, "output": 2_000_000, "alias": 1_000_000}
    gaps_twice = replace(ahead, memory={**sizes, "temp": 6_000_000})
    offloaded_gather = replace(ahead, memory={**sizes, "temp": 3_000_000})
    assert gaps_twice.allocated_bytes == 10518560
    assert offloaded_gather.allocated_bytes == 8_000_000


def test_cycles_of_matmuls_bend_where_the_matrix_units_are_full() -> None:
    # Cycles that libtpu 0.0.52 estimated for bfloat16[r, 1024] @ [1024, 1024] on a v5e.
    v5e = {8: 2634, 16: 2701, 32: 2834, 64: 3613, 128: 5170, 256: 8036, 512: 12636}
    rows, few, many = _matmul_bend(v5e)
    assert rows == 32
    assert few == pytest.approx(8.4, abs=0.1)
    assert many == pytest.approx(24.3, abs=0.1)
    v6e = {8: 1536, 16: 1536, 32: 1536, 64: 1536, 128: 1536, 256: 2048, 512: 3072}
    assert _matmul_bend(v6e) == (128, 0.0, 4.0)


def test_cycles_that_grow_alike_do_not_tell_the_least_rows() -> None:
    with pytest.raises(InconclusiveError, match="grow alike from 8 rows on"):
        _matmul_bend({rows: 1000 + 12 * rows for rows in (8, 16, 32, 64, 128, 256, 512)})
