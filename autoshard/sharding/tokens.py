"""Tokens of Shardy's text, and a place among them.

The whole text is split with one regular-expression call that keeps no positions; they are worked
out again only when there is an error to point at. For speed, an empty pair of braces is one token,
and so is an axis with its sizes when no blank stands inside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import NoReturn

from autoshard.errors import ShardingError
from autoshard.sharding.source import readable, source_with_caret
from autoshard.sharding.string_literals import PLAIN_CHARACTER, STRING_PATTERN, unquoted

MAX_INTEGER = 2**63 - 1

_TOKEN = re.compile(
    rf"""[ \t\r\n]*(?://[^\n]*[ \t\r\n]*)*
    ( "{PLAIN_CHARACTER}*"(?::\([0-9]{{1,18}}\)[0-9]{{1,18}}(?![0-9A-Za-z]))?
    | {{}}
    | ->
    | [\[\]{{}}<>(),:=?]
    | @?{STRING_PATTERN}
    | [!@]?[A-Za-z_][A-Za-z0-9_$.]*
    | \#[A-Za-z_][A-Za-z0-9_$.]*(?=<)
    | -?(?:0x[0-9a-fA-F]+|[0-9]+)
    | .
    | \Z )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)


@dataclass(slots=True)
class TokenReader:
    """A place in the tokens of one text; the last token is empty and stands for the end."""

    text: str
    at: int = 0
    tokens: list[str] = field(init=False)

    def __post_init__(self) -> None:
        self.tokens = _TOKEN.findall(self.text)

    def peek(self) -> str:
        return self.tokens[self.at]

    def fail(self, expected: str, *, fix: str = "", at: int | None = None) -> NoReturn:
        """Refuse token `at` (the current one, if not given)."""
        at = self.at if at is None else at
        token = self.tokens[at]
        found = f"found `{readable(token)}`" if token else "found the end"
        if token == '"':
            found = "found a string that does not end or has an unknown escape"
        self.refuse(f"expected {expected}, {found}", fix=fix, at=at)

    def refuse(self, what: str, *, fix: str, at: int | None = None) -> NoReturn:
        starts = [match.start(1) for match in _TOKEN.finditer(self.text)]
        where = source_with_caret(self.text, starts[self.at if at is None else at])
        raise ShardingError(what, where=where, fix=fix) from None

    def expect(self, token: str) -> None:
        if self.tokens[self.at] != token:
            self.fail(f"`{token}`")
        self.at += 1

    def take(self, token: str) -> bool:
        """Pass `token` if it comes next, and say whether it did."""
        if self.tokens[self.at] != token:
            return False
        self.at += 1
        return True

    def end(self) -> None:
        if self.tokens[self.at]:
            self.fail("nothing more")

    def skip_attribute_name(self, name: str) -> None:
        """Pass `name` if it comes next; MLIR wants no blank between it and the `<`."""
        if not self.take(name) and self.peek() == "#" and self.tokens[self.at + 1] == name[1:]:
            self.at += 2
            self.fail(f"`<` right after `{name}`")

    def string(self, what: str, fix: str) -> str:
        token = self.tokens[self.at]
        if len(token) < 2 or token[0] != '"' or token[-1] != '"':
            self.fail(what, fix=fix)
        self.at += 1
        return unquoted(token)

    def symbol(self, what: str, fix: str) -> str:
        """A name after `@`, bare or in quotes."""
        token = self.tokens[self.at]
        if len(token) < 2 or token[0] != "@":
            self.fail(what, fix=fix)
        if token == '@""':
            self.fail(f"{what} that is not empty")
        self.at += 1
        return token[1:] if token[1] != '"' else unquoted(token[1:])

    def integer(self, maximum: int = MAX_INTEGER) -> int:
        """A whole number up to `maximum`, or as far below 0, decimal or hexadecimal."""
        is_negative = self.take("-")
        token = self.tokens[self.at]
        if is_negative and token.startswith("-"):
            self.fail("a whole number")
        digits = token.lstrip("-").lstrip("0")
        if len(digits) > 20 and digits.isdecimal():
            self.refuse_number(maximum)  # int() takes only so many digits
        try:
            number = int(token, 16 if "x" in token else 10)
        except ValueError:
            self.fail("a whole number")
        number = -number if is_negative else number
        if not -maximum - 1 <= number <= maximum:
            self.refuse_number(maximum)
        self.at += 1
        return number

    def refuse_number(self, maximum: int = MAX_INTEGER, what: str = "number") -> NoReturn:
        """Refuse the current token as too large."""
        self.refuse(
            f"the {what} {readable(self.peek())} is too large",
            fix=f"Shardy's numbers go up to {maximum}",
        )
