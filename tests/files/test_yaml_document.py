"""YAML within limits: whole messages, and no time spent on what passes them."""

from __future__ import annotations

import time

import pytest
import yaml

from cost_models import CostModelError
from cost_models.hardware_file import parse_hardware
from cost_models.yaml_document import DocumentLoader

LAUGHS = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"{chr(98 + i)}: &{chr(98 + i)} [{', '.join(['*' + chr(97 + i)] * 9)}]\n" for i in range(9)
)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[" * 5000, "found more than 50 levels of nesting"),
        ("{a: " * 60, "found more than 50 levels of nesting"),
        (LAUGHS, "found more than 60,000 values"),
        ("[" + "a," * 100_000 + "]", "found more than 60,000 values"),
        ("a: &a [*a]", "found a value that holds itself"),
        ("a: " + "9" * 20_000, "found a value of more than 10,000 letters"),
        ("a: " + "9" * 5000, "found a value that is no int"),
        ("a: !!float x", "found a value that is no float"),
        ('a: !!int ""', "found a value that is no int"),
        ("a: !!bool x", "found a value that is no bool"),
        (
            "a: !!timestamp x",
            "could not determine a constructor for the tag 'tag:yaml.org,2002:timestamp'",
        ),
        (
            "!!python/object/apply:os.system [ls]",
            "could not determine a constructor for the tag"
            " 'tag:yaml.org,2002:python/object/apply:os.system'",
        ),
        ("a: 1\na: 2", "keys given twice: a"),
        ("{[a]: 1}", "found unhashable key"),
    ],
    ids=lambda text: text[:12],
)
def test_what_passes_a_limit_or_is_no_plain_value_is_refused(text: str, problem: str) -> None:
    began = time.monotonic()
    with pytest.raises(yaml.MarkedYAMLError) as caught:
        yaml.load(text, Loader=DocumentLoader)
    assert caught.value.problem == problem
    assert time.monotonic() - began < 10


def test_what_stands_at_the_limits_is_read() -> None:
    deep = "[" * 49 + "1" + "]" * 49
    assert yaml.load(deep, Loader=DocumentLoader) == yaml.safe_load(deep)
    long = "[" + "1," * 59_998 + "]"
    assert len(yaml.load(long, Loader=DocumentLoader)) == 59_998


def test_a_date_is_text() -> None:
    assert yaml.load("a: 2001-99-99", Loader=DocumentLoader) == {"a": "2001-99-99"}


@pytest.mark.parametrize(
    ("value", "shown"),
    [
        ("0x" + "f" * 9000, "a number of more than 4300 digits"),
        ("1" + ":1" * 4000, "a number of more than 4300 digits"),
        ('"\\e[31m' + "x" * 200 + '"', "'\\x1b[31m" + "x" * 88 + "..."),
        ("[" + "a, " * 1000 + "]", "['a', " + "'a', " * 18 + "'..."),
        ("2001-99-99", "'2001-99-99'"),
    ],
    ids=["hex", "base 60", "control", "list", "date"],
)
def test_a_value_of_the_file_is_shown_cut_and_without_control_characters(
    value: str, shown: str
) -> None:
    with pytest.raises(CostModelError) as caught:
        parse_hardware(f"has_reduce_scatter: {value}\n")
    (line,) = [line for line in caught.value.what.splitlines() if "`has_reduce_scatter`" in line]
    assert line == f"  - `has_reduce_scatter` is {shown}; expected true or false"


def test_a_number_that_no_machine_has_is_refused_whatever_its_length() -> None:
    with pytest.raises(CostModelError) as caught:
        parse_hardware(f"collective_launch_seconds: {'9' * 4000}\n")
    assert (
        "  - `collective_launch_seconds` is inf; expected a finite number of seconds\n"
        in caught.value.what
    )
