"""Which devices a collective of a compiled program joins."""

from __future__ import annotations

import math
import re
from collections.abc import Sequence

from autoshard.errors import InputError
from autoshard.sharding import AxisRef, Groups, Mesh, axes_crossed

_LISTED = re.compile(r"replica_groups=\{((?:\{[\d, ]*\},?\s*)*)\}")
_IOTA = re.compile(r"replica_groups=\[([\d,]+)\]<=\[([\d,]+)\](?:T\(([\d,]+)\))?")
_MESH = re.compile(
    r"replica_groups=mesh\[([^\]]*)\]"
    r"(?:, device_ids=\((?:\[([\d,]+)\](?:T\(([\d,]+)\))?|([\d,]+))\))?\s*\{([^}]*)\}"
)
_MESH_AXIS = re.compile(r"'([^']*)'=(\d+)")
_MESH_AXIS_REF = re.compile(r"'([^']*)'(?::\((\d+)\)(\d+))?")
_PAIRS = re.compile(r"source_target_pairs=\{((?:\{\d+,\d+\},?\s*)*)\}")
_PAIR = re.compile(r"\{(\d+),(\d+)\}")


def parse_groups(attributes: str, num_devices: int) -> Groups:
    """Read the groups of a collective from the attributes of its instruction.

    The spellings are `{{0,1},{2,3}}`; `[4,2]<=[2,4]T(1,0)`, that is the numbers 0 to 7 laid out as
    2 x 4, transposed, and cut into 4 rows of 2; and `mesh['a'=2,'b'=4] {'a'}`, that is all devices
    that differ in axis `a` only. No groups, or none given, is one group of all.

    A permutation has one group for each set of devices that its pairs connect.

    Args:
        attributes: The text behind the operands.
        num_devices: How many devices there are.

    Raises:
        InputError: The groups are spelled in a way that is not known.
    """
    if (match := _PAIRS.search(attributes)) is not None:
        return _connected([(int(a), int(b)) for a, b in _PAIR.findall(match[1])])
    if (match := _IOTA.search(attributes)) is not None:
        shape = _ints(match[1])
        devices = _laid_out(_ints(match[2]), _ints(match[3]))
        return _rows(devices, shape[-1])
    if (match := _MESH.search(attributes)) is not None:
        return _mesh_groups(match)
    if (match := _LISTED.search(attributes)) is not None:
        groups = [_ints(row) for row in re.findall(r"\{([\d, ]*)\}", match[1])]
        return tuple(groups) if any(groups) else (tuple(range(num_devices)),)
    if "replica_groups=" in attributes:
        start = attributes.index("replica_groups=")
        raise InputError(
            f"unknown spelling of device groups: {attributes[start : start + 80]}",
            fix="this reads HLO text of jax 0.10; report the text",
        )
    return (tuple(range(num_devices)),)


def crossed_axes(attributes: str, mesh: Mesh) -> tuple[AxisRef, ...]:
    """The mesh axes along which some pair of a permutation moves data, in mesh order."""
    match = _PAIRS.search(attributes)
    return axes_crossed(
        [(int(a), int(b)) for a, b in _PAIR.findall(match[1])] if match else [], mesh
    )


def is_ring_shift(attributes: str) -> bool:
    """Whether a permutation sends every piece of a group to the next device, or to the one before.

    Groups are rings in the order of their devices, the last one followed by the first.
    """
    match = _PAIRS.search(attributes)
    if match is None:
        return False
    target_of = {int(a): int(b) for a, b in _PAIR.findall(match[1])}
    groups = _connected(list(target_of.items()))
    return bool(groups) and any(
        all(
            target_of.get(device) == group[(place + step) % len(group)]
            for group in groups
            for place, device in enumerate(group)
        )
        for step in (1, -1)
    )


def _mesh_groups(match: re.Match[str]) -> Groups:
    sizes = {name: int(size) for name, size in _MESH_AXIS.findall(match[1])}
    num_devices = math.prod(sizes.values())
    if match[2]:
        devices = _laid_out(_ints(match[2]), _ints(match[3]))
    else:
        devices = list(_ints(match[4]) or range(num_devices))
    # Parts of axes split a mesh axis in up to three: what is before, the part, what is after.
    named = {
        name: (int(pre or 1), int(size or sizes[name]))
        for name, pre, size in _MESH_AXIS_REF.findall(match[5])
    }
    shape: list[int] = []
    joined: list[int] = []
    for name, whole in sizes.items():
        if name in named:
            pre, size = named[name]
            joined.append(len(shape) + 1)
            shape += [pre, size, whole // (pre * size)]
        else:
            shape.append(whole)
    outer = [dim for dim in range(len(shape)) if dim not in joined]
    order = _transposed(shape, (*outer, *joined))
    return _rows([devices[i] for i in order], math.prod(shape[dim] for dim in joined))


def _connected(pairs: Sequence[tuple[int, int]]) -> Groups:
    group_of: dict[int, list[int]] = {}
    for source, target in pairs:
        if source == target:
            continue
        left, right = group_of.setdefault(source, [source]), group_of.setdefault(target, [target])
        if left is not right:
            left += right
            group_of.update(dict.fromkeys(right, left))
    distinct = {id(group): tuple(sorted(group)) for group in group_of.values()}
    return tuple(sorted(distinct.values()))


def _laid_out(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    """The numbers from 0 in `shape`, transposed by `order`, read row by row."""
    return _transposed(shape, order or range(len(shape)))


def _transposed(shape: Sequence[int], order: Sequence[int]) -> list[int]:
    strides = [math.prod(shape[dim + 1 :]) for dim in range(len(shape))]
    found = [0]
    for dim in order:
        found = [base + i * strides[dim] for base in found for i in range(shape[dim])]
    return found


def _rows(devices: Sequence[int], size: int) -> Groups:
    return tuple(tuple(devices[i : i + size]) for i in range(0, len(devices), size))


def _ints(text: str | None) -> tuple[int, ...]:
    return tuple(int(part) for part in (text or "").split(",") if part.strip())
