"""Plan files: the way there and back, and what is refused."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from autoshard.errors import PlanError
from autoshard.plans.plan import PlanData
from autoshard.plans.plan_json import dump_plan, load_plan_data, parse_plan, save_plan
from autoshard.plans.verify_plan import verify_plan
from autoshard.sharding import parse_sharding
from tests.plan.plans import gpt_plan, patient, plan_in_rounds, plan_that_does_not_fit, plans


def refusal(text: str) -> PlanError:
    with pytest.raises(PlanError) as caught:
        parse_plan(text, "plan.json")
    return caught.value


def edited(change: Callable[[dict[str, Any]], None]) -> str:
    members = json.loads(dump_plan(gpt_plan()))
    change(members)
    return json.dumps(members)


@patient
@given(plan=plans())
def test_a_plan_comes_back_from_its_text(plan: PlanData) -> None:
    text = dump_plan(plan)
    assert parse_plan(text) == plan
    assert dump_plan(parse_plan(text)) == text


def test_a_plan_that_was_not_found_comes_back_with_its_infinite_gap() -> None:
    plan = plan_that_does_not_fit()
    assert plan.solver.gap == math.inf
    assert parse_plan(dump_plan(plan)) == plan


def test_equal_plans_give_equal_bytes_whatever_order_their_mappings_were_filled_in() -> None:
    plan = gpt_plan()
    backwards = replace(plan, values=dict(reversed(list(plan.values.items()))))
    assert dump_plan(backwards) == dump_plan(plan)


def test_a_whole_number_in_a_float_field_is_written_as_a_float() -> None:
    assert '"compute_seconds": 2.0,\n' in dump_plan(replace(gpt_plan(), compute_seconds=2))


def test_shardings_and_meshes_are_written_in_shardys_form() -> None:
    members = json.loads(dump_plan(gpt_plan()))
    assert members["mesh"] == '<["data"=2, "model"=4]>'
    assert members["values"]["3.0"] == '<@mesh, [{"data"}, {}, {"model"}]>'


def test_each_argument_has_a_line_of_its_own() -> None:
    lines = dump_plan(gpt_plan()).splitlines()
    assert len([line for line in lines if '"name": "params' in line and "num_bytes" in line]) == 10


def test_what_a_file_holds_is_refused_with_every_path_at_once() -> None:
    def change(members: dict[str, Any]) -> None:
        members["arguments"][3]["sharding"] = '[{"batch"}, {}]'
        members["arguments"][4]["shape"] = [2048]
        members["arguments"][5]["num_bytes"] = -1

    assert str(refusal(edited(change))) == (
        "3 problems in the plan file:\n"
        '  - `arguments[3].sharding`: dimension 0 uses axis "batch", which the mesh does not have; '
        'its axes: "data", "model"\n'
        "  - `arguments[4].sharding`: the sharding has 2 dimensions and the tensor has 1\n"
        "  - `arguments[5].num_bytes`: is -1; expected 0 or more\n"
        "  where: plan.json\n"
        "  fix: make the plan again with `autoshard plan`, or take the file from where it was saved"
    )


def test_wrong_types_are_all_named() -> None:
    def change(members: dict[str, Any]) -> None:
        members["function"] = 3
        members["memory_budget"] = "16 GB"
        members["arguments"][0]["shape"] = "512"
        members["arguments"][1]["num_bytes"] = 1.5
        members["arguments"][2]["sharding"] = ["data"]
        members["baselines"][0]["fits"] = 1
        members["memory"]["timeline"][1] = [1, 2, 3]
        members["ops"][0] = None
        members["solver"]["gap"] = True
        members["values"] = []

    assert refusal(edited(change)).what.splitlines() == [
        "10 problems in the plan file:",
        "  - `function`: expected text, found `3`",
        '  - `memory_budget`: expected a whole number, found `"16 GB"`',
        '  - `arguments[0].shape`: expected a list, found `"512"`',
        "  - `arguments[1].num_bytes`: expected a whole number, found `1.5`",
        '  - `arguments[2].sharding`: expected a sharding as text, found `["data"]`',
        "  - `values`: expected an object, found `[]`",
        "  - `ops[0]`: expected an object, found `null`",
        "  - `memory.timeline[1]`: expected a list of 2, found `[1, 2, 3]`",
        "  - `solver.gap`: expected a number, found `true`",
        "  - `baselines[0].fits`: expected true or false, found `1`",
    ]


def test_missing_and_unknown_fields_are_named() -> None:
    def change(members: dict[str, Any]) -> None:
        del members["arguments"][1]["dtype"]
        members["solver"]["colour"] = "red"

    assert refusal(edited(change)).what.splitlines()[1:] == [
        "  - `arguments[1].dtype`: is missing",
        "  - `solver.colour`: is not a field here",
    ]


def test_a_file_from_before_tensors_were_kept_with_their_ops_is_read() -> None:
    members = json.loads(dump_plan(gpt_plan()))
    del members["memory"]["held"]
    plan = gpt_plan()
    assert parse_plan(json.dumps(members)) == replace(plan, memory=replace(plan.memory, held=()))


def test_a_sharding_that_does_not_parse_is_shown() -> None:
    def change(members: dict[str, Any]) -> None:
        members["values"]["3.0"] = '<@mesh, [{"data"}'

    assert refusal(edited(change)).what.splitlines()[1:] == [
        '  - `values["3.0"]`: expected `,` or `]`, found the end in `"<@mesh, [{\\"data\\"}"`'
    ]


@pytest.mark.parametrize("number", ["NaN", "Infinity", "-Infinity", "1e999"])
def test_numbers_that_are_not_finite_are_refused_with_their_path(number: str) -> None:
    text = dump_plan(replace(gpt_plan(), compute_seconds=0.125))
    error = refusal(text.replace('"compute_seconds": 0.125,', f'"compute_seconds": {number},', 1))
    assert error.what.startswith("1 problem in the plan file:\n  - `compute_seconds`: is ")
    assert error.what.endswith("; expected a finite number")


def test_nan_where_a_whole_number_stands_is_refused() -> None:
    def change(members: dict[str, Any]) -> None:
        members["memory"]["peak_bytes"] = math.nan

    assert (
        "`memory.peak_bytes`: expected a whole number, found `NaN`" in refusal(edited(change)).what
    )


def test_a_whole_number_that_no_float_holds_is_refused() -> None:
    """The check of finite numbers ended in `OverflowError: int too large to convert to float`."""

    def change(members: dict[str, Any]) -> None:
        members["memory"]["peak_bytes"] = 10**400

    assert refusal(edited(change)).what.splitlines()[1:] == [
        "  - `memory.peak_bytes`: is a number of many digits; expected a finite number"
    ]


def test_a_plan_with_nan_is_not_written(tmp_path: Path) -> None:
    broken = replace(gpt_plan(), communication_seconds=math.nan)
    with pytest.raises(PlanError, match="`communication_seconds`: is nan; expected a finite"):
        save_plan(broken, tmp_path / "plan.json")
    assert list(tmp_path.iterdir()) == []


def test_a_plan_whose_sharding_the_mesh_does_not_admit_is_not_written() -> None:
    broken = replace(gpt_plan(), values={"3.0": parse_sharding('[{"x"}]')})
    with pytest.raises(PlanError, match='dimension 0 uses axis "x"'):
        dump_plan(broken)


def test_an_unknown_status_is_refused() -> None:
    def change(members: dict[str, Any]) -> None:
        members["solver"]["status"] = "splendid"

    assert refusal(edited(change)).what == (
        "1 problem in the plan file:\n"
        '  - `solver.status`: "splendid" is not a status; expected one of optimal, within gap, '
        "feasible, infeasible, no solution"
    )


def test_rounds_that_do_not_follow_one_another_are_refused() -> None:
    plan = plan_in_rounds()
    first, second, third = plan.rounds
    shorter = replace(third, priority=2, shardings=third.shardings[:-1])
    assert verify_plan(plan) == []
    assert verify_plan(replace(plan, rounds=(first,))) == [
        "`rounds`: is a single one; expected none or several"
    ]
    assert verify_plan(replace(plan, rounds=(first, second, shorter))) == [
        "`rounds[2].priority`: is 2; expected more than 2",
        "`rounds[2].shardings`: are of 6 lines; expected 7, as many as in `listing`",
    ]


def test_shardings_of_rounds_are_checked_on_the_mesh() -> None:
    plan = plan_in_rounds()
    first, *others = plan.rounds
    wrong = parse_sharding('[{"x"}]')
    asked = replace(first.asked[0], sharding=wrong)
    broken = replace(first, asked=(asked,), shardings=((wrong,), *first.shardings[1:]))
    said = 'dimension 0 uses axis "x", which the mesh does not have; its axes: "data", "model"'
    assert verify_plan(replace(plan, rounds=(broken, *others))) == [
        f"`rounds[0].asked[0].sharding`: {said}",
        f"`rounds[0].shardings[0][0]`: {said}",
    ]


def test_a_plan_made_in_rounds_is_read_back() -> None:
    assert parse_plan(dump_plan(plan_in_rounds())) == plan_in_rounds()


def test_a_file_cut_anywhere_is_refused() -> None:
    text = dump_plan(gpt_plan()).rstrip()
    for end in range(1, len(text), 97):
        error = refusal(text[:end])
        assert error.where == "plan.json"
        assert error.what.startswith("the plan file is cut: it ends in the middle of a value")


def test_text_that_is_no_json_is_refused_with_its_place() -> None:
    assert str(refusal('{\n  "format": plan\n}')) == (
        "the plan file is not JSON: expecting value at line 2, column 13\n"
        "  where: plan.json\n"
        "  fix: make the plan again with `autoshard plan`, or take the file from where it was saved"
    )


@pytest.mark.parametrize("text", ["{}", "[]", "3", "null", '{"format": "a diary"}'])
def test_other_json_is_refused_as_no_plan(text: str) -> None:
    assert str(refusal(text)) == (
        'this JSON is not an autoshard plan: it has no `"format": "autoshard plan"`\n'
        "  where: plan.json\n"
        "  fix: give a file that `autoshard plan --out` or `plan.save` wrote"
    )


def test_json_too_deep_for_a_plan_is_refused() -> None:
    assert refusal("[" * 100_000).what.startswith("the plan file is not JSON that a plan could be")


@pytest.mark.parametrize(
    ("version", "fix"),
    [
        (4, "upgrade autoshard to the version that wrote it, or make the plan again here"),
        (2, "make the plan again with this version of autoshard"),
    ],
)
def test_other_versions_are_refused(version: int, fix: str) -> None:
    error = refusal(json.dumps({"format": "autoshard plan", "version": version}))
    assert error.what == f"the plan file is of version {version}; this autoshard reads version 3"
    assert error.fix == fix


def test_a_version_that_is_no_number_is_refused() -> None:
    error = refusal('{"format": "autoshard plan", "version": "1"}')
    assert error.what == '`version`: expected a whole number, found `"1"`'


def test_a_member_given_twice_is_refused() -> None:
    text = dump_plan(gpt_plan()).replace('"function":', '"function": "f",\n"function":', 1)
    assert refusal(text).what == "the plan file names `function` twice in one object"


def test_a_long_list_of_problems_says_how_many_are_left() -> None:
    def change(members: dict[str, Any]) -> None:
        members["values"] = {str(index): 0 for index in range(100)}

    lines = refusal(edited(change)).what.splitlines()
    assert (lines[0], lines[-1]) == ("100 problems in the plan file:", "  - and 80 more")


def test_a_saved_plan_loads(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(gpt_plan(), path)
    assert load_plan_data(path) == gpt_plan()
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_saving_over_a_plan_replaces_it(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    save_plan(gpt_plan(), path)
    save_plan(plan_that_does_not_fit(), str(path))
    assert load_plan_data(path) == plan_that_does_not_fit()


@pytest.mark.parametrize("failure", [KeyboardInterrupt, OSError(28, "No space left on device")])
@pytest.mark.parametrize("at", ["fsync", "replace"])
def test_a_save_that_is_interrupted_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: str, failure: Any
) -> None:
    path = tmp_path / "plan.json"
    path.write_text("what was there")

    def fail(*_: object) -> None:
        raise failure

    monkeypatch.setattr(os if at == "fsync" else Path, at, fail)
    with pytest.raises((KeyboardInterrupt, PlanError)):
        save_plan(gpt_plan(), path)
    assert path.read_text() == "what was there"
    assert [entry.name for entry in tmp_path.iterdir()] == ["plan.json"]


def test_a_folder_that_does_not_exist_is_named(tmp_path: Path) -> None:
    path = tmp_path / "missing" / "plan.json"
    with pytest.raises(PlanError) as caught:
        save_plan(gpt_plan(), path)
    assert str(caught.value) == (
        "the plan cannot be written: No such file or directory\n"
        f"  where: {path}\n"
        "  fix: name a file in a folder that exists and that you may write to"
    )


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    with pytest.raises(PlanError) as caught:
        load_plan_data(path)
    assert str(caught.value) == (
        "the plan file cannot be read: No such file or directory\n"
        f"  where: {path}\n"
        "  fix: give the path of a file that `autoshard plan --out` or `plan.save` wrote"
    )


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "plan.json"
    path.write_bytes(b'{"format": "\xff"}')
    with pytest.raises(PlanError, match="the file is not text: byte 12 is not UTF-8"):
        load_plan_data(path)
