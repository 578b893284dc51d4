"""Compiles one program in a process of its own; run as a script with a folder as its argument.

Its standard input stays open as long as somebody waits: when it ends, so does this process.
The folder holds `request.json` and `program.mlirbc`; `compiled.hlo` and `answer.json` are written
there. What a compiler logs, and how it dies, is for the parent to read. Nothing of autoshard is
imported here: the process is up as soon as JAX is.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import threading
from pathlib import Path
from typing import Any

import jax
import jaxlib
import numpy as np

# Private; checked on jax 0.10.2. This is the way `jax.stages.Lowered.compile` goes.
from jax._src import compiler
from jax._src.interpreters import mlir, pxla
from jax._src.lib import xla_client
from jax.experimental import mesh_utils, topologies
from jaxlib.mlir import ir

REQUEST, PROGRAM, COMPILED, ANSWER = (
    "request.json",
    "program.mlirbc",
    "compiled.hlo",
    "answer.json",
)
MEMORY_FIELDS = (
    *("argument", "output", "temp", "alias", "generated_code"),
    *("host_argument", "host_output", "host_alias", "host_temp"),
)
_DUMP, _MEMORY_REPORT, _DUMPED_TEXT = "dump", "*memory-usage-report.txt", "*after_codegen.txt"
_TUPLED_ABOVE = 2000  # arguments of a program for TPU; beyond it JAX passes them as one tuple


def main(folder: Path) -> None:
    """Answer the request in a folder."""
    request = json.loads((folder / REQUEST).read_text())
    try:
        answer = compile_program((folder / PROGRAM).read_bytes(), request, folder)
    except Exception as error:  # told to the parent, which knows what the plan is
        answer = {"error": type(error).__name__, "message": str(error)}
    draft = folder / f"{ANSWER}.draft"
    draft.write_text(json.dumps(answer))
    draft.replace(folder / ANSWER)


def compile_program(module: bytes, request: dict[str, Any], folder: Path) -> dict[str, Any]:
    """Compile a module and write its optimized HLO; returns what is to be told about it."""
    asked = dict(request["compiler_options"])
    if request["platform"] == "tpu":
        asked["xla_dump_to"] = str(folder / _DUMP)
    devices, order = _ordered(_devices(request), request)
    client = devices.flat[0].client
    with mlir.make_ir_context(), ir.Location.unknown():
        parsed = ir.Module.parse(module)
        options = pxla.create_compile_options(
            parsed,
            client.platform == "tpu" and len(request["free_inputs"]) > _TUPLED_ABOVE,
            request["free_inputs"],
            request["free_outputs"],
            client,
            devices,
            asked,
        )
        made = compiler.backend_compile_and_load(
            client, parsed, xla_client.DeviceList(tuple(devices.flat)), options, []
        )
    (folder / COMPILED).write_text(_text_of(made, folder / _DUMP))
    memory = made.get_compiled_memory_stats()
    return {
        "memory": {name: int(getattr(memory, f"{name}_size_in_bytes")) for name in MEMORY_FIELDS},
        "memory_report": "\n".join(_dumped(folder / _DUMP, _MEMORY_REPORT)),
        "device_kind": devices.flat[0].device_kind,
        "device_order": order,
        "versions": {
            "jax": jax.__version__,
            "jaxlib": jaxlib.__version__,
            "platform": str(client.platform_version).strip(),
        },
    }


def _text_of(made: Any, dump: Path) -> str:
    """The optimized program, as it was dumped where jaxlib is too old to read it.

    Raises:
        ValueError: jaxlib cannot read it, and nothing was dumped.
    """
    try:
        return "\n\n".join(module.to_string() for module in made.hlo_modules())
    except Exception as error:
        # jaxlib 0.10.2 cannot read asynchronous collectives of libtpu 0.0.52 for a v6e.
        if found := _dumped(dump, _DUMPED_TEXT):
            return "\n\n".join(found)
        raise ValueError(
            f"it compiled, but jaxlib {jaxlib.__version__} cannot read the program: {error};"
            " install the compiler of the same release as JAX"
        ) from error


def _dumped(dump: Path, pattern: str) -> list[str]:
    return [path.read_text() for path in sorted(dump.glob(pattern))]


def _devices(request: dict[str, Any]) -> list[Any]:
    topology = request["topology"]
    if request["platform"] == "tpu":
        found = topologies.get_topology_desc(platform="tpu", **topology).devices
    elif request["platform"] == "cuda":
        found = topologies.get_topology_desc("", "cuda", **topology).devices
    else:
        found = jax.devices()[: request["num_devices"]]
    if len(found) != request["num_devices"]:
        raise ValueError(f"there are {len(found)} devices, not {request['num_devices']}")
    return list(found)


def _ordered(devices: list[Any], request: dict[str, Any]) -> tuple[Any, str]:
    """The devices in the order the program numbers them, and how it was chosen."""
    shape = tuple(request["mesh_shape"])
    if request["device_order"] is not None:
        places = np.empty(len(devices), dtype=object)
        places[:] = [devices[place] for place in request["device_order"]]
        return places, "as the plan's mesh says"
    if request["platform"] == "tpu" and request["topology"].get("num_slices", 1) == 1:
        try:
            return mesh_utils.create_device_mesh(shape, devices).reshape(-1), "as jax.make_mesh"
        except (NotImplementedError, ValueError, AssertionError):
            pass  # a mesh that fits the torus in no way it knows
    places = np.empty(len(devices), dtype=object)
    places[:] = devices
    return places, "as numbered"


def _end_with_parent(folder: Path) -> None:
    """Ends this process when its parent has, which can no longer remove the folder."""
    sys.stdin.read()
    shutil.rmtree(folder, ignore_errors=True)
    os._exit(1)


if __name__ == "__main__":
    given = Path(sys.argv[1])
    threading.Thread(target=_end_with_parent, args=(given,), daemon=True).start()
    main(given)
