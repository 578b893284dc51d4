"""What a plan can be compiled for: slices of TPU chips, hosts of GPUs, the devices at hand."""

from __future__ import annotations

import difflib
import math
import re
from dataclasses import dataclass

from autoshard.errors import InputError

LOCAL = "local"

_TPU = re.compile(r"(?:(\d+)\s*x\s*)?([a-z][a-z0-9]*):(\d+(?:x\d+)*)")
_GPU = re.compile(r"(?:(\d+)\s*x\s*)?(\d+)\s*x\s*([a-z][a-z0-9-]*)")


@dataclass(frozen=True, slots=True, kw_only=True)
class TpuKind:
    """A generation of TPU as its compiler names it.

    Args:
        num_dims: Dimensions of a slice.
        devices_per_chip: JAX devices on one chip.
        accelerator_type: A value of `TPU_ACCELERATOR_TYPE` that libtpu takes for it.
        hardware: Name in the table of machines.
        chip_config: What the compiler has to be told of a chip for it to be so many devices.
    """

    num_dims: int
    devices_per_chip: int
    accelerator_type: str
    hardware: str
    chip_config: str = ""


TPU_KINDS = {
    "v4": TpuKind(
        num_dims=3,
        devices_per_chip=1,
        accelerator_type="v4-8",
        hardware="tpu-v4",
        chip_config="megacore",  # its two cores as one device, as on a machine
    ),
    "v5e": TpuKind(
        num_dims=2, devices_per_chip=1, accelerator_type="v5litepod-8", hardware="tpu-v5e"
    ),
    "v5p": TpuKind(num_dims=3, devices_per_chip=1, accelerator_type="v5p-8", hardware="tpu-v5p"),
    "v6e": TpuKind(num_dims=2, devices_per_chip=1, accelerator_type="v6e-8", hardware="tpu-v6e"),
    "tpu7x": TpuKind(num_dims=3, devices_per_chip=2, accelerator_type="tpu7x-8", hardware="tpu7x"),
}

