"""What is read from the text of TPU programs: fusions that carry collectives, windowed einsums.

The two programs beside this file have the form of real ones and are shorter.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.hlo.compiled import CompiledCollective, read_module_collectives
from autoshard.hlo.local_program import DeviceSpeed, compiled_program
from autoshard.hlo.replica_groups import is_ring_shift
from autoshard.hlo.text import HloModule, parse_hlo
from autoshard.lowering.estimate import Estimate, estimate
from autoshard.sharding import parse_mesh_sizes
from autoshard.verification.collective_comparison import ASYNC, FUSED, PLAIN, WINDOWED

MESH = parse_mesh_sizes("data=2,model=4")
RING = parse_mesh_sizes("data=8")


def module(name: str) -> HloModule:
    return parse_hlo((Path(__file__).parent / f"{name}.hlo").read_text())


def test_a_gather_carried_by_four_fusions_counts_once() -> None:
    gather, _ = read_module_collectives(module("tpu_fusions"), MESH)
    assert (gather.kind, gather.axes, gather.form) == ("all-gather", ("model",), ASYNC)
    assert (gather.bytes_per_device, gather.count) == (1024 * 1024 * 2, 1)


def test_a_sum_of_which_a_piece_is_kept_is_a_reduce_scatter() -> None:
    _, scattered = read_module_collectives(module("tpu_fusions"), MESH)
    assert (scattered.kind, scattered.axes, scattered.form) == (
        "reduce-scatter",
        ("model",),
        FUSED,
    )
    assert scattered.bytes_per_device == 1024 * 512 * 4


def test_permutations_beside_products_are_windowed_einsums_in_loops_and_unrolled() -> None:
    looped, unrolled, moved = read_module_collectives(module("tpu_windowed"), RING)
    assert (looped.form, looped.count, looped.bytes_per_device) == (WINDOWED, 7, 256 * 1024 * 2)
    assert (unrolled.form, unrolled.count) == (WINDOWED, 1)
    assert (moved.form, moved.op_name) == (PLAIN, "jit(f)/roll")


def test_a_started_reduce_scatter_is_one_as_gpus_have_it() -> None:
    text = """\
HloModule jit_f, is_scheduled=true, num_partitions=8

ENTRY %main (x: f32[1024,4096]) -> f32[1024,1024] {
  %x = f32[1024,4096]{1,0} parameter(0)
  %start = ((f32[1024,4096]{1,0}), f32[1024,1024]{1,0}) reduce-scatter-start(%x), \
channel_id=2, replica_groups=[2,4]<=[8], dimensions={1}, to_apply=%add
  ROOT %done = f32[1024,1024]{1,0} reduce-scatter-done(%start)
}
"""
    (found,) = read_module_collectives(parse_hlo(text), MESH)
    assert (found.kind, found.axes, found.form) == ("reduce-scatter", ("model",), ASYNC)
    assert found.bytes_per_device == 1024 * 4096 * 4


@pytest.mark.parametrize(
    ("pairs", "is_shift"),
    [
        ("{{0,1},{1,2},{2,3},{3,0}}", True),
        ("{{0,3},{1,0},{2,1},{3,2}}", True),
        ("{{0,2},{2,4},{4,0},{1,3},{3,5},{5,1}}", True),
        ("{{0,1},{1,0},{2,3},{3,2}}", True),
        ("{{0,2},{1,3},{2,0},{3,1},{4,5},{5,4}}", True),  # pairs of neighbours in each group
        ("{{0,1},{1,2},{2,3}}", False),
        ("{{0,1},{1,3},{3,2},{2,0}}", False),
        ("{{0,0},{1,1}}", False),
    ],
)
def test_a_ring_shift_sends_every_piece_one_device_on(pairs: str, is_shift: bool) -> None:
    assert is_ring_shift(f"channel_id=1, source_target_pairs={pairs}") is is_shift


def test_no_pairs_are_no_shift() -> None:
    assert not is_ring_shift("replica_groups={{0,1}}")


def speed(bytes_per_second: float) -> DeviceSpeed:
    """A clock of 1 kHz; gathers, scatters and sorts reach a quarter of the memory's speed."""

    def moved_seconds(_: str, num_bytes: float, __: float) -> float:
        return 4.0 * num_bytes / bytes_per_second

    return DeviceSpeed(clock_hz=1e3, bytes_per_second=bytes_per_second, moved_seconds=moved_seconds)


