"""Corrections of a program as YAML, beside its plan: versioned, checked strictly when read.

The layout is that of `SavedCorrections`, with shardings as text:

    format: autoshard corrections
    version: 4
    compiler: libtpu 0.0.52, jaxlib 0.10.2
    corrections:
      choices:                    # an op in one way: seconds of a step beside its price
      - {elsewhere: 0.0, in_chunks: false, op: '7.jaxpr/38:dot_general',
         operands: ['<@mesh, [{"data"}, {}]>', '<@mesh, [{}, {}]>'], priced: 8.0e-05,
         results: ['<@mesh, [{"data"}, {}]>'], seconds: 1.2e-05}
      is_of_other_sizes: false
      memory:                     # a value: bytes on a device beside those predicted
      - {num_bytes: 4194304, op: '40:add', result: 0, sharding: '<@mesh, [{"data"}, {}]>'}
      num_ops: 412
      ratio_by_class: {matmul: 1.07}  # compiled seconds of a class of ops over their price
      reshards:                   # a value on its way to a reader: seconds of a step, likewise
      - {after: '<@mesh, [{}, {}]>', before: '<@mesh, [{"data"}, {}]>', operand: 0,
         reader: '40:add', seconds: 2.0e-05}
    function: train_step
    hardware: tpu-v5e
    program: 6f1c...              # fingerprint
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import ClassVar

import yaml

from autoshard.encoding.corrections import Corrections
from autoshard.errors import InputError
from autoshard.plans.json_records import RecordReader, encode_record
from autoshard.user_files import read_or_refuse, write_or_refuse
from autoshard.yaml_document import DocumentLoader

FORMAT, VERSION = "autoshard corrections", 4
_FIX = "give a file that `autoshard refine` wrote"
_MOST_BYTES = 16 * 2**20
_MOST_SECONDS, _MOST_RATIO = 3600.0, 1e3
_MOST_COUNT = 2**50


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
        is_other = self.corrections.is_of_other_sizes or self.program != fingerprint
        return replace(self.corrections, is_of_other_sizes=is_other)


def save_corrections(saved: SavedCorrections, path: str | os.PathLike[str]) -> None:
    """Write a corrections file; nothing half-written is left behind.

    Raises:
        InputError: It cannot be written.
    """
    write_or_refuse(path, dump_corrections(saved).encode(), "the corrections file")


def dump_corrections(saved: SavedCorrections) -> str:
    """Corrections as YAML text; equal ones give equal text."""
    content = {"format": FORMAT, "version": VERSION, **encode_record(saved)}
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
    if not isinstance(content, dict) or content.pop("format", None) != FORMAT:
        raise _refusal(f"expected `format: {FORMAT}`", where)
    version = content.pop("version", None)
    if type(version) is not int or version != VERSION:
        raise _refusal(f"this is not of version {VERSION}, which this autoshard reads", where)
    reader = RecordReader()
    saved = reader.record(SavedCorrections, content)
    problems = reader.problems
    if saved is not None:
        problems = list(_out_of_range(saved.corrections))
    if saved is None or problems:
        raise _refusal(problems[0], where)
    return saved


class _CorrectionsLoader(DocumentLoader):
    """The loader of all YAML of users, with room for what is learnt of a large program."""

    most_nodes: ClassVar[int] = 2_000_000


def _out_of_range(found: Corrections) -> Iterator[str]:
    """Numbers of a file that no compiler and no program gives, each with its path."""
    numbers: list[tuple[str, float, float, float]] = [
        ("num_ops", found.num_ops, 0, _MOST_COUNT),
        *(
            (f"ratio_by_class.{name}", ratio, 0, _MOST_RATIO)
            for name, ratio in (found.ratio_by_class or {}).items()
        ),
    ]
    for i, one in enumerate(found.choices):
        numbers += [
            (f"choices[{i}].seconds", one.seconds, -_MOST_SECONDS, _MOST_SECONDS),
            (f"choices[{i}].priced", one.priced, 0, _MOST_SECONDS),
            (f"choices[{i}].elsewhere", one.elsewhere, -_MOST_SECONDS, _MOST_SECONDS),
        ]
    for i, move in enumerate(found.reshards):
        numbers += [
            (f"reshards[{i}].operand", move.operand, 0, _MOST_COUNT),
            (f"reshards[{i}].seconds", move.seconds, -_MOST_SECONDS, _MOST_SECONDS),
        ]
    for i, held in enumerate(found.memory):
        numbers += [
            (f"memory[{i}].result", held.result, 0, _MOST_COUNT),
            (f"memory[{i}].num_bytes", held.num_bytes, 0, _MOST_COUNT),
        ]
    for path, number, least, most in numbers:
        if not least <= number <= most:  # no comparison holds of NaN
            yield f"`corrections.{path}`: expected a number of {least:g} to {most:g}"


def _refusal(what: str, where: str) -> InputError:
    return InputError(what, where=where, fix=_FIX)