GPU_KINDS = {
    "A100": "a100-80gb",
    "A100-40GB": "a100-40gb",
    "A100-80GB": "a100-80gb",
    "H100": "h100",
    "H200": "h200",
    "B200": "b200",
}
"""GPUs that can be compiled for, and their names in the table of machines."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    """Devices to compile for.

    Args:
        text: As written: `v5e:4x4`, `2x v5e:4x4`, `8xH100`, `2x8xB200`, `local`.
        platform: `tpu`, `cuda`, or "" for that of this process.
        kind: `v5e`, `H100`; "" for the devices at hand.
        num_slices: Slices of TPU chips, or hosts of GPUs.
        shape: Chips along each dimension of a slice, or GPUs of one host.
        num_devices: JAX devices in all; None for the devices at hand.
        hardware: Name in the table of machines; "" for the devices at hand.
    """

    text: str
    platform: str
    kind: str
    num_slices: int
    shape: tuple[int, ...]
    num_devices: int | None
    hardware: str


def parse_target(text: str) -> Target:
    """Read what to compile for.

    Grammar:

        target ::= "local" | tpu | gpu
        tpu    ::= (slices "x")? kind ":" chips ("x" chips)*      one number per torus dimension
        gpu    ::= (hosts "x")? gpus "x" name                     upper or lower case

    Raises:
        InputError: It is none of these, or no such device is known.
    """
    written = " ".join(text.split())
    lowered = written.lower()
    if lowered == LOCAL:
        return Target(
            text=LOCAL, platform="", kind="", num_slices=1, shape=(), num_devices=None, hardware=""
        )
    if (tpu := _TPU.fullmatch(lowered)) is not None:
        return _tpu_target(written, int(tpu[1] or 1), tpu[2], _sizes(tpu[3]))
    if (gpu := _GPU.fullmatch(lowered)) is not None:
        return _gpu_target(written, int(gpu[1] or 1), int(gpu[2]), gpu[3])
    raise _unknown(written)


def check_num_devices(target: Target, wanted: int, mesh: str) -> None:
    """Refuse a topology that has another number of devices than the mesh of the plan.

    Raises:
        InputError: It has.
    """
    if target.num_devices is None or target.num_devices == wanted:
        return
    raise InputError(
        f"{target.text} has {target.num_devices} devices, the mesh {wanted}",
        where=f"mesh {mesh}",
        fix=f"compile for as many, such as {_example(target, wanted)}, or plan for a mesh of"
        f" {target.num_devices}",
    )


def _tpu_target(text: str, num_slices: int, name: str, shape: tuple[int, ...]) -> Target:
    kind = TPU_KINDS.get(name)
    if kind is None:
        raise _unknown(text)
    if len(shape) != kind.num_dims or num_slices < 1 or min(shape) < 1:
        example = "x".join(["4"] * kind.num_dims)
        raise InputError(
            f"a slice of {name} has {kind.num_dims} dimensions of at least one chip",
            where=f'topology "{text}"',
            fix=f'write it as in "{name}:{example}"',
        )
    return Target(
        text=text,
        platform="tpu",
        kind=name,
        num_slices=num_slices,
        shape=shape,
        num_devices=num_slices * math.prod(shape) * kind.devices_per_chip,
        hardware=kind.hardware,
    )


def _gpu_target(text: str, num_hosts: int, num_gpus: int, name: str) -> Target:
    kind = name.upper()
    if kind not in GPU_KINDS or num_hosts < 1 or num_gpus < 1:
        raise _unknown(text)
    return Target(
        text=text,
        platform="cuda",
        kind=kind,
        num_slices=num_hosts,
        shape=(num_gpus,),
        num_devices=num_hosts * num_gpus,
        hardware=GPU_KINDS[kind],
    )


def _example(target: Target, num_devices: int) -> str:
    """Another topology of the same kind with so many devices."""
    if target.platform == "cuda":
        if num_devices <= 8 or num_devices % 8:
            return f'"{num_devices}x{target.kind}"'
        return f'"{num_devices // 8}x8x{target.kind}"'
    kind = TPU_KINDS[target.kind]
    chips, rest = divmod(num_devices, kind.devices_per_chip)
    if rest:
        return f'"local", as {target.kind} has {kind.devices_per_chip} devices per chip'
    return f'"{target.kind}:{"x".join(map(str, squarest(chips, kind.num_dims)))}"'


def squarest(count: int, num_dims: int) -> tuple[int, ...]:
    """So many chips in a grid, ascending: each dimension the largest that leaves room for more."""
    shape: list[int] = []
    for left in range(num_dims, 1, -1):
        side = max(d for d in range(1, count + 1) if count % d == 0 and d**left <= count)
        shape.append(side)
        count //= side
    return tuple(sorted((*shape, count)))


def _sizes(text: str) -> tuple[int, ...]:
    return tuple(int(size) for size in text.split("x"))


def _unknown(text: str) -> InputError:
    known = {name.lower(): name for name in (*TPU_KINDS, *GPU_KINDS)}
    words = re.findall(r"[a-wyz][a-z0-9-]*", text.lower())
    near = difflib.get_close_matches(words[0] if words else "", known, n=1, cutoff=0.5)
    if near and near[0] == words[0]:
        problem = f'"{text}" is not how a topology of {known[near[0]]} is written'
    else:
        meant = f"; did you mean {known[near[0]]}?" if near else ""
        problem = f'no topology is called "{text}"{meant}'
    return InputError(
        problem,
        where="topology",
        fix=f'write "v5e:4x4" for a slice of TPU chips ({", ".join(TPU_KINDS)}), "2x v5e:4x4" for'
        f' two of them, "8xH100" or "2x8xH100" for hosts of GPUs ({", ".join(GPU_KINDS)}), or'
        ' "local" for the devices at hand',
    )
