"""Which compiler model plans for a machine, and how reports call it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from autoshard.backends import MODELS, backend_for, compiler_options, get_backend
from autoshard.errors import InputError
from cost_models import CATALOG, Hardware, format_hardware, get_hardware, parse_hardware
from cost_models.calibrate import calibrate_hardware
from tests.cost_models.synthetic import measurements_of

LABELS = {
    "tpu-v4": "libtpu 0.0.42, 0.0.52 for v4",
    "tpu-v5e": "libtpu 0.0.42, 0.0.52 for v5e",
    "tpu-v5p": "libtpu 0.0.42, 0.0.52 for v5p",
    "tpu-v6e": "libtpu 0.0.42, 0.0.52 for v6e",
    "tpu7x": "libtpu 0.0.42, 0.0.52 for tpu7x",
    "a100-40gb": "CUDA plugin 0.10.2 for A100",
    "a100-80gb": "CUDA plugin 0.10.2 for A100",
    "h100": "CUDA plugin 0.10.2 for H100",
    "h200": "generic GPU (probed on H100), not probed for H200",
    "b200": "CUDA plugin 0.10.2 for B200",
    "gb200": "generic GPU (probed on H100), not probed for GB200",
    "cpu-host": "jaxlib 0.10.2 for host CPUs",
}


@pytest.mark.parametrize("machine", CATALOG, ids=lambda machine: machine.name)
def test_every_known_machine_has_a_model_that_says_whether_it_was_probed(machine: Hardware) -> None:
    assert backend_for(machine).describe(machine.name) == LABELS[machine.name]


@pytest.mark.parametrize("name", ["2x tpu-v5e:4x4", "tpu-v5e:2x4", "4x h100"])
def test_slices_and_nodes_keep_the_model_of_their_chip(name: str) -> None:
    kind = "h100" if "h100" in name else "tpu-v5e"
    assert backend_for(get_hardware(name)) is get_backend(kind)


def test_a_calibrated_machine_keeps_the_model_of_its_base() -> None:
    machine = calibrate_hardware(
        get_hardware("h100"), measurements_of(get_hardware("h100")), name="mine"
    )
    assert backend_for(machine) is get_backend("h100")


def test_a_file_keeps_the_model_and_without_one_the_generic_of_its_backend_is_taken() -> None:
    text = format_hardware(get_hardware("tpu-v5e")).replace("name: tpu-v5e", "name: ours")
    assert backend_for(parse_hardware(text)) is get_backend("tpu-v5e")
    for left_out in ("", "compiler: null\n"):
        generic = parse_hardware(text.replace("compiler: tpu-v5e\n", left_out))
        assert backend_for(generic) is get_backend("tpu")
        assert backend_for(generic).describe(generic.name) == "generic TPU, not probed for ours"


def test_an_unknown_model_is_refused_with_those_there_are() -> None:
    machine = replace(get_hardware("tpu-v5e"), name="ours", compiler="v5e")
    with pytest.raises(InputError) as caught:
        backend_for(machine)
    assert str(caught.value) == (
        'no compiler model is called "v5e"\n'
        '  where: hardware "ours", `compiler`\n'
        f"  fix: write tpu-v5e; known: {', '.join(MODELS)}"
    )


def test_a_model_of_another_platform_is_refused() -> None:
    machine = replace(get_hardware("tpu-v5e"), name="ours", compiler="h100")
    with pytest.raises(InputError) as caught:
        backend_for(machine)
    assert str(caught.value) == (
        "h100 is a model of gpu compilers, and `backend` is tpu\n"
        '  where: hardware "ours", `compiler`\n'
        "  fix: write tpu, or the name of a model for its chip"
    )


IN_ORDER = {"xla_cpu_scheduler_type": "CPU_SCHEDULER_TYPE_MEMORY_OPTIMIZED"}
UNWINDOWED = {"xla_gpu_threshold_for_windowed_einsum_mib": "1000000"}


@pytest.mark.parametrize(
    ("platform", "in_order", "windowed", "options"),
    [
        ("cpu", True, False, IN_ORDER),
        ("cpu", False, True, {}),
        ("cuda", True, False, UNWINDOWED),
        ("tpu", True, True, {}),
        ("metal", True, False, {}),
    ],
)
def test_a_platform_has_the_options_of_its_generic_model_and_an_unknown_one_none(
    platform: str, in_order: bool, windowed: bool, options: dict[str, str]
) -> None:
    found = compiler_options(platform, in_order=in_order, windowed_einsum=windowed)
    assert found == options


def test_matmuls_become_no_windowed_einsums_unless_that_is_asked_for() -> None:
    assert compiler_options("tpu") == {"xla_jf_spmd_threshold_for_windowed_einsum_mib": "1000000"}
