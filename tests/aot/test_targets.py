"""What a topology's text means, and what is said where it means nothing."""

from __future__ import annotations

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.aot.gpu_descriptions import GPU_DESCRIPTIONS
from autoshard.aot.targets import (
    GPU_KINDS,
    TPU_KINDS,
    check_num_devices,
    parse_target,
    squarest,
)
from autoshard.aot.verify import prices_for
from autoshard.errors import InputError
from autoshard.sharding import Mesh, MeshAxis
from autoshard.verification.compiled_prices import CompiledPrices
from cost_models import get_hardware


@pytest.mark.parametrize(
    ("text", "platform", "kind", "num_slices", "shape", "num_devices", "hardware"),
    [
        ("v5e:4x4", "tpu", "v5e", 1, (4, 4), 16, "tpu-v5e"),
        ("V5P:2x2x4", "tpu", "v5p", 1, (2, 2, 4), 16, "tpu-v5p"),
        ("2x v5e:4x4", "tpu", "v5e", 2, (4, 4), 32, "tpu-v5e"),
        ("2xv5e:4x4", "tpu", "v5e", 2, (4, 4), 32, "tpu-v5e"),
        ("tpu7x:2x2x1", "tpu", "tpu7x", 1, (2, 2, 1), 8, "tpu7x"),
        ("8xH100", "cuda", "H100", 1, (8,), 8, "h100"),
        ("2x8xb200", "cuda", "B200", 2, (8,), 16, "b200"),
        ("4 x a100", "cuda", "A100", 1, (4,), 4, "a100-80gb"),
    ],
)
def test_a_topology_says_how_many_devices_of_which_kind(
    text: str,
    platform: str,
    kind: str,
    num_slices: int,
    shape: tuple[int, ...],
    num_devices: int,
    hardware: str,
) -> None:
    found = parse_target(text)
    assert (found.platform, found.kind, found.num_slices) == (platform, kind, num_slices)
    assert (found.shape, found.num_devices, found.hardware) == (shape, num_devices, hardware)


def test_local_leaves_the_number_of_devices_open() -> None:
    found = parse_target(" Local ")
    assert (found.text, found.platform, found.num_devices) == ("local", "", None)


_FORMS = (
    'write "v5e:4x4" for a slice of TPU chips (v4, v5e, v5p, v6e, tpu7x), "2x v5e:4x4" for two of'
    ' them, "8xH100" or "2x8xH100" for hosts of GPUs (A100, A100-40GB, A100-80GB, H100, H200,'
    ' B200), or "local" for the devices at hand'
)


@pytest.mark.parametrize(
    ("text", "what"),
    [
        ("v5:4x4", 'no topology is called "v5:4x4"; did you mean v5p?'),
        ("8xH1000", 'no topology is called "8xH1000"; did you mean H100?'),
        ("", 'no topology is called ""'),
        ("v5e", '"v5e" is not how a topology of v5e is written'),
        ("v5e 4x4", '"v5e 4x4" is not how a topology of v5e is written'),
        ("0xH100", '"0xH100" is not how a topology of H100 is written'),
        ("8x8x8xH100", '"8x8x8xH100" is not how a topology of H100 is written'),
    ],
)
def test_an_unknown_topology_is_told_what_there_is(text: str, what: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_target(text)
    assert str(caught.value) == f"{what}\n  where: topology\n  fix: {_FORMS}"


def test_a_slice_with_another_number_of_dimensions_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        parse_target("v5p:4x4")
    assert str(caught.value) == (
        "a slice of v5p has 3 dimensions of at least one chip\n"
        '  where: topology "v5p:4x4"\n'
        '  fix: write it as in "v5p:4x4x4"'
    )


@pytest.mark.parametrize(
    ("text", "wanted", "example"),
    [
        ("v5e:4x4", 8, '"v5e:2x4"'),
        ("v5p:2x2x2", 64, '"v5p:4x4x4"'),
        ("tpu7x:2x2x2", 8, '"tpu7x:1x2x2"'),
        ("8xH100", 16, '"2x8xH100"'),
        ("8xH100", 4, '"4xH100"'),
    ],
)
def test_another_number_of_devices_than_the_mesh_has_is_refused_with_one_that_fits(
    text: str, wanted: int, example: str
) -> None:
    target = parse_target(text)
    with pytest.raises(InputError) as caught:
        check_num_devices(target, wanted, "data=4")
    assert str(caught.value) == (
        f"{text} has {target.num_devices} devices, the mesh {wanted}\n"
        "  where: mesh data=4\n"
        f"  fix: compile for as many, such as {example}, or plan for a mesh of {target.num_devices}"
    )
    check_num_devices(parse_target(example.strip('"')), wanted, "data=4")


@given(count=st.integers(1, 4096), num_dims=st.integers(1, 3))
def test_the_squarest_grid_has_every_chip_and_ascends(count: int, num_dims: int) -> None:
    shape = squarest(count, num_dims)
    assert math.prod(shape) == count
    assert list(shape) == sorted(shape)
    assert len(shape) == num_dims


def test_every_kind_has_a_machine_and_every_gpu_a_description() -> None:
    for name, kind in TPU_KINDS.items():
        torus = get_hardware(kind.hardware).torus
        assert torus is not None, name
        assert (torus.num_dims, torus.devices_per_chip) == (kind.num_dims, kind.devices_per_chip)
    assert set(GPU_KINDS) == set(GPU_DESCRIPTIONS)
    for name, machine in GPU_KINDS.items():
        described, known = GPU_DESCRIPTIONS[name], get_hardware(machine).memory
        assert described.memory_bytes == known.capacity_bytes, name
        assert described.memory_bytes_per_second == known.bytes_per_second, name
        assert "core_count: " in described.as_text_proto()


def test_compiled_for_slices_a_plan_for_slices_is_priced_as_planned() -> None:
    mesh = Mesh((MeshAxis("slice", 2), MeshAxis("data", 16)))
    target = parse_target("2x v5e:4x4")
    found = {}
    for hardware in ("2x tpu-v5e:4x4", "tpu-v5e", "h100"):
        prices = prices_for(hardware, mesh, target, None)
        assert prices is not None
        found[hardware] = prices.model.hardware.name
    assert found == {
        "2x tpu-v5e:4x4": "2x tpu-v5e:4x4",
        "tpu-v5e": "tpu-v5e",
        "h100": "tpu-v5e",
    }
    planned = CompiledPrices.of_machine("2x tpu-v5e:4x4", mesh)
    assert prices_for("2x tpu-v5e:4x4", mesh, target, planned) is planned
