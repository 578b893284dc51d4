"""Selectors: what each form reads as, what it matches, and how mistakes are shown."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.constraints import (
    ModuleSelector,
    NameSelector,
    PathSelector,
    SourceSelector,
    parse_selector,
)
from autoshard.constraints.selector import name_steps
from autoshard.errors import InputError

NAMES = [
    "params['mlp']['w1']",
    "params['mlp']['b1']",
    "params['layers'][0].w",
    "params['layers'][10].w",
    "momentum['mlp']['w1']",
    "x",
    "result[0]['loss']",
]


def matching(text: str) -> list[str]:
    selector = parse_selector(text)
    assert isinstance(selector, PathSelector)
    return [name for name in NAMES if selector.matches(name)]


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("params['mlp']['w1']", ["params['mlp']['w1']"]),
        ('params["mlp"]["w1"]', ["params['mlp']['w1']"]),
        ("x", ["x"]),
        ("params", []),
        ("params**", [n for n in NAMES if n.startswith("params")]),
        ('params**["w1"]', ["params['mlp']['w1']"]),
        ('**["w1"]', ["params['mlp']['w1']", "momentum['mlp']['w1']"]),
        ("**", NAMES),
        ("*", ["x"]),
        ('*["mlp"]["*1"]', [n for n in NAMES if "mlp" in n]),
        ('params["m*"]**', ["params['mlp']['w1']", "params['mlp']['b1']"]),
        ('params["layers"][0].w', ["params['layers'][0].w"]),
        ('params["layers"][*].w', ["params['layers'][0].w", "params['layers'][10].w"]),
        ('params["layers"]["0"].w', []),
        ('params["layers"][0]["w"]', []),
        ("params**.w", ["params['layers'][0].w", "params['layers'][10].w"]),
        ('result[0]["loss"]', ["result[0]['loss']"]),
        (" x ", ["x"]),
    ],
)
def test_a_path_selects_names_step_by_step(text: str, names: list[str]) -> None:
    assert matching(text) == names


def test_a_backslash_takes_the_meaning_from_a_star() -> None:
    starred = parse_selector(r'd["a\*"]')
    assert isinstance(starred, PathSelector)
    assert starred.matches("d['a*']")
    assert not starred.matches("d['ab']")


@given(keys=st.lists(st.one_of(st.text(max_size=8), st.integers(0, 99)), max_size=4))
def test_every_name_of_a_tensor_is_read_back_as_its_keys(keys: list[str | int]) -> None:
    name = "tree" + "".join(f"[{key!r}]" for key in keys)
    root, steps = name_steps(name)
    assert root == "tree"
    if all(isinstance(key, int) or ("\\" not in repr(key)) for key in keys):
        assert [getattr(step, "key", None) for step in steps] == keys


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("model.py:42", ("model.py", 42, "", "", False)),
        ("model.py:42 dot_general", ("model.py", 42, "dot_general", "", False)),
        ("nets/model.py:42 (block)", ("nets/model.py", 42, "", "block", False)),
        ("model.py:42(block)", ("model.py", 42, "", "block", False)),
        ("model.py:42 (<lambda>) backward", ("model.py", 42, "", "<lambda>", True)),
        ("m.py:7 add (f) backward", ("m.py", 7, "add", "f", True)),
        ("m.py:7 backward", ("m.py", 7, "", "", True)),
    ],
)
def test_a_line_may_be_narrowed_to_a_primitive_a_function_and_the_backward_pass(
    text: str, parts: tuple[str, int, str, str, bool]
) -> None:
    found = parse_selector(text)
    assert isinstance(found, SourceSelector)
    assert (found.file, found.line, found.primitive, found.function, found.is_backward) == parts


@pytest.mark.parametrize(
    ("text", "selected", "others"),
    [
        ("h/*/attn", ["h/0/attn", "net/h/12/attn"], ["h/attn", "h/0/attn/c_attn", "oh/0/attn"]),
        ("h_*/c_fc", ["h_0/c_fc", "net/h_1/c_fc"], ["h_0/mlp/c_fc"]),
        ("h/**/c_fc", ["h/c_fc", "h/0/mlp/c_fc"], ["h/0/mlp/c_fc2"]),
        ("h_*/~/c_fc", ["h_0/c_fc"], ["h_0/mlp/c_fc"]),  # as Haiku names its parameters
        ("module:c_attn", ["c_attn", "h/0/c_attn"], ["h/0/xc_attn"]),
        (r"re:h/\d+/(attn|mlp)", ["h/0/attn", "net/h/12/mlp"], ["h/a/attn", "h/0/norm"]),
    ],
)
def test_modules_are_selected_by_the_last_segments_of_their_paths(
    text: str, selected: list[str], others: list[str]
) -> None:
    found = parse_selector(text)
    assert isinstance(found, ModuleSelector)
    assert [path for path in (*selected, *others) if found.matches(path)] == selected


@pytest.mark.parametrize(
    ("text", "primitive", "is_backward"),
    [
        ("h/*/attn", "", False),
        ("h/*/attn dot_general", "dot_general", False),
        ("h/*/attn backward", "", True),
        ("re:h.* dot_general backward", "dot_general", True),
    ],
)
def test_a_module_may_be_narrowed_to_a_primitive_and_the_backward_pass(
    text: str, primitive: str, is_backward: bool
) -> None:
    found = parse_selector(text)
    assert isinstance(found, ModuleSelector)
    assert (found.primitive, found.is_backward) == (primitive, is_backward)


def test_a_line_in_a_folder_is_no_module() -> None:
    assert isinstance(parse_selector("nets/model.py:42 add"), SourceSelector)
    assert isinstance(parse_selector('params["a/b"]'), PathSelector)


def test_a_name_is_what_checkpoint_name_gave() -> None:
    assert parse_selector("name:mlp_hidden") == NameSelector("name:mlp_hidden", "mlp_hidden")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            "params[w1]",
            "expected a key in quotes, a number or `*`, found `w`\n"
            "  where: selector, line 1, column 8\n"
            "    params[w1]\n"
            "           ^\n"
            '  fix: write keys as in ["w1"] or [0]',
        ),
        (
            'params["w1"',
            "expected `]`, found the end\n"
            "  where: selector, line 1, column 12\n"
            '    params["w1"\n'
            "               ^",
        ),
        (
            "model.py:next",
            "expected a line number, found `n`\n"
            "  where: selector, line 1, column 10\n"
            "    model.py:next\n"
            "             ^\n"
            "  fix: write the file and the line, as in model.py:42",
        ),
        (
            "model.py:4 add mul",
            "expected nothing more, found `m`\n"
            "  where: selector, line 1, column 16\n"
            "    model.py:4 add mul\n"
            "                   ^\n"
            "  fix: write model.py:42, then if wanted a primitive, (function) and backward",
        ),
        (
            "a..b",
            "expected the name of an attribute, found `.`\n"
            "  where: selector, line 1, column 3\n"
            "    a..b\n"
            "      ^",
        ),
        (
            "[0]",
            "expected an argument or `result`, a line such as `model.py:42`, a module such as"
            " `h/*/attn`, or `name:...`,"
            " found `[`\n"
            "  where: selector, line 1, column 1\n"
            "    [0]\n"
            "    ^\n"
            '  fix: write params["w1"], result[0], **["w1"], model.py:42, h/*/attn or name:hidden',
        ),
        (
            "h/attn dot_general (loss)",
            "expected nothing more, found `(`\n"
            "  where: selector, line 1, column 20\n"
            "    h/attn dot_general (loss)\n"
            "                       ^\n"
            "  fix: write h/*/attn/c_attn, then if wanted a primitive and backward",
        ),
        (
            "re:h(",
            "expected a regular expression (missing ), unterminated subpattern), found `(`\n"
            "  where: selector, line 1, column 5\n"
            "    re:h(\n"
            "        ^\n"
            "  fix: write `\\(` for a parenthesis itself, or use a pattern: h/*/attn",
        ),
        (
            "name:",
            "expected a name after `name:`, found the end\n"
            "  where: selector, line 1, column 6\n"
            "    name:\n"
            "         ^",
        ),
    ],
)
def test_a_mistake_is_shown_with_a_caret(text: str, message: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_selector(text)
    assert str(caught.value) == message


@given(text=st.text(alphabet="ab*[]\"'.:0 ()\\", max_size=12))
def test_any_text_is_read_or_refused_and_never_crashes(text: str) -> None:
    with contextlib.suppress(InputError):
        assert parse_selector(text).text == text
