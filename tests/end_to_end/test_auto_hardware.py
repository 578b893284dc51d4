"""`hardware="auto"`: the machine is that of the mesh; a mesh without devices needs a name."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec

import autoshard
from autoshard.errors import InputError
from cost_models import CostModelError, get_hardware

X = jnp.ones((32, 64))
W = jnp.ones((64, 64))
MESH = jax.make_mesh((2, 4), ("data", "model"))
MACHINES = (
    "tpu-v4, tpu-v5e, tpu-v5p, tpu-v6e, tpu7x, a100-40gb, a100-80gb, h100, h200, b200, gb200,"
    " cpu-host"
)


def layer(x: jax.Array, w: jax.Array) -> Any:
    return jnp.tanh(x @ w)


def planned(**options: Any) -> autoshard.Plan:
    return autoshard.optimize(layer, X, W, baselines=False, **options)


def refusal(**options: Any) -> str:
    with pytest.raises(InputError) as caught:
        planned(**options)
    return str(caught.value)


def test_a_mesh_of_devices_of_this_process_is_on_its_machine() -> None:
    assert planned(mesh=MESH).data.hardware == "cpu-host"
    assert planned(mesh="auto").data.hardware == "cpu-host"
    assert planned(devices=8).data.hardware == "cpu-host"


def test_without_a_mesh_that_of_set_mesh_is_taken() -> None:
    with jax.set_mesh(MESH):
        plan = planned()
    assert str(plan.data.mesh) == "mesh (data=2, model=4)"
    assert plan.mesh is not None
    assert plan.mesh.devices.tolist() == MESH.devices.tolist()


def test_without_any_mesh_the_ways_to_give_one_are_told() -> None:
    assert refusal() == (
        "neither a mesh nor a number of devices is given, and jax.set_mesh has set none\n"
        "  where: mesh and devices\n"
        '  fix: give a mesh, as in mesh="data=2,model=4", or let one be searched: devices=8, or'
        ' mesh="auto" for the devices of this machine'
    )


def test_a_mesh_among_the_arguments_is_told_its_name() -> None:
    with pytest.raises(InputError) as caught:
        autoshard.optimize(jnp.sin, jnp.zeros(8), MESH)
    assert str(caught.value) == (
        "a mesh stands among the arguments of the function\n"
        "  where: `sin`\n"
        "  fix: name it: optimize(fn, *args, mesh=mesh)"
    )


@pytest.mark.parametrize("mesh", ["data=2,model=4", MESH.abstract_mesh], ids=["text", "abstract"])
def test_a_mesh_without_devices_needs_a_machine(mesh: Any) -> None:
    assert refusal(mesh=mesh) == (
        "the mesh has no devices to tell what machine it is on\n"
        "  where: mesh (data=2, model=4), hardware='auto'\n"
        f'  fix: name the machine, as in hardware="tpu-v5p": {MACHINES}; or give a'
        " jax.sharding.Mesh of devices"
    )


def test_a_search_for_more_devices_than_this_machine_has_needs_a_machine() -> None:
    assert refusal(devices=16).startswith(
        "the mesh has no devices to tell what machine it is on\n"
        "  where: a mesh of 16 devices, hardware='auto'\n"
    )


def test_a_mesh_of_a_tpu_topology_is_on_that_slice() -> None:
    if importlib.util.find_spec("libtpu") is None:
        pytest.skip("libtpu is not installed")
    program = (
        "import jax, numpy as np, jax.numpy as jnp, autoshard\n"
        "from jax.experimental.topologies import get_topology_desc\n"
        "devices = get_topology_desc(platform='tpu', topology_name='v5e:4x4').devices\n"
        "mesh = jax.sharding.Mesh(np.array(devices).reshape(4, 4), ('data', 'model'))\n"
        "x = jax.ShapeDtypeStruct((64, 64), jnp.float32)\n"
        "plan = autoshard.optimize(lambda x, w: x @ w, x, x, mesh=mesh, baselines=False)\n"
        "print('planned for', plan.data.hardware)\n"
    )
    environment = {
        **os.environ,
        "TPU_SKIP_MDS_QUERY": "1",
        "TPU_ACCELERATOR_TYPE": "v5litepod-8",
        "TPU_WORKER_HOSTNAMES": "localhost",
        "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",
    }
    run = subprocess.run(
        [sys.executable, "-c", program],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    assert run.stdout.endswith("planned for tpu-v5e:4x4\n")


# -- words for what is meant -----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("said", "meant"),
    [
        ("tpu-v7", "tpu7x"),
        ("tpu-v7x", "tpu7x"),
        ("v5e", "tpu-v5e"),
        ("TPU v5 lite", "tpu-v5e"),
        ("v5p:2x2x2", "tpu-v5p:2x2x2"),
        ("H100", "h100"),
    ],
)
def test_other_names_of_a_machine_are_understood(said: str, meant: str) -> None:
    assert get_hardware(said) == get_hardware(meant)


def test_a_name_of_two_machines_is_refused_with_both() -> None:
    with pytest.raises(CostModelError) as caught:
        get_hardware("a100")
    assert {"a100-40gb", "a100-80gb"} <= set(caught.value.fix.replace(",", "").split())


def test_a_percentage_of_the_memory_is_a_budget() -> None:
    assert planned(mesh=MESH, memory_budget="90%").data.memory_budget == 14_400_000_000
    assert refusal(mesh=MESH, memory_budget="190%").startswith(
        "memory budget '190%' is not an amount of memory above zero\n"
    )


def test_an_axis_by_itself_is_no_pin_and_its_spelling_is_told() -> None:
    with pytest.raises(autoshard.ShardingError) as caught:
        planned(mesh=MESH, constraints={"x": "data"})
    assert str(caught.value) == (
        "'data' is not the text of a sharding\n"
        "  where: a pin or use\n"
        '  fix: write one {} for each dimension, as in [{"data"}, {}]; or pass'
        ' jax.sharding.PartitionSpec("data")'
    )


def test_a_pin_may_be_a_tuple_of_axes() -> None:
    plan = planned(mesh=MESH, constraints={"x": ("data", None)})
    assert plan.in_shardings[0].spec == PartitionSpec("data", None)


def test_a_pin_that_is_a_shape_is_told_what_pins_are() -> None:
    assert refusal(mesh=MESH, constraints={"x": (32, 64)}) == (
        "expected a sharding, found tuple\n"
        "  where: pin `x`\n"
        "  fix: give an autoshard.Sharding, its text, a PartitionSpec (or a tuple of its entries:"
        " names of axes, or None) or a NamedSharding"
    )
