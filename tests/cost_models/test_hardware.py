"""The known machines, and what a machine must satisfy."""

from __future__ import annotations

import dataclasses

import pytest

from cost_models import (
    CATALOG,
    CostModelError,
    Hardware,
    RingOrder,
    get_hardware,
    verify_hardware,
)


def ids(hardware: Hardware) -> str:
    return hardware.name


def test_the_catalog_names_each_machine_once() -> None:
    assert [hardware.name for hardware in CATALOG] == [
        "tpu-v4",
        "tpu-v5e",
        "tpu-v5p",
        "tpu-v6e",
        "tpu7x",
        "a100-40gb",
        "a100-80gb",
        "h100",
        "h200",
        "b200",
        "gb200",
        "cpu-host",
    ]


@pytest.mark.parametrize("hardware", CATALOG, ids=ids)
def test_a_known_machine_is_found_by_its_name_and_has_no_problems(hardware: Hardware) -> None:
    assert get_hardware(hardware.name) is hardware
    assert verify_hardware(hardware) == ()


@pytest.mark.parametrize("hardware", CATALOG, ids=ids)
def test_every_group_of_numbers_has_a_source(hardware: Hardware) -> None:
    sources = [hardware.compute.source, hardware.memory.source]
    if hardware.torus is not None:
        sources += [hardware.torus.source, hardware.torus.link.source]
    if hardware.switch is not None:
        sources += [hardware.switch.source, hardware.switch.link.source]
    if hardware.network is not None:
        sources.append(hardware.network.source)
    assert len(sources) >= 4
    assert all(len(source) > 10 for source in sources)


@pytest.mark.parametrize("hardware", CATALOG, ids=ids)
def test_the_matrix_units_are_at_least_as_fast_as_the_vector_unit(hardware: Hardware) -> None:
    for family in ("float64", "float32", "bfloat16", "float16", "float8", "int8"):
        matmul, vector = hardware.compute.matmul.of(family), hardware.compute.vector.of(family)
        assert matmul >= vector


@pytest.mark.parametrize(
    ("name", "bfloat16", "memory", "links_per_chip", "chip_bytes_per_second"),
    [
        ("tpu-v4", 275e12, 1228e9, 6, 300e9),
        ("tpu-v5e", 197e12, 819e9, 4, 200e9),
        ("tpu-v5p", 459e12, 2765e9, 6, 600e9),
        ("tpu-v6e", 918e12, 1638e9, 4, 400e9),
        ("tpu7x", 2307e12, 7380e9, 6, 600e9),
    ],
)
def test_the_devices_of_a_tpu_chip_add_up_to_its_data_sheet(
    name: str, bfloat16: float, memory: float, links_per_chip: int, chip_bytes_per_second: float
) -> None:
    hardware = get_hardware(name)
    assert hardware.torus is not None
    devices = hardware.torus.devices_per_chip
    assert hardware.compute.matmul.bfloat16 * devices == bfloat16
    assert hardware.memory.bytes_per_second * devices == memory
    link = hardware.torus.link.bytes_per_second * devices
    assert link * links_per_chip == chip_bytes_per_second


def test_an_unknown_name_is_answered_with_the_names_that_come_close() -> None:
    with pytest.raises(CostModelError) as caught:
        get_hardware("TPU_v5")
    assert str(caught.value) == (
        'no hardware is named "TPU_v5"\n'
        "  where: the hardware catalog\n"
        "  fix: write tpu-v5p or tpu-v5e or tpu-v4, or give the path of a YAML file that "
        "describes the machine"
    )


def test_a_name_like_no_other_is_answered_with_every_name() -> None:
    with pytest.raises(CostModelError) as caught:
        get_hardware("zzz")
    assert all(hardware.name in caught.value.fix for hardware in CATALOG)


def test_a_part_of_a_name_is_answered_with_the_names_that_hold_it() -> None:
    with pytest.raises(CostModelError) as caught:
        get_hardware("a100")
    assert "a100-40gb" in caught.value.fix
    assert "a100-80gb" in caught.value.fix


