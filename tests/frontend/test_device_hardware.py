"""The machine is read off the devices of a mesh: kind, slices of TPU chips, hosts of GPUs."""

from __future__ import annotations

import itertools

import pytest

from autoshard.frontend.device_hardware import DeviceFacts, machine_names


def slice_of(kind: str, *sides: int, per_chip: int = 1, slice_index: int = 0) -> list[DeviceFacts]:
    chips = itertools.product(*map(range, sides))
    return [DeviceFacts(kind, chip, slice_index) for chip in chips for _ in range(per_chip)]


@pytest.mark.parametrize(
    ("devices", "names"),
    [
        (slice_of("TPU v5 lite", 4, 4, 1), ("tpu-v5e:4x4", "tpu-v5e")),
        (slice_of("TPU v6 lite", 2, 4, 1), ("tpu-v6e:2x4", "tpu-v6e")),
        (slice_of("TPU v5", 2, 2, 1), ("tpu-v5p:2x2x1", "tpu-v5p")),
        (slice_of("TPU v4", 2, 2, 4), ("tpu-v4:2x2x4", "tpu-v4")),
        (slice_of("TPU7x", 2, 2, 2, per_chip=2), ("tpu7x:2x2x2", "tpu7x")),
        (
            slice_of("TPU v5 lite", 4, 4, 1) + slice_of("TPU v5 lite", 4, 4, 1, slice_index=1),
            ("2x tpu-v5e:4x4", "tpu-v5e"),
        ),
        ([DeviceFacts("NVIDIA H100 80GB HBM3")] * 8, ("h100:8", "h100")),
        (
            [DeviceFacts("NVIDIA H200", host=host) for host in range(4) for _ in range(8)],
            ("4x h200:8", "h200"),
        ),
        ([DeviceFacts("NVIDIA A100-SXM4-40GB")] * 2, ("a100-40gb:2", "a100-40gb")),
        ([DeviceFacts("cpu")] * 8, ("cpu-host",)),
    ],
    ids=lambda value: value[0] if isinstance(value[0], str) else "",
)
def test_devices_are_a_machine_by_name(devices: list[DeviceFacts], names: tuple[str, ...]) -> None:
    assert machine_names(devices) == names


def test_a_part_of_a_slice_is_the_machine_without_a_shape() -> None:
    assert machine_names(slice_of("TPU v5 lite", 4, 4, 1)[:7]) == ("tpu-v5e",)


def test_unequal_slices_are_the_machine_without_a_shape() -> None:
    uneven = slice_of("TPU v5", 2, 2, 1) + slice_of("TPU v5", 2, 2, 2, slice_index=1)
    assert machine_names(uneven) == ("tpu-v5p",)


@pytest.mark.parametrize("kind", ["NVIDIA H100 PCIe", "NVIDIA L4", "TPU v3", "AMD Instinct MI300X"])
def test_what_no_table_has_is_no_machine(kind: str) -> None:
    assert machine_names([DeviceFacts(kind)] * 4) == ()


def test_devices_of_two_kinds_are_no_machine() -> None:
    assert machine_names([DeviceFacts("NVIDIA H100 80GB HBM3"), DeviceFacts("cpu")]) == ()