def estimated(name: str, seconds: dict[str, float]) -> Estimate:
    """At a clock of 1 kHz; a collective takes what its kind says."""

    def price(collective: CompiledCollective) -> float:
        return seconds[collective.kind]

    return estimate(compiled_program(module(name), MESH, price, speed(1e9)))


def unlinked(found: HloModule, bytes_per_second: float) -> Estimate:
    """Where links take no time."""
    return estimate(compiled_program(found, MESH, lambda _: 0.0, speed(bytes_per_second)))


def test_an_asynchronous_gather_hides_behind_the_products_up_to_its_end() -> None:
    # 30 s and 20 s of products lie between its start and its end; the sum blocks.
    hidden = estimated("tpu_fusions", {"all-gather": 40.0, "reduce-scatter": 5.0})
    assert (hidden.cycles, hidden.compute_seconds) == (50_000, 50.0)
    assert hidden.communication_seconds == 45.0
    assert hidden.seconds == 55.0
    longer = estimated("tpu_fusions", {"all-gather": 80.0, "reduce-scatter": 5.0})
    assert longer.seconds == 85.0


def test_a_loop_multiplies_cycles_and_permutations_beside_them() -> None:
    found = estimated("tpu_windowed", {"collective-permute": 20.0})
    assert (found.cycles, found.compute_seconds) == (7 * 15_000, 7 * 15.0)
    assert found.communication_seconds == 9 * 20.0
    assert found.seconds == 9 * 20.0  # 15 of each 20 s in the loop are hidden
    short = estimated("tpu_windowed", {"collective-permute": 10.0})
    assert short.seconds == 7 * 15.0 + 2 * 10.0


def work(instruction: str, cycles: int) -> str:
    """A program of one instruction over `f32[1024]`, 4096 bytes."""
    config = f'backend_config={{"window_config":{{"estimated_cycles":"{cycles}"}}}}'
    return f"""HloModule work, is_scheduled=true

%doubled (p: f32[1024]) -> f32[1024] {{
  %p = f32[1024]{{0}} parameter(0)
  ROOT %sum = f32[1024]{{0}} add(%p, %p)
}}

%squared (q: f32[1024]) -> f32[] {{
  %q = f32[1024]{{0}} parameter(0)
  ROOT %dot = f32[] dot(%q, %q), lhs_contracting_dims={{0}}, rhs_contracting_dims={{0}}
}}

ENTRY %main (x: f32[1024]) -> f32[1024] {{
  %x = f32[1024]{{0}} parameter(0)
  ROOT %made = {instruction}, {config}
}}
"""


@pytest.mark.parametrize(
    ("instruction", "cycles", "expected"),
    [
        ("bf16[1024]{0} convert(%x)", 9000, 6144),
        ("bf16[1024]{0} convert(%x)", 600, 600),
        ("f32[1024]{0} fusion(%x), kind=kLoop, calls=%doubled", 9000, 8192),
        ("f32[] fusion(%x), kind=kOutput, calls=%squared", 9000, 9000),
        ("f32[1024]{0} sort(%x), dimensions={0}", 9000, 9000),
    ],
)
def test_work_by_element_takes_no_longer_than_memory_at_memory_speed(
    instruction: str, cycles: int, expected: int
) -> None:
    module = parse_hlo(work(instruction, cycles))
    found = unlinked(module, 1e3)  # a byte a cycle
    assert found.cycles == cycles
    assert found.traffic_seconds == expected / 1e3


def test_what_the_compiler_cannot_estimate_takes_no_ages() -> None:
    """libtpu 0.0.52 writes so of ragged matmuls; a step took 6e9 s once."""
    ragged = "f32[1024]{0} fusion(%x), kind=kCustom, calls=%squared"
    assert unlinked(parse_hlo(work(ragged, 9223372036854775807)), 1e3).cycles == 0


RAGGED = """HloModule ragged, is_scheduled=true

ENTRY %main (x: bf16[256,64], w: bf16[8,64,32]) -> bf16[256,32] {
  %x = bf16[256,64]{1,0} parameter(0)
  %w = bf16[8,64,32]{2,1,0} parameter(1)
  %starts = s32[9]{0} constant({...})
  %visits = s32[9]{0} constant({...})
  ROOT %made = WORK
}
"""


def test_a_ragged_kernel_takes_its_arithmetic_for_every_visit_of_a_tile() -> None:
    """Two tiles of 128 rows and 8 groups: up to 9 visits."""
    kernel = (
        "bf16[256,32]{1,0} custom-call(%starts, %starts, %visits, %visits, %starts, %x, %w),"
        ' frontend_attributes={ragged_dot_tiling="128,64,32"}'
    )
    machine = DeviceSpeed(
        clock_hz=1e3, bytes_per_second=1.0, moved_seconds=lambda _, __, flops: flops
    )
    module = parse_hlo(RAGGED.replace("WORK", kernel))
    found = estimate(compiled_program(module, MESH, lambda _: 0.0, machine))
    assert found.compute_seconds == 2.0 * 9 * 128 * 64 * 32


