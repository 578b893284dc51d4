"""What is sent between slices is read as the collective that it is."""

from __future__ import annotations

import pytest

from autoshard.hlo.compiled import read_collectives
from autoshard.sharding import parse_mesh_sizes

MESH = parse_mesh_sizes("slice=2,x=2,y=4")
PROGRAM = """HloModule jit_step, is_scheduled=true, num_partitions=8

ENTRY %main (param: f32[64,1024]) -> f32[64,1024] {{
  %param = f32[64,1024]{{1,0:T(8,128)}} parameter(0)
  %after-all = token[] after-all()
  %send = (f32[64,1024]{{1,0:T(8,128)}}, u32[], token[]) send(%param, %after-all), channel_id=2, \
is_host_transfer=true, frontend_attributes={{{attributes}}}
  %send-done = token[] send-done(%send), channel_id=2, is_host_transfer=true
  ROOT %copy = f32[64,1024]{{1,0:T(8,128)}} copy(%param)
}}
"""
HANDLER = '_xla_host_transfer_handler_name="xla_megascale_runtime"'
BYTES = 64 * 1024 * 4
EVERY = ",".join(f"{slice_number}0000{device}" for slice_number in (1, 2) for device in range(8))
PAIRS = "},{".join(f"10000{device}->20000{device}" for device in range(8))


def program(kind: str, target: str) -> str:
    told = f'{HANDLER},_xla_megascale_target={target},_xla_megascale_transfer_type="{kind}"'
    return PROGRAM.format(attributes=told)


@pytest.mark.parametrize(
    ("kind", "target", "expected"),
    [
        ("ALL_GATHER", '"{1,2}x{0:7}"', ("all-gather", ("slice",), 2, 2 * BYTES)),
        ("ALL_REDUCE", '"{1,2}x{0:7}"', ("all-reduce", ("slice",), 2, BYTES)),
        ("ALL_TO_ALL", f"{{{{{EVERY}}}}}", ("all-to-all", ("slice", "x", "y"), 16, BYTES)),
        ("ONE_TO_ONE", f"{{{{{PAIRS}}}}}", ("collective-permute", ("slice",), 2, BYTES)),
    ],
)
def test_kind_axes_and_bytes(
    kind: str, target: str, expected: tuple[str, tuple[str, ...], int, int]
) -> None:
    (found,) = read_collectives(program(kind, target), MESH)
    assert (found.kind, found.axes, found.group_size, found.bytes_per_device) == expected
    (plain,) = read_collectives(program(kind, target))
    assert (plain.kind, plain.axes, plain.bytes_per_device) == (expected[0], None, expected[3])


def test_what_is_sent_to_the_host_for_another_reason_is_no_collective() -> None:
    assert not read_collectives(PROGRAM.format(attributes=HANDLER), MESH)
