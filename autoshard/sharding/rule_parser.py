"""Op sharding rules from Shardy's text."""

from __future__ import annotations

import re

from autoshard.sharding.op_sharding_rule import DimFactors, OpShardingRule
from autoshard.sharding.rule_printer import FACTOR_LETTERS, format_factor
from autoshard.sharding.source import readable
from autoshard.sharding.string_literals import BARE_NAME
from autoshard.sharding.tokens import MAX_INTEGER, TokenReader

_MAX_FACTOR_SIZE = 2**31 - 1
_FACTOR = re.compile(r"z_([0-9]*)|([i-z])")
_FACTOR_FIX = "factors are called i to z, then z_1, z_2 and so on"
_SET_KEYWORDS = ("reduction", "need_replication", "permutation", "blocked_propagation")


def parse_op_sharding_rule(text: str) -> OpShardingRule:
    """Read an op sharding rule: `<([i, k], [k, j])->([i, j]) {i=8, j=4, k=16} reduction={k}>`.

    Grammar (blanks and `//` comments may stand between tokens, but not inside `->` or `dim`):

        text     ::= "#sdy.op_sharding_rule"? "<" tensors "->" tensors sizes? set* custom? ">"
        tensors  ::= "(" tensor ("," tensor)* ")"
        tensor   ::= "[" (dim ("," dim)*)? "]"
        dim      ::= symbol+
        symbol   ::= "i" | "j" | ... | "z" | "z_1" | "z_2" | ...
        sizes    ::= "{" (symbol "=" int ("," symbol "=" int)*)? "}"
        set      ::= keyword "=" ("{" (symbol ("," symbol)*)? "}")?
        keyword  ::= "reduction" | "need_replication" | "permutation" | "blocked_propagation"
        custom   ::= "," "custom"

    The symbols of `sizes` are all of them in order, and the sets come in the order of `keyword`,
    each once. Only the form is checked; see `verify_op_sharding_rule`. That a dimension has a
    factor is left to it too, as Shardy does.

    Raises:
        ShardingError: The text is not a rule; the message shows it with a caret.
    """
    reader = TokenReader(text)
    reader.skip_attribute_name("#sdy.op_sharding_rule")
    reader.expect("<")
    operands = _read_tensors(reader)
    reader.expect("->")
    results = _read_tensors(reader)
    sizes = _read_sizes(reader)
    sets = {keyword: _read_set(reader, keyword) for keyword in _SET_KEYWORDS}
    is_custom = reader.take(",")
    if is_custom:
        reader.expect("custom")
    if not reader.take(">"):
        _fail_before_end(reader, sets, is_custom=is_custom)
    reader.end()
    return OpShardingRule(sizes, operands, results, **sets, is_custom=is_custom)


def _fail_before_end(
    reader: TokenReader, sets: dict[str, tuple[int, ...]], *, is_custom: bool
) -> None:
    if reader.peek() in sets and not is_custom:
        reader.fail("`>`", fix=f"write each set once, in this order: {', '.join(sets)}")
    reader.fail("`>`")


def _read_tensors(reader: TokenReader) -> tuple[DimFactors, ...]:
    reader.expect("(")
    if reader.peek() == ")":
        reader.fail(
            "`[`", fix="a rule is about an operation with at least one operand and one result"
        )
    tensors = [_read_tensor(reader)]
    while reader.take(","):
        tensors.append(_read_tensor(reader))
    if not reader.take(")"):
        reader.fail("`,` or `)`")
    return tuple(tensors)


def _read_tensor(reader: TokenReader) -> DimFactors:
    reader.expect("[")
    if reader.take("]"):
        return ()
    dims = [_read_dim(reader)]
    while reader.take(","):
        dims.append(_read_dim(reader))
    if not reader.take("]"):
        reader.fail("`,` or `]`", fix="factors of one dimension stand together, as in [i, jk]")
    return tuple(dims)


def _read_dim(reader: TokenReader) -> tuple[int, ...]:
    if reader.peek() in {",", "]"}:
        return ()
    return _read_factors(reader)


def _read_factors(reader: TokenReader) -> tuple[int, ...]:
    """The symbols of one token."""
    token = reader.peek()
    if not BARE_NAME.fullmatch(token):
        reader.fail("factors such as `ij`", fix=_FACTOR_FIX)
    factors = []
    place = 0
    while place < len(token):
        match = _FACTOR.match(token, place)
        if match is None:
            reader.refuse(
                f"`{readable(token[place])}` in `{readable(token)}` is not a factor",
                fix=_FACTOR_FIX,
            )
        factors.append(_factor_index(reader, match))
        place = match.end()
    reader.at += 1
    return tuple(factors)


def _factor_index(reader: TokenReader, match: re.Match[str]) -> int:
    number, letter = match.groups()
    if letter:
        return FACTOR_LETTERS.index(letter)
    if not number or number[0] == "0":
        reader.refuse(
            f"`z_` is followed by a number from 1, found `{readable(match.string)}`",
            fix=_FACTOR_FIX,
        )
    if len(number) > 19 or int(number) > MAX_INTEGER:
        reader.refuse_number(what="factor")
    return len(FACTOR_LETTERS) - 1 + int(number)


def _read_factor(reader: TokenReader) -> int:
    """One symbol. Shardy reads the first of several in a set and drops the rest; we refuse them."""
    token = reader.peek()
    match = _FACTOR.fullmatch(token)
    if match is None:
        reader.fail("one factor, such as `i`", fix=f"{_FACTOR_FIX}, with commas between them")
    factor = _factor_index(reader, match)
    reader.at += 1
    return factor


def _read_sizes(reader: TokenReader) -> tuple[int, ...]:
    """`"{" (symbol "=" int ("," symbol "=" int)*)? "}"`, or nothing."""
    if reader.take("{}") or not reader.take("{") or reader.take("}"):
        return ()
    sizes: list[int] = []
    while True:
        expected = format_factor(len(sizes))
        if _read_factor(reader) != len(sizes):
            reader.at -= 1
            reader.fail(f"the size of `{expected}`", fix="give the sizes in order, from `i` on")
        reader.expect("=")
        sizes.append(reader.integer(_MAX_FACTOR_SIZE))
        if not reader.take(","):
            break
    if not reader.take("}"):
        reader.fail("`,` or `}`")
    return tuple(sizes)


def _read_set(reader: TokenReader, keyword: str) -> tuple[int, ...]:
    """`keyword "=" ("{" (symbol ("," symbol)*)? "}")?`, or nothing."""
    if not reader.take(keyword):
        return ()
    reader.expect("=")
    if reader.take("{}") or not reader.take("{") or reader.take("}"):
        return ()
    factors = [_read_factor(reader)]
    while reader.take(","):
        factors.append(_read_factor(reader))
    if not reader.take("}"):
        reader.fail("`,` or `}`")
    return tuple(factors)
