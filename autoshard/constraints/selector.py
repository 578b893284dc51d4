"""Selectors: text that picks tensors of a program, as its user sees them.

Grammar (blanks may stand around the parts of a source):

    selector  ::= path | source | module | named
    path      ::= ("**" | name) step*
    step      ::= "[" key "]" | "." name | "**"
    key       ::= string | int | "*"
    string    ::= '"' ... '"' | "'" ... "'"
    name      ::= letters, digits, "_" and "*"
    source    ::= file ":" line primitive? ("(" function ")")? "backward"?
    module    ::= (modules | "module:" modules | "re:" regex) primitive? "backward"?
    modules   ::= segment ("/" segment)*, with a "/" in it unless `module:` stands before
    segment   ::= "**" | letters, digits and other signs but blanks, "*" among them
    named     ::= "name:" text

In names and strings `*` stands for any characters; `**` stands for any number of steps, none
included, and before the first step for any argument or result. A backslash takes the meaning from
the character after it. The segments of a module are the last ones of its path; `**` stands there
for any number of segments.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import NoReturn, TypeAlias

from autoshard.errors import InputError
from autoshard.sharding.source import source_with_caret

_NAME = re.compile(r"(?:[^\W\d]|\*(?!\*))(?:\w|\*(?!\*))*")
_STRING = re.compile(r""" "(?:[^"\\]|\\.)*" | '(?:[^'\\]|\\.)*' """, re.DOTALL | re.VERBOSE)
_INTEGER = re.compile(r"-?\d+")
_SOURCE = re.compile(r"\s*(?P<file>[^\s\[\]\"':]+):(?=\d|\s|\Z|[A-Za-z_])")
_LINE = re.compile(r"\d+")
_WORD = re.compile(r"[^\s()]+")
_UNBROKEN = re.compile(r"\S+")
_NAMED = "name:"
_MODULE = "module:"
_REGEX = "re:"
_MODULES = re.compile(r"\s*[^\s\[\]\"':]*/")
_BACKWARD = "backward"


@dataclass(frozen=True, slots=True)
class Glob:
    """Text in which any characters may stand between the parts; prints with `*` there."""

    parts: tuple[str, ...]

    @property
    def is_plain(self) -> bool:
        return len(self.parts) == 1

    def matches(self, text: str) -> bool:
        if self.is_plain:
            return text == self.parts[0]
        pattern = ".*".join(map(re.escape, self.parts))
        return re.fullmatch(pattern, text, re.DOTALL) is not None


@dataclass(frozen=True, slots=True)
class Item:
    """`["w1"]`, `[0]` or `[*]`."""

    key: Glob | int | None  # None: any

    def matches(self, step: NameStep) -> bool:
        if not isinstance(step, KeyStep):
            return False
        if isinstance(self.key, Glob):
            return isinstance(step.key, str) and self.key.matches(step.key)
        return self.key is None or step.key == self.key


@dataclass(frozen=True, slots=True)
class Attribute:
    """`.w1`."""

    name: Glob

    def matches(self, step: NameStep) -> bool:
        return isinstance(step, AttributeStep) and self.name.matches(step.name)


@dataclass(frozen=True, slots=True)
class AnySteps:
    """`**`."""


Step: TypeAlias = Item | Attribute | AnySteps


@dataclass(frozen=True, slots=True)
class KeyStep:
    """`['w1']` or `[0]` in the name of a tensor."""

    key: str | int


@dataclass(frozen=True, slots=True)
class AttributeStep:
    """`.w1` in the name of a tensor."""

    name: str


NameStep: TypeAlias = KeyStep | AttributeStep


@dataclass(frozen=True, slots=True)
class PathSelector:
    """Arguments and results by name; `root` None is any."""

    text: str
    root: Glob | None
    steps: tuple[Step, ...]

    def matches(self, name: str) -> bool:
        """Whether a tensor of this name, such as `params['w1']`, is selected."""
        root, steps = name_steps(name)
        return (self.root is None or self.root.matches(root)) and _steps_match(self.steps, steps)


@dataclass(frozen=True, slots=True)
class SourceSelector:
    """What a line of source makes; "" is any primitive, any function."""

    text: str
    file: str
    line: int
    primitive: str = ""
    function: str = ""
    is_backward: bool = False


@dataclass(frozen=True, slots=True)
class NameSelector:
    """What `jax.ad_checkpoint.checkpoint_name` calls so."""

    text: str
    name: str


