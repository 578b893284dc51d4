"""Corrections as YAML: what is written is read back, and nothing else is read."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from autoshard.encoding.corrections import (
    ChoiceCorrection,
    Corrections,
    MemoryCorrection,
    ReshardCorrection,
)
from autoshard.errors import InputError
from autoshard.refine.corrections_file import (
    SavedCorrections,
    dump_corrections,
    load_corrections,
    parse_corrections,
    save_corrections,
)
from autoshard.sharding import parse_sharding

ROWS, WHOLE = parse_sharding('[{"data"}, {}]'), parse_sharding("[{}, {}]")
SAVED = SavedCorrections(
    function="step",
    program="ab12",
    hardware="tpu-v5e",
    compiler="libtpu 0.0.52",
    corrections=Corrections(
        choices=(
            ChoiceCorrection(
                op="7.jaxpr/38:dot_general#1",
                operands=(ROWS, WHOLE),
                results=(ROWS,),
                in_chunks=True,
                seconds=-1.25e-05,
                priced=5e-05,
                elsewhere=-2e-06,
            ),
        ),
        reshards=(
            ReshardCorrection(reader="40:add", operand=1, before=ROWS, after=WHOLE, seconds=2e-05),
        ),
        memory=(MemoryCorrection(op="40:add", result=0, sharding=ROWS, num_bytes=4194304),),
        ratio_by_class={"matmul": 1.07},
        num_ops=412,
    ),
)


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    path = tmp_path / "plan.corrections.yaml"
    save_corrections(SAVED, path)
    assert load_corrections(path) == SAVED


def test_equal_corrections_give_equal_text() -> None:
    assert dump_corrections(parse_corrections(dump_corrections(SAVED))) == dump_corrections(SAVED)


@pytest.mark.parametrize(
    ("before", "after", "what"),
    [
        ("version: 4", "version: 3", "this is not of version 4"),
        ("version: 4", "version: true", "this is not of version 4"),
        (
            "format: autoshard corrections",
            "format: plan",
            "expected `format: autoshard corrections`",
        ),
        ("program: ab12", "programm: ab12", "`program`: is missing"),
        ("matmul: 1.07", "matmul: .nan", "`corrections.ratio_by_class.matmul`: expected a number"),
        ("matmul: 1.07", "matmul: true", '`corrections.ratio_by_class["matmul"]`: expected a'),
        ("matmul: 1.07", "7: 1.07", "`corrections.ratio_by_class`: expected text, found `7`"),
        ("operand: 1", "operand: -1", "`corrections.reshards[0].operand`: expected a number of 0"),
        ("in_chunks: true", "in_chunks: 1", "`corrections.choices[0].in_chunks`: expected true or"),
        ("bytes: 4194304", "bytes: 1.5", "`corrections.memory[0].num_bytes`: expected a whole"),
        ("bytes: 4194304", "bytes: 9999999999999999999", "`corrections.memory[0].num_bytes`: "),
        ("seconds: 2.0e-05", "seconds: 1.0e+9", "`corrections.reshards[0].seconds`: expected a"),
        (
            "seconds: 2.0e-05",
            "seconds: 2.0e-05\n    more: 1",
            "`corrections.reshards[0].more`: is not a field here",
        ),
        (
            'before: <@mesh, [{"data"}, {}]>',
            "before: '[{'",
            "`corrections.reshards[0].before`: ",
        ),
        ("program: ab12", "program: 7", "`program`: expected text, found `7`"),
        ("program: ab12", f"program: 0x{'f' * 6000}", "`program`: expected text, found a number"),
        ("program: ab12", "program: &a ab12\nx: *a", "`x`: is not a field here"),
        ("program: ab12", "program: &a [*a]", "this is not YAML as corrections are"),
        ("program: ab12", "program: !!python/name:os.system x", "this is not YAML as corrections"),
        ("program: ab12", "program: [", "this is not YAML as corrections are"),
        (
            "program: ab12",
            "program: ab12\nprogram: ab13",
            "this is not YAML as corrections are: keys",
        ),
        ("matmul: 1.07", f"matmul: 1{'0' * 400}", "`corrections.ratio_by_class.matmul`: expected"),
        ("matmul: 1.07", f"matmul: 0x{'f' * 6000}", "`corrections.ratio_by_class.matmul`: "),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(before: str, after: str, what: str) -> None:
    text = dump_corrections(SAVED)
    assert before in text
    with pytest.raises(InputError) as caught:
        parse_corrections(text.replace(before, after), "plan.corrections.yaml")
    assert caught.value.what.startswith(what)
    assert caught.value.where == "plan.corrections.yaml"


@pytest.mark.parametrize("text", ["", "[]", "7", "x" * 100, "[" * 5000])
def test_text_that_is_no_corrections_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_corrections(text)


def test_a_file_that_is_no_regular_one_or_too_large_is_refused(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe.yaml"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="cannot be read: "):
        load_corrections(pipe)
    large = tmp_path / "large.yaml"
    with large.open("wb") as file:
        file.truncate(16 * 2**20 + 1)
    with pytest.raises(InputError, match="cannot be read: "):
        load_corrections(large)
    with pytest.raises(InputError, match="cannot be read"):
        load_corrections(tmp_path / "none.yaml")


def test_corrections_of_another_function_or_machine_are_refused() -> None:
    assert SAVED.fitting("step", "ab12", "tpu-v5e", "here") == SAVED.corrections
    with pytest.raises(InputError, match="of step, and the plan is of other"):
        SAVED.fitting("other", "ab12", "tpu-v5e", "here")
    with pytest.raises(InputError, match="for tpu-v5e, and the plan is for h100"):
        SAVED.fitting("step", "ab12", "h100", "here")


def test_corrections_of_another_batch_hold_by_their_ratios_and_do_so_when_saved_again() -> None:
    found = SAVED.fitting("step", "ab13", "tpu-v5e", "here")
    assert found.is_of_other_sizes
    again = parse_corrections(
        dump_corrections(dataclasses.replace(SAVED, program="ab13", corrections=found))
    )
    assert again.fitting("step", "ab13", "tpu-v5e", "here").is_of_other_sizes


@pytest.mark.slow
def test_corrections_of_a_program_with_ten_thousand_ops_are_read() -> None:
    one = SAVED.corrections.choices[0]
    many = tuple(dataclasses.replace(one, op=f"{number}:add") for number in range(10_000))
    saved = dataclasses.replace(SAVED, corrections=Corrections(choices=many))
    assert parse_corrections(dump_corrections(saved)) == saved
