"""Reading HLO text: computations, instructions, and what calls what."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass

from autoshard.errors import InputError

_BITS = {
    "pred": 8,
    **{f"{sign}{bits}": bits for sign in "su" for bits in (1, 2, 4, 8, 16, 32, 64)},
    "f16": 16,
    "bf16": 16,
    "f32": 32,
    "f64": 64,
    "c64": 64,
    "c128": 128,
    "f4e2m1fn": 4,
}
_COMMENT = re.compile(r"/\*.*?\*/")
_HEADER = re.compile(r"^(ENTRY )?%?([^\s(]+)\s.*\{$")
_INSTRUCTION = re.compile(r"^\s+(ROOT )?%?([^\s=]+) = (.*)$")
_ARRAY = re.compile(r"([a-z][a-z0-9]*)\[([^\]]*)\]")
_LAID_OUT = re.compile(_ARRAY.pattern + r"(?:\{([\d,]*)(?::T\(([\d,]+)\))?)?")
_OPCODE = re.compile(r"\s*([a-z][\w\-]*)\(")
_NAME = re.compile(r"%?([\w.\-]+)$")
_CALLED = re.compile(
    r"(?:^|, )(calls|to_apply|body|condition|true_computation|false_computation)=%?([\w.\-]+)"
)
_CALLED_LIST = re.compile(r"(?:^|, )(branch_computations|called_computations|calls)=\{([^}]*)\}")
_COUNT = re.compile(r"(\w+)=(\d+)")
_FRAME = re.compile(r"^(\d+) \{(.*)\}$")
_QUOTED_ENTRY = re.compile(r'^(\d+) "(.*)"$')


@dataclass(frozen=True, slots=True)
class Instruction:
    """One line of a computation.

    Args:
        name: Without the percent sign.
        type_text: Its result type, layouts included.
        opcode: As HLO spells it: `all-gather-start`.
        operands: Names.
        attributes: What follows the operands, as text.
        is_root: Whether it is the result of its computation.
    """

    name: str
    type_text: str
    opcode: str
    operands: tuple[str, ...]
    attributes: str
    is_root: bool

    @property
    def num_bytes(self) -> int:
        """Bytes of the result; all elements, of a tuple."""
        return type_bytes(self.type_text)

    @property
    def laid_out_bytes(self) -> int:
        """Bytes of the result as it lies in memory, in whole tiles where it has any."""
        return laid_out_bytes(self.type_text)

    def called(self) -> Iterator[tuple[str, str]]:
        """Computations this calls: the attribute that names each, and its name."""
        for match in _CALLED.finditer(self.attributes):
            yield match[1], match[2]
        for match in _CALLED_LIST.finditer(self.attributes):
            for name in filter(None, match[2].split(",")):
                yield match[1], name.strip().removeprefix("%")

    def string(self, key: str) -> str:
        """A quoted attribute, such as `op_name`, also inside `metadata`; "" if there is none."""
        match = re.search(rf'\b{key}="((?:[^"\\]|\\.)*)"', self.attributes)
        return match[1] if match else ""

    def number(self, key: str) -> int | None:
        """A whole-number attribute, also inside `metadata`."""
        match = re.search(rf"\b{key}=(\d+)", self.attributes)
        return int(match[1]) if match else None


@dataclass(frozen=True, slots=True)
class HloModule:
    """An HLO module as text says it.

    Args:
        computations: Instructions by computation, each by instruction name in text order.
        entry: The computation that is the program.
        num_partitions: Devices one copy of the program is spread over.
        num_replicas: Copies.
        source_by_frame: `file.py:12` by stack frame number.
    """

    computations: dict[str, dict[str, Instruction]]
    entry: str
    num_partitions: int
    num_replicas: int
    source_by_frame: dict[int, str]

    @property
    def num_devices(self) -> int:
        return self.num_partitions * self.num_replicas

    def source(self, instruction: Instruction) -> str:
        """`file.py:12`, "" where the text does not tell."""
        frame = instruction.number("stack_frame_id")
        if frame is not None:
            return self.source_by_frame.get(frame, "")
        file, line = instruction.string("source_file"), instruction.number("source_line")
        return f"{file}:{line}" if file and line is not None else file


def parse_hlo(text: str) -> HloModule:
    """Read what `jax.stages.Compiled.as_text` prints.

    Grammar, as far as it is read (one instruction a line):

        module      ::= "HloModule" name ("," key "=" value)* tables computation+
        computation ::= "ENTRY"? "%"? name "(" parameters ")" "->" type "{" instruction+ "}"
        instruction ::= "ROOT"? "%"? name "=" type opcode "(" operands ")" ("," attribute)*

    Raises:
        InputError: There is no entry computation.
    """
    computations: dict[str, dict[str, Instruction]] = {}
    entry = ""
    current: dict[str, Instruction] | None = None
    header: dict[str, int] = {}
    tables: dict[str, list[str]] = {}
    table: list[str] | None = None
    for line in text.splitlines():
        if line.startswith("HloModule"):
            header = {key: int(value) for key, value in _COUNT.findall(line)}
        elif current is not None:
            if line.startswith("}"):
                current = None
                continue
            instruction = _parse_instruction(line)
            if instruction is not None:
                current[instruction.name] = instruction
        elif (match := _HEADER.match(line)) is not None and "->" in line:
            current = computations.setdefault(match[2], {})
            if match[1]:
                entry = match[2]
        elif line and line[0].isalpha():
            table = tables.setdefault(line.strip(), [])
        elif table is not None and line:
            table.append(line)
    if not entry:
        raise InputError(
            "the text has no ENTRY computation",
            fix="pass the optimized HLO of a compiled program: compiled.as_text()",
        )
    return HloModule(
        computations,
        entry,
        header.get("num_partitions", 1),
        header.get("replica_count", 1),
        _sources(tables),
    )


def type_bytes(type_text: str) -> int:
    """Bytes of an array or tuple type; tokens and opaque handles have none."""
    total = 0
    for name, dims in _ARRAY.findall(_COMMENT.sub("", type_text)):
        bits = _BITS.get(name, 8 if name.startswith("f8") else 0)
        sizes = [int(size.strip().removeprefix("<=")) for size in dims.split(",") if size.strip()]
        total += -(-math.prod(sizes) * bits // 8)
    return total


def element_types(type_text: str) -> tuple[str, ...] | None:
    """Types of the elements of a tuple type; None of an array type."""
    text = _COMMENT.sub("", type_text).strip()
    if not text.startswith("("):
        return None
    return tuple(part.strip() for part in _split_outside_brackets(text[1:-1]))


def laid_out_bytes(type_text: str) -> int:
    """Bytes of an array or tuple type as it lies: dimensions padded to whole tiles.

    In `f32[96,16]{1,0:T(8,128)}` rows of 16 fill 128 lanes. Without a tile nothing is padded.
    """
    total = 0
    for name, dims, order, tile in _LAID_OUT.findall(_COMMENT.sub("", type_text)):
        bits = _BITS.get(name, 8 if name.startswith("f8") else 0)
        sizes = [int(size.strip().removeprefix("<=")) for size in dims.split(",") if size.strip()]
        from_minor = [int(dim) for dim in order.split(",") if dim]
        multiples = reversed([int(size) for size in tile.split(",") if size])
        for dim, multiple in zip(from_minor, multiples, strict=False):
            sizes[dim] = -(-sizes[dim] // multiple) * multiple
        total += -(-math.prod(sizes) * bits // 8)
    return total


def _parse_instruction(line: str) -> Instruction | None:
    match = _INSTRUCTION.match(line)
    if match is None:
        return None
    rest = _COMMENT.sub("", match[3])
    type_end = _closing(rest, 0) if rest.startswith("(") else _end_of_array_type(rest)
    opcode = _OPCODE.match(rest, type_end)
    if opcode is None:
        return None
    operands_end = _closing(rest, opcode.end() - 1)
    operands = rest[opcode.end() : operands_end - 1]
    names = tuple(
        name[1]
        for part in _split_outside_brackets(operands)
        if (name := _NAME.search(part.strip())) is not None
    )
    return Instruction(
        match[2],
        rest[:type_end],
        opcode[1],
        names if opcode[1] not in {"constant", "parameter"} else (operands,),
        rest[operands_end:].removeprefix(", "),
        bool(match[1]),
    )


def _end_of_array_type(text: str) -> int:
    """Where a type that is no tuple ends: at the first blank outside a layout's braces."""
    depth = 0
    for position, letter in enumerate(text):
        depth += (letter in "{[(") - (letter in "}])")
        if letter == " " and depth == 0:
            return position
    return len(text)


