"""Work of ragged matmuls that a TPU compiler gives no estimate of."""

from __future__ import annotations

import re
from collections.abc import Mapping
from math import prod

from autoshard.hlo.text import Instruction

_TILING = re.compile(r'\bragged_dot_tiling="(\d+),')
_NAME = "/ragged_dot_general"
_SHAPE = re.compile(r"\w+\[([\d,]*)\]")


def kernel_flops(instruction: Instruction, beside: Mapping[str, Instruction]) -> float:
    """FLOP of a ragged matmul that a kernel computes tile by tile of rows; 0 of all else.

    A tile is visited once for each group in it. The third operand has the group of each visit, the
    last one the matrices; where rows are contracted the result has them.

    Source: custom calls `ragged-dot-none` of libtpu 0.0.52 for a v5p.
    """
    tile = _TILING.search(instruction.attributes)
    if tile is None or len(instruction.operands) < 4:
        return 0.0
    visits, last = (_shape(beside[instruction.operands[place]]) for place in (2, -1))
    matrices = max(last, _shape(instruction), key=len)
    return 2.0 * visits[0] * int(tile[1]) * prod(matrices[1:])


def result_of(instruction: Instruction) -> str:
    """The type, without layout, of what a fused ragged matmul makes; "" for all else."""
    if instruction.opcode != "fusion" or not instruction.string("op_name").endswith(_NAME):
        return ""
    found = _SHAPE.search(instruction.type_text)
    return found[0] if found else ""


def _shape(instruction: Instruction) -> tuple[int, ...]:
    found = _SHAPE.search(instruction.type_text)
    return tuple(int(size) for size in found[1].split(",") if size) if found else ()