@pytest.mark.parametrize(
    ("text", "name", "shape", "num_slices"),
    [
        ("tpu-v5e:4x4", "tpu-v5e:4x4", (4, 4), 1),
        ("2x tpu-v5e:4x4", "2x tpu-v5e:4x4", (4, 4), 2),
        (" 2xtpu-v5e : 4x4 ", "2x tpu-v5e:4x4", (4, 4), 2),
        ("tpu-v5e:4x2", "tpu-v5e:4x2", (4, 2), 1),  # a listed slice, turned
        ("tpu-v5p:4x4x12", "tpu-v5p:4x4x12", (4, 4, 12), 1),  # whole cubes
    ],
)
def test_slices_are_named_with_the_machine(
    text: str, name: str, shape: tuple[int, ...], num_slices: int
) -> None:
    hardware = get_hardware(text)
    assert hardware.torus is not None
    assert (hardware.name, hardware.num_slices) == (name, num_slices)
    assert hardware.torus.slice_shapes == (shape,)
    assert get_hardware(hardware.name) == hardware


def test_a_count_alone_leaves_the_shape_open() -> None:
    hardware = get_hardware("2x tpu-v5e")
    assert hardware == dataclasses.replace(get_hardware("tpu-v5e"), name="2x tpu-v5e", num_slices=2)


def test_nodes_are_named_with_the_machine() -> None:
    hardware = get_hardware("2x h100:4")
    assert hardware.switch is not None
    assert (hardware.num_slices, hardware.switch.domain_size) == (2, 4)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "tpu-v5e:3x5",
            "there is no slice of shape 3x5\n"
            '  where: hardware "tpu-v5e:3x5"\n'
            "  fix: use one of 1x1, 1x2, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16",
        ),
        (
            "tpu-v5e:4x4x4",
            "slice shape (4, 4, 4) is not one of 2 sizes from 1 up\n"
            '  where: hardware "tpu-v5e:4x4x4"\n'
            "  fix: write it like (16, 16)",
        ),
        (
            "h100:16",
            "a node of h100 is no 16\n"
            '  where: hardware "h100:16"\n'
            "  fix: give the devices of a node, 1 to 8",
        ),
        (
            "0x tpu-v5e",
            "0 slices or nodes of tpu-v5e are asked for\n"
            '  where: hardware "0x tpu-v5e"\n'
            "  fix: ask for 1 or more",
        ),
        (
            "2x cpu-host",
            "2 slices or nodes of cpu-host are asked for\n"
            '  where: hardware "2x cpu-host"\n'
            "  fix: ask for 1",
        ),
        (
            "2x tpu-e:4x4",
            'no hardware is named "2x tpu-e:4x4"\n'
            "  where: the hardware catalog\n"
            "  fix: write tpu-v6e or tpu-v5e or tpu-v4, or give the path of a YAML file that"
            " describes the machine",
        ),
    ],
)
def test_slices_that_the_machine_has_not_are_refused(text: str, message: str) -> None:
    with pytest.raises(CostModelError) as caught:
        get_hardware(text)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("name", "flop_per_cycle"),
    [
        ("tpu-v4", 8 * 2 * 128 * 128),
        ("tpu-v5e", 4 * 2 * 128 * 128),
        ("tpu-v5p", 8 * 2 * 128 * 128),
        ("tpu-v6e", 524_288),
        ("tpu7x", 524_288),
        ("a100-40gb", 108 * 2048),
        ("h100", 132 * 4096),
    ],
)
def test_the_clock_and_the_matrix_units_make_the_peak(name: str, flop_per_cycle: int) -> None:
    compute = get_hardware(name).compute
    assert compute.clock_hertz is not None
    peak = flop_per_cycle * compute.clock_hertz
    assert peak == pytest.approx(compute.matmul.bfloat16, rel=0.01)