def test_a_ragged_matmul_without_an_estimate_takes_as_long_as_another_of_its_result() -> None:
    def ragged(name: str, cycles: int) -> str:
        return (
            f"%{name} = bf16[256,32]{{1,0}} fusion(%x, %w), kind=kCustom, calls=%masked, "
            f'metadata={{op_name="jit(f)/ragged_dot_general"}}, '
            f'backend_config={{"estimated_cycles":"{cycles}"}}'
        )

    both = f"{ragged('other', 700)}\n  ROOT {ragged('made', 9223372036854775807)}"
    found = unlinked(parse_hlo(RAGGED.replace("ROOT %made = WORK", both)), 1e9)
    assert found.cycles == 2 * 700


@pytest.mark.parametrize(
    ("instruction", "num_elements"),
    [
        ("f32[2048]{0} pad(%x, %x), padding=0_1_1", 2048 + 2 * 1024),
        ("f32[512]{0} slice(%x), slice={[0:1024:2]}", 512 + 512),
        ("f32[1024]{0} copy(%x)", 1024 + 1024),
        ("f32[] copy(%x)", 0),
        ("f32[1024]{0} custom-call(%x)", 0),
    ],
)
def test_copies_that_the_compiler_does_not_estimate_take_what_their_bytes_take(
    instruction: str, num_elements: int
) -> None:
    found = unlinked(parse_hlo(work(instruction, 0)), 4.0)
    assert found.cycles == 0
    assert found.compute_seconds == 4 * num_elements


LOOK_UP = """HloModule look_up, is_scheduled=true

%taken (t: f32[4096,128], i: s32[16]) -> f32[16,128] {
  %t = f32[4096,128]{1,0} parameter(0)
  %i = s32[16]{0} parameter(1)
  ROOT %rows = f32[16,128]{1,0} gather(%t, %i), offset_dims={1}, slice_sizes={1,128}
}

%added (i: s32[16], u: f32[16,128]) -> f32[4096,128] {
  %i = s32[16]{0} parameter(0)
  %u = f32[16,128]{1,0} parameter(1)
  %zero = f32[] constant(0)
  %zeros = f32[4096,128]{1,0} broadcast(%zero), dimensions={}
  ROOT %table = f32[4096,128]{1,0} scatter(%zeros, %i, %u), to_apply=%sum
}

ENTRY %main (table: f32[4096,128], at: s32[16]) -> f32[4096,128] {
  %table = f32[4096,128]{1,0} parameter(0)
  %at = s32[16]{0} parameter(1)
  %found = f32[16,128]{1,0} fusion(%table, %at), kind=kCustom, calls=%taken
  ROOT %back = f32[4096,128]{1,0} fusion(%at, %found), kind=kCustom, calls=%added
}
"""


@pytest.mark.parametrize("elements", ["f32", "s32"])
def test_look_ups_that_the_compiler_does_not_estimate_take_what_their_bytes_take(
    elements: str,
) -> None:
    rows, indices, table = 16 * 128 * 4, 16 * 4, 4096 * 128 * 4
    text = LOOK_UP.replace("f32[", f"{elements}[")
    found = unlinked(parse_hlo(text), 4.0)
    assert found.cycles == 0
    moved = (2 * rows + indices) + (3 * rows + indices) + table / 4
    assert found.compute_seconds == found.traffic_seconds == moved
    assert found.seconds == moved


def test_a_scatter_into_an_operand_of_its_kernel_fills_nothing() -> None:
    """Though what it adds has as many elements."""
    rows, indices = 16 * 128 * 4, 16 * 4
    text = LOOK_UP.replace("4096,128", "16,128")
    zeros, broadcast = "%zeros = f32[16,128]{1,0}", "broadcast(%zero), dimensions={}"
    into = text.replace(f"{zeros} {broadcast}", f"{zeros} parameter(2)").replace(
        "fusion(%at, %found)", "fusion(%at, %found, %table)"
    )
    seconds = [unlinked(parse_hlo(one), 4.0).compute_seconds for one in (text, into)]
    assert seconds[1] == (2 * rows + indices) + (3 * rows + indices)
    assert seconds[0] == seconds[1] + rows / 4
