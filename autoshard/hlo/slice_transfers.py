"""Collectives between slices of a compiled TPU program: sends from host to host.

A collective over several slices is run by a library on the hosts. The program sends what a device
has and receives what comes of it; the frontend attributes of the sending say what is done.
"""

from __future__ import annotations

import re

from autoshard.hlo.text import HloModule, Instruction
from autoshard.sharding import Groups

_KINDS = {
    "ALL_GATHER": "all-gather",
    "ALL_REDUCE": "all-reduce",
    "ALL_TO_ALL": "all-to-all",
    "ONE_TO_ONE": "collective-permute",
}
_TARGET = "_xla_megascale_target"
_PER_SLICE = 100_000  # device 3 of slice 2, counted from 1, is 200003
_DEVICE = re.compile(r"\b\d{6,}\b")


def transfer_kind(instruction: Instruction) -> str | None:
    """The kind of collective that a send between slices begins; None for anything else."""
    if instruction.opcode != "send":
        return None
    return _KINDS.get(instruction.string("_xla_megascale_transfer_type"))


def transfer_groups(module: HloModule, instruction: Instruction) -> Groups:
    """The devices that exchange something, by their numbers in the program; pairs of a permutation.

    The spellings are `"{1,2}x{0:15}"`, that is every device of 0 to 15 with its likes in slices 1
    and 2; `{{100000,200000},{100001,200001}}`; and `{{100004->200000}}`.
    """
    size = module.num_devices  # of one slice: each has a program of its own
    found = re.search(rf'{_TARGET}="\{{([\d,]+)\}}x\{{(\d+):(\d+)\}}"', instruction.attributes)
    if found is not None:
        slices = [int(number) - 1 for number in found[1].split(",")]
        devices = range(int(found[2]), int(found[3]) + 1)
        return tuple(tuple(number * size + device for number in slices) for device in devices)
    start = instruction.attributes.index(_TARGET)
    listed = instruction.attributes[start : instruction.attributes.index("}}", start)]
    groups = [[int(number) for number in _DEVICE.findall(row)] for row in listed.split("},")]
    return tuple(
        tuple((number // _PER_SLICE - 1) * size + number % _PER_SLICE for number in group)
        for group in groups
    )
