"""What selectors pick in a program, and what is said where they pick nothing."""

from __future__ import annotations

import pytest

from autoshard.constraints import parse_selector
from autoshard.constraints.select import Chooser
from autoshard.errors import ConstraintError
from tests.constraints.programs import PROGRAM

CHOOSER = Chooser(PROGRAM)


def paths(selector: str) -> list[str]:
    return [tensor.path for tensor in CHOOSER.tensors(parse_selector(selector), "here")]


def reads(selector: str, by: str | None) -> tuple[str, ...]:
    (tensor,) = CHOOSER.tensors(parse_selector(selector), "here")
    return CHOOSER.reads(tensor, None if by is None else parse_selector(by))


@pytest.mark.parametrize(
    ("selector", "found"),
    [
        ("params**", ["in.0", "in.1"]),
        ('**["head"]', ["in.1", "out<1"]),
        ("result[0]", ["out<0"]),
        ("name:hidden", ["0.jaxpr/1.0"]),
    ],
)
def test_names_select_arguments_results_and_named_values(selector: str, found: list[str]) -> None:
    assert paths(selector) == found


def test_a_line_selects_what_other_lines_read_of_it() -> None:
    assert paths("net.py:11") == ["0.jaxpr/1.0"]  # and not the product, which stays on its line


def test_a_line_selects_what_its_body_hands_back_to_itself() -> None:
    assert paths("net.py:12") == ["0.jaxpr/2.0"]


def test_a_line_does_not_select_what_is_only_kept_for_the_backward_pass() -> None:
    assert paths("net.py:20") == ["0.0"]


def test_a_line_selects_what_is_returned() -> None:
    assert paths("net.py:22") == ["2.0"]


def test_the_backward_pass_of_a_line_is_selected_apart() -> None:
    assert paths("net.py:21") == ["1.0"]
    assert paths("net.py:21 backward") == ["3.0"]


def test_a_primitive_selects_what_it_makes_whoever_reads_it() -> None:
    assert paths("net.py:11 dot_general") == ["0.jaxpr/0.0"]
    assert paths("net.py:11 dot_general (layer)") == ["0.jaxpr/0.0"]


def test_folders_may_be_written_before_the_file() -> None:
    assert paths("src/net.py:22") == ["2.0"]
    with pytest.raises(ConstraintError):
        paths("lib/net.py:22")


def test_every_read_of_an_argument_is_a_use() -> None:
    assert reads("params['head']", None) == ("0<0", "1<1")


def test_a_read_inside_a_body_is_found_by_its_line() -> None:
    assert reads("params['head']", "net.py:12") == ("0.jaxpr/3<0", "0.jaxpr/3<1")
    assert reads("params['head']", "net.py:21 dot_general") == ("1<1",)


def test_a_body_whose_own_line_is_meant_reads_as_a_whole() -> None:
    assert reads("params['head']", "net.py:20") == ("0<0",)


def test_a_value_that_is_returned_is_read_there() -> None:
    assert reads("net.py:22", None) == ("out<0",)


@pytest.mark.parametrize(
    ("selector", "fix"),
    [
        ("params", "`params**` selects all of it: `params['stack']`, `params['head']`"),
        ("params['stak']", "did you mean `params['stack']`?"),
        ("params[7]", "under `params` there are: `params['stack']`, `params['head']`"),
        ("params/stak", "did you mean `params['stack']`?"),
        ("weights", "arguments and results begin with: `params`, `bias`, `x`, `result`"),
        ("name:hiden", "did you mean `hidden`?"),
        ("name:q", "names there are: `hidden`"),
        (
            "net.py:21 tanh",
            "on net.py:21, in `model`, there are: `dot_general`, `dot_general backward`",
        ),
        (
            "net.py:13",
            "lines of net.py that compute something near: `11`, `12`, `20`, `21`, `22`",
        ),
        ("nets.py:21", "did you mean `net.py`?"),
        ("zebra.py:21", "source files there are: `net.py`"),
    ],
)
def test_a_selector_of_nothing_says_what_there_is(selector: str, fix: str) -> None:
    with pytest.raises(ConstraintError) as caught:
        paths(selector)
    assert caught.value.what == f"`{selector}` selects nothing in this program"
    assert caught.value.where == "here"
    assert caught.value.fix == fix


def test_a_line_that_hands_nothing_on_says_what_it_makes() -> None:
    with pytest.raises(ConstraintError) as caught:
        paths("net.py:12 backward")
    assert caught.value.fix == (
        "on net.py:12, in `layer`, there are: `tanh`, `mul`; name one to select what it makes,"
        " whoever reads it"
    )


def test_an_argument_is_no_reader() -> None:
    with pytest.raises(ConstraintError) as caught:
        CHOOSER.check_reader(parse_selector("x"), "here")
    assert str(caught.value) == (
        "`x` is no line of source, and only lines read\n"
        "  where: here\n"
        "  fix: name the line that reads, as in model.py:42 or model.py:42 dot_general"
    )