@dataclass(frozen=True, slots=True)
class ModuleSelector:
    """What modules make, by the end of their paths; "" is any primitive.

    Args:
        text: As written.
        pattern: A regular expression for the last segments.
        primitive: Of the ops, or "" for what a module hands on.
        is_backward: Whether those of the backward pass are meant.
    """

    text: str
    pattern: str
    primitive: str = ""
    is_backward: bool = False

    def instance(self, module: str) -> str:
        """The selected module that a module is, or is inside of; "" where there is none."""
        segments = module.split("/") if module else []
        for count in range(len(segments), 0, -1):
            found = "/".join(segments[:count])
            if self.matches(found):
                return found
        return ""

    def matches(self, path: str) -> bool:
        """Whether the last segments of a path are those selected."""
        return re.fullmatch(rf"(?:.*/)?(?:{self.pattern})", path) is not None


Selector: TypeAlias = PathSelector | SourceSelector | ModuleSelector | NameSelector


@lru_cache(maxsize=4096)
def parse_selector(text: str) -> Selector:
    """Read a selector; the grammar is that of this module.

    Raises:
        InputError: The text is no selector; the message shows it with a caret.
    """
    stripped = text.strip()
    if stripped.startswith(_NAMED):
        name = stripped.removeprefix(_NAMED).strip()
        if not name:
            _refuse(text, len(text.rstrip()), "a name after `name:`")
        return NameSelector(text, name)
    if stripped.startswith((_MODULE, _REGEX)):
        return _module(text)
    source = _SOURCE.match(text)
    if source is not None:
        return _source(text, source["file"], source.end())
    if _MODULES.match(text):
        return _module(text)
    return _path(text)


def name_steps(name: str) -> tuple[str, tuple[NameStep, ...]]:
    """The name of a tensor as root and steps; what cannot be read is one step of text."""
    found = _NAME.match(name)
    at = found.end() if found else 0
    root = name[:at]
    steps: list[NameStep] = []
    while at < len(name):
        if name[at] == "." and (attribute := _NAME.match(name, at + 1)):
            steps.append(AttributeStep(attribute[0]))
            at = attribute.end()
            continue
        string = _STRING.match(name, at + 1) if name[at] == "[" else None
        stop = name.find("]", string.end() if string else at)
        if name[at] != "[" or stop < 0:
            steps.append(KeyStep(name[at:]))
            break
        inner = name[at + 1 : stop]
        key: str | int = inner
        if string is not None:
            key = _unescaped(string[0][1:-1])
        elif _INTEGER.fullmatch(inner):
            key = int(inner)
        steps.append(KeyStep(key))
        at = stop + 1
    return root, tuple(steps)


def _steps_match(wanted: tuple[Step, ...], have: tuple[NameStep, ...]) -> bool:
    if not wanted:
        return not have
    first, rest = wanted[0], wanted[1:]
    if isinstance(first, AnySteps):
        return any(_steps_match(rest, have[skipped:]) for skipped in range(len(have) + 1))
    return bool(have) and first.matches(have[0]) and _steps_match(rest, have[1:])


def _source(text: str, file: str, at: int) -> SourceSelector:
    line = _LINE.match(text, at)
    if line is None:
        _refuse(text, at, "a line number", fix="write the file and the line, as in model.py:42")
    at = line.end()
    if at < len(text) and not text[at].isspace() and text[at] != "(":
        _refuse(text, at, "a blank after the line number")
    primitive = function = ""
    is_backward = False
    while (at := _after_blanks(text, at)) < len(text):
        if text[at] == "(" and not function and not is_backward:
            stop = text.find(")", at)
            function = text[at + 1 : stop].strip() if stop > 0 else ""
            if not function:
                _refuse(text, at, "the name of a function in parentheses")
            at = stop + 1
            continue
        word = _WORD.match(text, at)
        if word is not None and word[0] == _BACKWARD and not is_backward:
            is_backward = True
        elif word is not None and not (primitive or function or is_backward):
            primitive = word[0]
        else:
            _refuse(
                text,
                at,
                "nothing more",
                fix="write model.py:42, then if wanted a primitive, (function) and backward",
            )
        at = word.end()
    return SourceSelector(text, file, int(line[0]), primitive, function, is_backward)


