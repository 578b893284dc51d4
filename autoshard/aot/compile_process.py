"""Running a compiler in a process that may crash, hang or hold a lock without harm to this one."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Generator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeAlias, TypeVar

from autoshard.aot import child
from autoshard.aot.gpu_descriptions import GPU_DESCRIPTIONS
from autoshard.aot.program import AheadProgram
from autoshard.aot.targets import TPU_KINDS, Target

T = TypeVar("T")
Underway: TypeAlias = Generator[None, None, T]
"""Work that runs elsewhere: begun by `next`, awaited by `finished`, ended by `close`."""

_MAX_LINES = 8
_MEMORY_SPACE = re.compile(r"^Memory Space: (\w+).*\nTotal bytes: (\d+)", re.MULTILINE)
_NOISE = ("WARNING: All log messages before absl", "E0000", "I0000", "W0000")


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledAhead:
    """What came out of a compile.

    Args:
        text: Optimized HLO.
        memory: Bytes by the names of `child.MEMORY_FIELDS`.
        memory_report: Buffers by memory space, as libtpu reports them; "" by another compiler.
        device_kind: As the compiler calls the device.
        device_order: How devices were laid out.
        versions: Of what compiled.
        seconds: Wall time.
    """

    text: str
    memory: Mapping[str, int]
    memory_report: str
    device_kind: str
    device_order: str
    versions: Mapping[str, str]
    seconds: float

    @property
    def kept_bytes(self) -> int:
        """Bytes of arguments and results, those in the memory of donated arguments once."""
        return self.memory["argument"] + self.memory["output"] - self.memory["alias"]

    @property
    def allocated_bytes(self) -> int:
        """Bytes of HBM for arguments, results and temporaries, by the lower of two counts.

        Neither of libtpu's counts is too low: `temp` has gaps twice, its report what a gather on a
        SparseCore reads three times (0.0.52 for v5p and v6e).
        """
        whole = self.kept_bytes + self.memory["temp"]
        return min(whole, self.bytes_by_space().get("default", whole))

    def bytes_by_space(self) -> dict[str, int]:
        """Reported bytes of each memory space: `default` is HBM, `vmem` the vector memory.

        Of several programs the largest counts, as they run one after another.
        """
        found: dict[str, int] = {}
        for name, total in _MEMORY_SPACE.findall(self.memory_report):
            found[name] = max(found.get(name, 0), int(total))
        return found


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileFailure:
    """Why nothing came out.

    Args:
        kind: `crashed`, `timed out`, `out of memory` or `refused`.
        what: The signal or exit code, the limit, or the compiler's message.
        last_lines: The end of what the process wrote to its error stream.
        seconds: Wall time.
    """

    kind: str
    what: str
    last_lines: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompileRequest:
    """What to compile programs for, and how.

    Args:
        target: For which devices.
        platform: Of this process, where the target is the devices at hand.
        mesh_shape: Sizes of the mesh axes.
        device_order: Places of the devices in mesh order, where the plan's mesh says; else None.
        compiler_options: Flags of the compiler by name.
        timeout_seconds: After which the process is ended.
    """

    target: Target
    platform: str
    mesh_shape: tuple[int, ...]
    device_order: tuple[int, ...] | None
    compiler_options: Mapping[str, Any] = field(default_factory=dict)
    timeout_seconds: float = 600.0


def finished(work: Underway[T]) -> T:
    """The result of work that may have begun; an interrupt ends it."""
    try:
        while True:
            next(work)
    except StopIteration as end:
        found: T = end.value
        return found
    finally:
        work.close()


def run_compiler(program: AheadProgram, request: CompileRequest) -> CompiledAhead | CompileFailure:
    """Compile in a process of its own; its files are gone when this returns."""
    return finished(compiling(program, request))


def compiling(
    program: AheadProgram, request: CompileRequest
) -> Underway[CompiledAhead | CompileFailure]:
    """Compile in a process of its own, which is underway once this yields."""
    with tempfile.TemporaryDirectory(prefix="autoshard-verify-") as name:
        folder = Path(name)
        (folder / child.PROGRAM).write_bytes(program.module)
        (folder / child.REQUEST).write_text(json.dumps(_as_json(program, request)))
        start = time.monotonic()
        with (folder / "stderr").open("wb") as errors:
            process = subprocess.Popen(
                # -P: the script's folder is no place to import modules from.
                [sys.executable, "-P", child.__file__, name],
                stdin=subprocess.PIPE,  # ends when this process does, and so does the child
                stdout=errors,
                stderr=errors,
                env=_environment(request, program.num_devices),
                start_new_session=True,
            )
            try:
                yield
                left = start + request.timeout_seconds - time.monotonic()
                code = process.wait(max(left, 0.0))
            except subprocess.TimeoutExpired:
                code = None
            finally:
                if process.poll() is None:
                    process.kill()
                    process.wait()
                if process.stdin is not None:
                    process.stdin.close()
        seconds = time.monotonic() - start
        lines = _last_lines(folder / "stderr")
        if code is None:
            limit = f"no answer within {request.timeout_seconds:g} s"
            return CompileFailure(kind="timed out", what=limit, last_lines=lines, seconds=seconds)
        if not (folder / child.ANSWER).exists():
            return CompileFailure(
                kind="crashed", what=_how_it_ended(code), last_lines=lines, seconds=seconds
            )
        answer = json.loads((folder / child.ANSWER).read_text())
        if "error" in answer:
            return _refusal(answer, seconds)
        return CompiledAhead(
            text=(folder / child.COMPILED).read_text(),
            memory=answer["memory"],
            memory_report=answer["memory_report"],
            device_kind=answer["device_kind"],
            device_order=answer["device_order"],
            versions=answer["versions"],
            seconds=seconds,
        )


def _refusal(answer: Mapping[str, str], seconds: float) -> CompileFailure:
    message = answer["message"].strip()
    is_memory = "RESOURCE_EXHAUSTED" in message
    return CompileFailure(
        kind="out of memory" if is_memory else "refused",
        what=message or answer["error"],
        seconds=seconds,
    )


def _as_json(program: AheadProgram, request: CompileRequest) -> dict[str, Any]:
    return {
        "platform": request.target.platform,
        "topology": _topology(request.target),
        "num_devices": program.num_devices,
        "mesh_shape": request.mesh_shape,
        "device_order": request.device_order,
        "compiler_options": dict(request.compiler_options),
        "free_inputs": program.free_inputs,
        "free_outputs": program.free_outputs,
    }


def _topology(target: Target) -> dict[str, Any]:
    """The arguments of `get_topology_desc`."""
    chips = "x".join(map(str, target.shape))
    if target.platform == "tpu":
        slices = {} if target.num_slices == 1 else {"num_slices": target.num_slices}
        config = TPU_KINDS[target.kind].chip_config
        told = {"chip_config_name": config} if config else {}
        return {"topology_name": f"{target.kind}:{chips}", **slices, **told}
    if target.platform == "cuda":
        # Hosts are joined by the network, as slices are; within one, NVLink joins all.
        return {
            "topology": f"1x{target.num_slices}x{target.shape[0]}",
            "target_config": GPU_DESCRIPTIONS[target.kind].as_text_proto(),
        }
    return {}


def _environment(request: CompileRequest, num_devices: int) -> dict[str, str]:
    """This process's environment, changed for the child alone."""
    environment = dict(os.environ)
    if request.target.platform == "tpu":
        environment |= {
            "JAX_PLATFORMS": "cpu",  # the devices themselves are not touched
            "TPU_SKIP_MDS_QUERY": "1",
            "TPU_ACCELERATOR_TYPE": TPU_KINDS[request.target.kind].accelerator_type,
            "TPU_WORKER_HOSTNAMES": "localhost",
            "ALLOW_MULTIPLE_LIBTPU_LOAD": "1",  # nothing is run: its lock file is for devices
            "XLA_FLAGS": _without_others(environment.get("XLA_FLAGS", "")),
        }
    elif request.target.platform == "cuda":
        environment |= {"JAX_PLATFORMS": "cpu", "XLA_PYTHON_CLIENT_PREALLOCATE": "false"}
    else:
        environment |= {
            "JAX_PLATFORMS": request.platform,
            "XLA_PYTHON_CLIENT_PREALLOCATE": "false",
        }
        if request.platform == "cpu":
            environment.pop("JAX_NUM_CPU_DEVICES", None)
            environment["XLA_FLAGS"] = (
                f"{environment.get('XLA_FLAGS', '')}"
                f" --xla_force_host_platform_device_count={num_devices}"
            ).strip()
    return environment


def _without_others(flags: str) -> str:
    """Flags but those of CPUs and GPUs: libtpu ends the process at one that it does not know."""
    own = (flag for flag in flags.split() if not flag.startswith(("--xla_cpu_", "--xla_gpu_")))
    return " ".join(own)


def _how_it_ended(code: int) -> str:
    if code >= 0:
        return f"its process ended with exit code {code}"
    try:
        return f"its process was ended by {signal.Signals(-code).name}"
    except ValueError:
        return f"its process was ended by signal {-code}"


def _last_lines(path: Path) -> tuple[str, ...]:
    lines = path.read_text(errors="replace").splitlines()
    told = [line.strip() for line in lines if line.strip() and not line.startswith(_NOISE)]
    return tuple(line[:300] for line in told[-_MAX_LINES:])
