"""Finding functions and their hooks."""

from __future__ import annotations

import re
from pathlib import Path
from textwrap import dedent

import pytest

from autoshard.commands.targets import load_target
from autoshard.errors import InputError


def write(folder: Path, text: str, name: str = "train.py") -> None:
    (folder / name).write_text(dedent(text))


def refusal(name: str) -> str:
    with pytest.raises(InputError) as caught:
        load_target(name)
    return str(caught.value)


def test_a_hook_named_after_the_function_gives_its_arguments(folder: Path) -> None:
    write(
        folder,
        """
        def step(x, y): ...
        def autoshard_args_step(): return (1, 2)
        def autoshard_args(): return (3,)
        """,
    )
    target = load_target("train:step")
    assert (target.args, target.options, target.function.__name__) == ((1, 2), {}, "step")


def test_an_attribute_of_the_function_goes_before_the_module(folder: Path) -> None:
    write(
        folder,
        """
        def step(x): ...
        step.autoshard_args = lambda: ("mine",)
        def autoshard_args_step(): return ("the module's",)
        """,
    )
    assert load_target("train:step").args == ("mine",)


def test_a_hook_for_the_whole_module_comes_last(folder: Path) -> None:
    write(folder, "def step(x): ...\ndef autoshard_args(): return (3,)")
    assert load_target("train:step").args == (3,)


def test_a_dict_gives_options_too(folder: Path) -> None:
    write(
        folder,
        """
        def step(x, *, rate): ...
        def autoshard_args():
            return {"args": [1], "kwargs": {"rate": 2}, "donate_argnums": 0}
        """,
    )
    target = load_target("train:step")
    assert target.args == (1,)
    assert target.options == {"kwargs": {"rate": 2}, "donate_argnums": 0}


def test_a_method_is_reached_by_dots(folder: Path) -> None:
    write(
        folder,
        """
        class Trainer:
            def step(self, x): ...
        trainer = Trainer()
        def autoshard_args_step(): return (1,)
        """,
    )
    assert load_target("train:trainer.step").args == (1,)


def test_a_named_tuple_is_no_tuple_of_arguments(folder: Path) -> None:
    write(
        folder,
        """
        from typing import NamedTuple
        class State(NamedTuple):
            w: int
        def step(state): ...
        def autoshard_args(): return State(1)
        """,
    )
    assert refusal("train:step").startswith(
        "expected a tuple of arguments or a dict with one, found State"
    )


@pytest.mark.parametrize(
    ("name", "written"),
    [
        ("train", "train:train_step"),
        ("train:", "train:train_step"),
        (":step", "train:step"),
        ("train.py:step", "train:step"),
        ("./a/train.py:step", "a.train:step"),
    ],
)
def test_names_of_another_form_are_refused_and_written_right(name: str, written: str) -> None:
    assert refusal(name) == (
        f'expected module:function, found "{name}"\n'
        "  where: TARGET\n"
        f"  fix: write dots in the module and a colon before the function, as in {written}"
    )


def test_an_unknown_module_is_refused(folder: Path) -> None:
    assert refusal("trian:step") == (
        'there is no module "trian"\n'
        f"  where: looked in {folder} and the installed packages\n"
        "  fix: run the command in the folder that holds it, or install the package"
    )


def test_a_missing_import_is_told_apart_from_a_missing_module(folder: Path) -> None:
    write(folder, "import no_such_library_anywhere")
    assert refusal("train:step") == (
        'the module imports "no_such_library_anywhere", which is not installed\n'
        '  where: module "train", train.py:1\n'
        '  fix: install "no_such_library_anywhere" in this environment'
    )


def test_a_module_that_fails_is_told_with_its_line(folder: Path) -> None:
    write(folder, "x = 1\ny = 1 / 0\n")
    assert refusal("train:step") == (
        "the module fails on import: ZeroDivisionError: division by zero\n"
        '  where: module "train", train.py:2\n'
        "  fix: correct the module; --debug shows the traceback"
    )


def test_a_module_with_a_syntax_error_is_told_with_its_line(folder: Path) -> None:
    write(folder, "x = 1\ndef f(:\n")
    assert 'where: module "train", train.py:2\n' in refusal("train:step")


def test_an_unknown_function_is_refused_with_those_that_come_close(folder: Path) -> None:
    write(folder, "def train_step(x): ...\ndef autoshard_args(): return (1,)")
    assert refusal("train:trian_step") == (
        'there is no "trian_step" in module "train"\n'
        "  where: train:trian_step\n"
        "  fix: name a function that is there, such as train_step"
    )


def test_something_that_is_no_function_is_refused(folder: Path) -> None:
    write(folder, "step = 3")
    assert refusal("train:step") == (
        "expected a function, found int\n  where: train:step\n  fix: name a function that is there"
    )


def test_a_function_without_a_hook_is_refused(folder: Path) -> None:
    write(folder, "def step(x): ...")
    assert refusal("train:step") == (
        "nothing says what step is called with\n"
        "  where: train:step\n"
        "  fix: define autoshard_args_step() in train and return a tuple of arguments, or a dict "
        'such as {"args": (state, batch), "donate_argnums": 0}'
    )


def test_a_hook_that_fails_is_told_with_its_line(folder: Path) -> None:
    write(folder, "def step(x): ...\ndef autoshard_args():\n    raise KeyError('x')\n")
    assert refusal("train:step") == (
        "the hook failed: KeyError: 'x'\n"
        "  where: train:autoshard_args, train.py:3\n"
        "  fix: correct the hook; --debug shows the traceback"
    )


@pytest.mark.parametrize(
    ("returned", "what"),
    [
        ("3", "expected a tuple of arguments or a dict with one, found int"),
        ("[1]", "expected a tuple of arguments or a dict with one, found list"),
        ("{}", 'expected a tuple of arguments or a dict with one, found a mapping without "args"'),
        ("{'args': 3}", 'expected a tuple under "args", found int'),
        ("{'args': (), 'mesh': 3}", "the hook gives 'mesh', which no plan takes"),
        ("{'args': (), 'kwargs': 3}", 'expected a dict under "kwargs", found int'),
    ],
)
def test_what_a_hook_returns_is_checked(folder: Path, returned: str, what: str) -> None:
    write(folder, f"def step(x): ...\ndef autoshard_args(): return {returned}")
    text = refusal("train:step")
    assert text.splitlines()[0] == what
    assert re.search(r"\n  where: train:autoshard_args\n  fix: .", text)


def test_a_hook_that_is_no_function_is_refused(folder: Path) -> None:
    write(folder, "def step(x): ...\nautoshard_args = (1,)")
    assert refusal("train:step").startswith(
        "expected a function without arguments, found tuple\n  where: train:autoshard_args\n"
    )