def _module(text: str) -> ModuleSelector:
    at = _after_blanks(text, 0)
    is_regex = text.startswith(_REGEX, at)
    at += next((len(one) for one in (_MODULE, _REGEX) if text.startswith(one, at)), 0)
    written = _UNBROKEN.match(text, at)
    if written is None:
        _refuse(text, at, "the path of a module", fix="write it as in h/*/attn/c_attn")
    if is_regex:
        try:
            re.compile(written[0])
        except re.error as error:
            _refuse(
                text,
                at + (error.pos or 0),
                f"a regular expression ({error.msg})",
                fix=r"write `\(` for a parenthesis itself, or use a pattern: h/*/attn",
            )
    pattern = written[0] if is_regex else _segments(written[0].split("/"))
    words = [(word[0], word.start()) for word in _UNBROKEN.finditer(text, written.end())]
    is_backward = bool(words) and words[-1][0] == _BACKWARD
    rest = words[:-1] if is_backward else words
    if len(rest) > 1:
        _refuse(
            text,
            rest[1][1],
            "nothing more",
            fix="write h/*/attn/c_attn, then if wanted a primitive and backward",
        )
    return ModuleSelector(text, pattern, rest[0][0] if rest else "", is_backward)


def _segments(segments: list[str]) -> str:
    """Segments of a module path as a regular expression; Haiku's `~` is in names alone."""
    segments = [one for one in segments if one != "~"] or segments
    *first, last = ("[^/]*".join(map(re.escape, _glob(one).parts)) for one in segments)
    any_number = ["(?:.*/)?" if one == "**" else None for one in segments]
    return "".join(any_number[place] or f"{one}/" for place, one in enumerate(first)) + (
        ".*" if segments[-1] == "**" else last
    )


def _path(text: str) -> PathSelector:
    stop = len(text.rstrip())
    at = _after_blanks(text, 0)
    root: Glob | None = None
    steps: list[Step] = []
    if not text.startswith("**", at):
        name = _NAME.match(text, at)
        if name is None:
            _refuse(
                text,
                at,
                "an argument or `result`, a line such as `model.py:42`, a module such as"
                " `h/*/attn`, or `name:...`",
                fix='write params["w1"], result[0], **["w1"], model.py:42, h/*/attn or name:hidden',
            )
        root = _glob(name[0])
        at = name.end()
    while at < stop:
        if text.startswith("**", at):
            if steps and isinstance(steps[-1], AnySteps):
                _refuse(text, at, "a step after `**`")
            steps.append(AnySteps())
            at += 2
        elif text[at] == ".":
            name = _NAME.match(text, at + 1)
            if name is None:
                _refuse(text, at + 1, "the name of an attribute")
            steps.append(Attribute(_glob(name[0])))
            at = name.end()
        elif text[at] == "[":
            item, at = _item(text, at + 1)
            steps.append(item)
        else:
            _refuse(text, at, "`[`, `.` or `**`")
    return PathSelector(text, root, tuple(steps))


def _item(text: str, at: int) -> tuple[Item, int]:
    """The key between brackets, and where the text goes on."""
    string = _STRING.match(text, at)
    number = _INTEGER.match(text, at)
    key: Glob | int | None = None
    if string is not None:
        key, end = _glob(string[0][1:-1]), string.end()
    elif number is not None:
        key, end = int(number[0]), number.end()
    elif text.startswith("*", at):
        end = at + 1
    else:
        _refuse(text, at, "a key in quotes, a number or `*`", fix='write keys as in ["w1"] or [0]')
    if not text.startswith("]", end):
        _refuse(text, end, "`]`")
    return Item(key), end + 1


def _glob(text: str) -> Glob:
    parts = [""]
    at = 0
    while at < len(text):
        if text[at] == "\\" and at + 1 < len(text):
            at += 1
            parts[-1] += text[at]
        elif text[at] == "*":
            parts.append("")
        else:
            parts[-1] += text[at]
        at += 1
    return Glob(tuple(parts))


def _unescaped(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL)


def _after_blanks(text: str, at: int) -> int:
    while at < len(text) and text[at].isspace():
        at += 1
    return at


def _refuse(text: str, at: int, expected: str, *, fix: str = "") -> NoReturn:
    found = f"`{text[at]}`" if at < len(text.rstrip()) else "the end"
    raise InputError(
        f"expected {expected}, found {found}",
        where=f"selector, {source_with_caret(text, min(at, len(text)))}",
        fix=fix,
    )