def test_all_problems_of_a_machine_are_told_at_once() -> None:
    h100 = get_hardware("h100")
    with pytest.raises(CostModelError) as caught:
        dataclasses.replace(
            h100,
            collective_launch_seconds=float("nan"),
            memory=dataclasses.replace(
                h100.memory, bytes_per_second=3350.0, reserved_bytes=h100.memory.capacity_bytes
            ),
            switch=None,
        )
    assert caught.value.what == (
        "4 problems in the hardware description:\n"
        "  - `collective_launch_seconds` is nan; expected a finite number of seconds\n"
        "  - `memory.bytes_per_second` is 3350; expected bytes per second between 1e+06 and "
        "1e+15, such as 819.0e+9\n"
        "  - `torus`, `switch`: exactly one of them must be given, the other null\n"
        "  - `memory.reserved_bytes` is 80000000000; expected less than "
        "`memory.capacity_bytes`, 80000000000"
    )
    assert caught.value.where == 'hardware "h100"'


def test_a_ring_names_each_device_of_its_slice_once() -> None:
    v5e = get_hardware("tpu-v5e")
    assert v5e.torus is not None
    order = RingOrder(shape=(2, 2), devices=(0, 1, 2, 2), only_whole=False)
    with pytest.raises(CostModelError) as caught:
        dataclasses.replace(v5e, torus=dataclasses.replace(v5e.torus, ring_orders=(order,)))
    assert caught.value.what == (
        "1 problem in the hardware description:\n"
        "  - `torus.ring_orders[0]` does not name each device of a slice of shape [2, 2] once"
    )


def test_several_slices_need_a_network_and_collectives_an_algorithm() -> None:
    with pytest.raises(CostModelError) as caught:
        dataclasses.replace(get_hardware("h100"), network=None, num_slices=2, algorithms=())
    assert caught.value.what == (
        "2 problems in the hardware description:\n"
        "  - `network` is null; expected a link between 2 slices\n"
        "  - `algorithms` is empty; expected at least one"
    )


def test_two_devices_on_a_chip_need_a_link_between_them() -> None:
    tpu7x = get_hardware("tpu7x")
    assert tpu7x.torus is not None
    with pytest.raises(CostModelError, match=r"`torus\.chip_link` is null; expected a link"):
        dataclasses.replace(tpu7x, torus=dataclasses.replace(tpu7x.torus, chip_link=None))


def test_a_slice_shape_has_as_many_dimensions_as_the_torus() -> None:
    v5e = get_hardware("tpu-v5e")
    assert v5e.torus is not None
    with pytest.raises(CostModelError, match=r"`torus.slice_shapes\[1\]` has 3 dimensions"):
        dataclasses.replace(
            v5e, torus=dataclasses.replace(v5e.torus, slice_shapes=((2, 2), (2, 2, 1)))
        )


@pytest.mark.parametrize(
    ("name", "shape", "wraps"),
    [
        ("tpu-v5e", (4, 4), (False, False)),
        ("tpu-v5e", (8, 16), (False, True)),
        ("tpu-v5e", (16, 16), (True, True)),
        ("tpu-v5p", (2, 2, 2), (False, False, False)),
        ("tpu-v5p", (2, 4, 4), (False, False, False)),
        ("tpu-v5p", (4, 4, 8), (True, True, True)),
    ],
)
def test_dimensions_close_into_rings_by_the_rule_of_the_family(
    name: str, shape: tuple[int, ...], wraps: tuple[bool, ...]
) -> None:
    torus = get_hardware(name).torus
    assert torus is not None
    assert torus.wraps(shape) == wraps


def test_a_dtype_that_is_no_family_is_refused_with_the_families() -> None:
    with pytest.raises(CostModelError) as caught:
        get_hardware("h100").compute.matmul.of("f32")
    assert str(caught.value) == (
        '"f32" is not a dtype family\n'
        "  where: argument `family`\n"
        "  fix: write one of float64, float32, bfloat16, float16, float8, int8"
    )
