"""Corrections of a program as YAML, beside its plan: versioned, checked strictly when read.

The layout:

    format: autoshard corrections
    version: 3
    function: train_step
    program: 6f1c...            # fingerprint
    ops: 412                    # in it
    hardware: tpu-v5e
    compiler: libtpu 0.0.52, jaxlib 0.10.2
    classes: {matmul: 1.07}     # compiled seconds of a class of ops over their price
    choices:                    # an op in one way: seconds of a step beside its price
      - {op: '7.jaxpr/38:dot_general', operands: ['<@mesh, [{"data"}, {}]>', '<@mesh, [{}, {}]>'],
         results: ['<@mesh, [{"data"}, {}]>'], in_chunks: false, seconds: 1.2e-05,
         priced: 8.0e-05, elsewhere: 0.0}
    reshards:                   # a value on its way to a reader: seconds of a step, likewise
      - {reader: '40:add', operand: 0, before: '<@mesh, [{"data"}, {}]>',
         after: '<@mesh, [{}, {}]>', seconds: 2.0e-05}
    memory:                     # a value: bytes on a device beside those predicted
      - {op: '40:add', result: 0, sharding: '<@mesh, [{"data"}, {}]>', bytes: 4194304}
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar, TypeVar

import yaml

from autoshard.encoding.corrections import (
    ChoiceCorrection,
    Corrections,
    MemoryCorrection,
    ReshardCorrection,
)
from autoshard.errors import AutoshardError, InputError
from autoshard.sharding import Sharding, format_sharding, parse_sharding
from autoshard.user_files import read_or_refuse, write_or_refuse
from autoshard.yaml_document import DocumentLoader

FORMAT, VERSION = "autoshard corrections", 3
_FIX = "give a file that `autoshard refine` wrote"
_MOST_BYTES = 16 * 2**20
_MOST_ENTRIES = 100_000
_MOST_OPS = 10**9
_MOST_SECONDS = 3600.0
_LONGEST = 4096
_KEYS = frozenset(
    {
        "format",
        "version",
        "function",
        "program",
        "ops",
        "hardware",
        "compiler",
        "classes",
        "choices",
        "reshards",
        "memory",
    }
)

T = TypeVar("T")


@dataclass(frozen=True, slots=True, kw_only=True)
class SavedCorrections:
    """Corrections, and what they hold for.

    Args:
        function: Name of the function.
        program: Fingerprint of the program.
        hardware: Machine that it was planned for.
        compiler: Version of what compiled.
        corrections: What was learnt.
    """

    function: str
    program: str
    hardware: str
    compiler: str
    corrections: Corrections

    def fitting(self, function: str, fingerprint: str, hardware: str, where: str) -> Corrections:
        """The corrections as they hold for a program; of another batch or depth, by ratios.

        Raises:
            InputError: They are of another function or machine; says of which.
        """
        if self.function != function:
            raise InputError(
                f"these corrections are of {self.function}, and the plan is of {function}",
                where=where,
                fix="refine a plan of this function, which writes its corrections",
            )
        if self.hardware != hardware:
            raise InputError(
                f"these corrections are for {self.hardware}, and the plan is for {hardware}",
                where=where,
                fix="refine a plan for this machine, which writes its corrections",
            )
        is_other = self.program != fingerprint
        return replace(self.corrections, is_of_other_sizes=is_other)


def save_corrections(saved: SavedCorrections, path: str | os.PathLike[str]) -> None:
    """Write a corrections file; nothing half-written is left behind.

    Raises:
        InputError: It cannot be written.
    """
    write_or_refuse(path, dump_corrections(saved).encode(), "the corrections file")


def dump_corrections(saved: SavedCorrections) -> str:
    """Corrections as YAML text; equal ones give equal text."""
    found = saved.corrections
    content = {
        "format": FORMAT,
        "version": VERSION,
        "function": saved.function,
        "program": saved.program,
        "ops": found.num_ops,
        "hardware": saved.hardware,
        "compiler": saved.compiler,
        "classes": {name: float(ratio) for name, ratio in (found.ratio_by_class or {}).items()},
        "choices": [
            {
                "op": one.op,
                "operands": list(map(format_sharding, one.operands)),
                "results": list(map(format_sharding, one.results)),
                "in_chunks": one.in_chunks,
                "seconds": float(one.seconds),  # NumPy has floats that YAML does not know
                "priced": float(one.priced),
                "elsewhere": float(one.elsewhere),
            }
            for one in found.choices
        ],
        "reshards": [
            {
                "reader": move.reader,
                "operand": move.operand,
                "before": format_sharding(move.before),
                "after": format_sharding(move.after),
                "seconds": float(move.seconds),
            }
            for move in found.reshards
        ],
        "memory": [
            {
                "op": held.op,
                "result": held.result,
                "sharding": format_sharding(held.sharding),
                "bytes": held.num_bytes,
            }
            for held in found.memory
        ],
    }
    return yaml.safe_dump(content, sort_keys=False, width=100)


def load_corrections(path: str | os.PathLike[str]) -> SavedCorrections:
    """Read a corrections file.

    Raises:
        InputError: It cannot be read, is larger than 16 MiB, or as `parse_corrections`.
    """
    where = os.fspath(path)
    content = read_or_refuse(path, "the corrections file", _FIX, most_bytes=_MOST_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise _refusal("the corrections file is no text in UTF-8", where) from error
    return parse_corrections(text, where)


def parse_corrections(text: str, where: str = "corrections") -> SavedCorrections:
    """Read corrections from YAML text.

    Args:
        text: Of the form that this module describes.
        where: Names the file in errors.

    Raises:
        InputError: The text is no YAML, is of another version, or holds something else; names the
            first mistake with its path inside the file.
    """
    try:
        content = yaml.load(text, Loader=_CorrectionsLoader)
    except (yaml.YAMLError, RecursionError, ValueError) as error:
        reason = getattr(error, "problem", None) or type(error).__name__
        raise _refusal(f"this is not YAML as corrections are: {reason}", where) from error
    root = _Node(content, "", where)
    entries = root.entries()
    if "format" not in entries or entries["format"].value != FORMAT:
        raise root.refusal(f"expected `format: {FORMAT}`")
    if "version" in entries and entries["version"].count(_MOST_ENTRIES) != VERSION:
        raise root.refusal(f"is of version {entries['version'].shown}; this one reads {VERSION}")
    known = root.mapping(_KEYS)
    ratios = {name: node.number(0.0, 1e3) for name, node in known["classes"].entries().items()}
    return SavedCorrections(
        function=known["function"].text(),
        program=known["program"].text(),
        hardware=known["hardware"].text(),
        compiler=known["compiler"].text(),
        corrections=Corrections(
            choices=known["choices"].each(_choice),
            reshards=known["reshards"].each(_reshard),
            memory=known["memory"].each(_memory),
            ratio_by_class=ratios or None,
            num_ops=known["ops"].count(_MOST_OPS),
        ),
    )


class _CorrectionsLoader(DocumentLoader):
    """The loader of all YAML of users, with room for what is learnt of a large program."""

    most_nodes: ClassVar[int] = 2_000_000


@dataclass(frozen=True, slots=True)
class _Node:
    """A value of the file with its path."""

    value: Any
    path: str
    where: str

    @property
    def shown(self) -> str:
        try:
            return repr(self.value)[:60]
        except ValueError:  # Python writes no whole number of more than 4300 digits
            return "a number of thousands of digits"

    def refusal(self, what: str) -> InputError:
        return _refusal(f"`{self.path}`: {what}" if self.path else what, self.where)

    def entries(self) -> dict[str, _Node]:
        if not isinstance(self.value, dict) or len(self.value) > _MOST_ENTRIES:
            raise self.refusal(f"expected a mapping, found {self.shown}")
        prefix = f"{self.path}." if self.path else ""
        found = {}
        for key, value in self.value.items():
            name = _Node(key, f"{self.path} key", self.where).text()
            found[name] = _Node(value, f"{prefix}{name}", self.where)
        return found

    def mapping(self, keys: frozenset[str]) -> Mapping[str, _Node]:
        """A mapping with these keys and no others."""
        found = self.entries()
        if missing := sorted(keys - found.keys()):
            raise self.refusal(f"`{missing[0]}` is missing")
        if unknown := sorted(found.keys() - keys):
            raise self.refusal(f"`{unknown[0]}` is no key here; expected {', '.join(sorted(keys))}")
        return found

    def each(self, read: Callable[[_Node], T]) -> tuple[T, ...]:
        if not isinstance(self.value, list) or len(self.value) > _MOST_ENTRIES:
            raise self.refusal(f"expected a list, found {self.shown}")
        nodes = (_Node(one, f"{self.path}[{i}]", self.where) for i, one in enumerate(self.value))
        return tuple(map(read, nodes))

    def text(self) -> str:
        if not isinstance(self.value, str) or len(self.value) > _LONGEST:
            raise self.refusal(f"expected text, found {self.shown}")
        return self.value

    def number(self, least: float, most: float) -> float:
        is_number = isinstance(self.value, (int, float)) and not isinstance(self.value, bool)
        if not is_number or not least <= self.value <= most:  # no comparison holds of NaN
            raise self.refusal(f"expected a number of {least:g} to {most:g}, found {self.shown}")
        return float(self.value)

    def count(self, most: int) -> int:
        if type(self.value) is not int or not 0 <= self.value <= most:
            raise self.refusal(f"expected a whole number of 0 to {most}, found {self.shown}")
        return self.value

    def truth(self) -> bool:
        if not isinstance(self.value, bool):
            raise self.refusal(f"expected true or false, found {self.shown}")
        return self.value

    def sharding(self) -> Sharding:
        text = self.text()
        try:
            return parse_sharding(text)
        except AutoshardError as error:
            raise self.refusal(f"{error.what}: {text}") from error


def _choice(node: _Node) -> ChoiceCorrection:
    known = node.mapping(
        frozenset({"op", "operands", "results", "in_chunks", "seconds", "priced", "elsewhere"})
    )
    return ChoiceCorrection(
        op=known["op"].text(),
        operands=known["operands"].each(_Node.sharding),
        results=known["results"].each(_Node.sharding),
        in_chunks=known["in_chunks"].truth(),
        seconds=known["seconds"].number(-_MOST_SECONDS, _MOST_SECONDS),
        priced=known["priced"].number(0.0, _MOST_SECONDS),
        elsewhere=known["elsewhere"].number(-_MOST_SECONDS, _MOST_SECONDS),
    )


def _reshard(node: _Node) -> ReshardCorrection:
    known = node.mapping(frozenset({"reader", "operand", "before", "after", "seconds"}))
    return ReshardCorrection(
        reader=known["reader"].text(),
        operand=known["operand"].count(_MOST_ENTRIES),
        before=known["before"].sharding(),
        after=known["after"].sharding(),
        seconds=known["seconds"].number(-_MOST_SECONDS, _MOST_SECONDS),
    )


def _memory(node: _Node) -> MemoryCorrection:
    known = node.mapping(frozenset({"op", "result", "sharding", "bytes"}))
    return MemoryCorrection(
        op=known["op"].text(),
        result=known["result"].count(_MOST_ENTRIES),
        sharding=known["sharding"].sharding(),
        num_bytes=known["bytes"].count(2**50),
    )


def _refusal(what: str, where: str) -> InputError:
    return InputError(what, where=where, fix=_FIX)
