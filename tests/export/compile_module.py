"""Compiling StableHLO text for the CPU devices of this process, without JAX's own lowering."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import jax
import jax.export
import numpy as np
from jax._src import xla_bridge
from jax._src.export import _export as jax_export
from jax._src.lib import xla_client

from autoshard import Plan
from autoshard.export.exported import write_captured
from autoshard.export.runnable import make_runnable
from autoshard.mlir_modules import module_bytecode, module_context, parse_module


def compile_text(text: str | bytes, num_devices: int) -> Any:
    """Compile a module as it is, shardings and all."""
    with module_context():
        content = module_bytecode(parse_module(text))
    options = xla_client.CompileOptions()
    options.num_replicas, options.num_partitions = 1, num_devices
    build = options.executable_build_options
    build.num_replicas, build.num_partitions = 1, num_devices
    build.use_spmd_partitioning = True
    build.use_shardy_partitioner = True
    build.device_assignment = xla_client.DeviceAssignment.create(
        np.arange(num_devices).reshape(1, num_devices)
    )
    devices = xla_client.DeviceList(tuple(jax.devices()[:num_devices]))
    return xla_bridge.get_backend("cpu").compile_and_load(content, devices, options)


def compiles(text: str, frame: jax.export.Exported, args: tuple[Any, ...], plan: Plan) -> list[Any]:
    """What a module computes when it is run in the frame of another export of its program."""
    assert plan.traced is not None
    with module_context():
        parsed = parse_module(text)
        write_captured(parsed, plan.traced)
        make_runnable(parsed)
        serialized = jax_export._module_to_bytecode(parsed)
    kept = tuple(range(len(frame.in_avals)))  # the text has arguments that nothing reads too
    exported = replace(frame, mlir_module_serialized=serialized, module_kept_var_idx=kept)
    placed = [jax.device_put(a, s) for a, s in zip(args, plan.in_shardings, strict=True)]
    found: list[Any] = jax.tree.leaves(jax.jit(exported.call)(*placed))
    return found
