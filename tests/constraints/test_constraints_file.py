"""Constraints in a YAML file."""

from __future__ import annotations

from pathlib import Path

import pytest

from autoshard.constraints import Group, Pin, Uses
from autoshard.constraints.constraints_file import load_constraints, parse_constraints
from autoshard.errors import InputError

WHOLE = """\
meshes:
  ring: '<["r"=8]>'
pins:
  'params**["w1"]': '[{}, {"model"}p1]'
  name:hidden: <@ring, [{"r"}, {}]>
uses:
  - select: 'params["table"]'
    by: model.py:57
    sharding: '[{}, {"model"}]'
  - {select: x, sharding: '[{}]'}
groups:
  state: ['params**["w1"]', 'momentum**["w1"]']
  7: [x]
"""


def test_a_file_says_what_the_values_say() -> None:
    assert parse_constraints(WHOLE, "c.yaml") == (
        Pin('params**["w1"]', '[{}, {"model"}p1]', where="c.yaml:4"),
        Pin("name:hidden", '<mesh<["r"=8]>, [{"r"}, {}]>', where="c.yaml:5"),
        Uses('params["table"]', '[{}, {"model"}]', "model.py:57", where="c.yaml:7"),
        Uses("x", "[{}]", where="c.yaml:10"),
        Group('params**["w1"]', 'momentum**["w1"]', id="state", where="c.yaml:12"),
        Group("x", id="7", where="c.yaml:13"),
    )


def test_an_empty_file_and_empty_sections_ask_for_nothing() -> None:
    assert parse_constraints("") == ()
    assert parse_constraints("pins:\nuses:\ngroups:\nmeshes:\n") == ()


def test_every_mistake_is_named_with_its_line() -> None:
    text = """\
pins:
  x: '[{"x"]'
  y[: '[{}]'
  z: '<@rnig, [{}]>'
  w: [1, 2]
uses:
  - select: x
    on: y
groups:
  a: x
more: 1
meshes:
  ring: '<["r"=2], device_ids=[0, 0]>'
"""
    with pytest.raises(InputError) as caught:
        parse_constraints(text, "c.yaml")
    assert str(caught.value).splitlines() == [
        "8 mistakes in the constraints:",
        "- there is no section `more`",
        "    where: c.yaml:11",
        "    fix: the sections are meshes, pins, uses, groups, keep, recompute, offload",
        "- mesh ring: the device ids are 0 to 1 in some order, and 1 is missing",
        "    where: c.yaml:13",
        "    fix: correct it",
        "- expected `,` or `}`, found `]`",
        "    where: c.yaml:2, in line 1, column 6",
        '      [{"x"]',
        "           ^",
        "- expected a key in quotes, a number or `*`, found the end",
        "    where: c.yaml:3, in selector, line 1, column 3",
        "      y[",
        "        ^",
        '    fix: write keys as in ["w1"] or [0]',
        "- no mesh is called @rnig",
        "    where: c.yaml:4",
        "    fix: define it under `meshes:`, or use one of @mesh",
        "- expected text",
        "    where: c.yaml:5",
        "    fix: put it in single quotes: '[{}, {\"x\"}]'",
        "- a use: `on` is not known, `sharding` is missing",
        "    where: c.yaml:7",
        "    fix: write select, sharding and maybe by",
        "- expected a list",
        "    where: c.yaml:10",
        "    fix: begin each item with `- `, or write [a, b]",
        "  where: c.yaml",
        "  fix: correct each of them",
    ]


def test_one_mistake_is_told_whole() -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints("pins:\n  z: '<@rnig, [{}]>'\n", "c.yaml")
    assert str(caught.value) == (
        "no mesh is called @rnig\n"
        "  where: c.yaml:2\n"
        "  fix: define it under `meshes:`, or use one of @mesh"
    )


def test_the_plans_mesh_cannot_be_defined_anew() -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints("meshes:\n  mesh: '<[\"r\"=8]>'\n", "c.yaml")
    assert str(caught.value) == (
        "@mesh is the plan's mesh, which a file does not define\n"
        "  where: c.yaml:2\n"
        "  fix: call this one something else"
    )


def test_a_key_given_twice_is_refused() -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints("pins:\n  x: '[{}]'\n  x: '[{?}]'\n", "c.yaml")
    assert str(caught.value) == "`x` stands here twice\n  where: c.yaml:3\n  fix: say it once"


def test_text_that_is_no_yaml_names_the_line() -> None:
    with pytest.raises(InputError) as caught:
        parse_constraints("pins:\n  x: [{\n", "c.yaml")
    assert caught.value.where == "c.yaml:3"
    assert caught.value.what.startswith("this is not YAML: ")


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    path = tmp_path / "none.yaml"
    with pytest.raises(InputError) as caught:
        load_constraints(path)
    assert caught.value.where == str(path)
    assert caught.value.what.startswith("the constraints file cannot be read: ")