def _closing(text: str, start: int) -> int:
    """The position after the bracket that closes the one at `start`; quoted text is skipped."""
    depth = 0
    is_quoted = False
    for position in range(start, len(text)):
        letter = text[position]
        if letter == '"' and text[position - 1] != "\\":
            is_quoted = not is_quoted
        elif not is_quoted:
            depth += (letter in "({[") - (letter in ")}]")
            if depth == 0:
                return position + 1
    return len(text)


def _split_outside_brackets(text: str) -> Iterator[str]:
    depth = 0
    start = 0
    for position, letter in enumerate(text):
        depth += (letter in "({[") - (letter in ")}]")
        if letter == "," and depth == 0:
            yield text[start:position]
            start = position + 1
    if text[start:].strip():
        yield text[start:]


def _sources(tables: dict[str, list[str]]) -> dict[int, str]:
    def quoted(name: str) -> dict[int, str]:
        lines = (_QUOTED_ENTRY.match(line.strip()) for line in tables.get(name, ()))
        return {int(match[1]): match[2] for match in lines if match is not None}

    def numbered(name: str) -> dict[int, dict[str, int]]:
        lines = (_FRAME.match(line.strip()) for line in tables.get(name, ()))
        return {
            int(match[1]): {key: int(value) for key, value in _COUNT.findall(match[2])}
            for match in lines
            if match is not None
        }

    files = quoted("FileNames")
    locations = numbered("FileLocations")
    sources = {}
    for number, frame in numbered("StackFrames").items():
        location = locations.get(frame.get("file_location_id", -1), {})
        file = files.get(location.get("file_name_id", -1), "")
        if file:
            sources[number] = f"{file}:{location.get('line', 0)}"
    return sources
