"""Manual computations from Shardy's text: their borders, and the regions nested in a program."""

from __future__ import annotations

from autoshard.sharding.manual import ManualComputation, ManualRegion
from autoshard.sharding.sharding import Sharding
from autoshard.sharding.sharding_parser import read_sharding, starts_sharding
from autoshard.sharding.tokens import TokenReader

_DEEPEST_NESTING = 100


def parse_manual_computation(text: str) -> ManualComputation:
    """Read the border of a manual computation.

    Grammar:

        text      ::= skipped? border ("(" skipped)?
        border    ::= "in_shardings" "=" list "out_shardings" "=" list
                      "manual_axes" "=" "{" (string ("," string)*)? "}"
        list      ::= "[" (sharding ("," sharding)*)? "]"
        sharding  ::= "#sdy.sharding"? "<" ... ">", see `parse_sharding`

    What stands before, the operation and its operands, is skipped, and so is the region after
    the opening parenthesis of its arguments.

    Raises:
        ShardingError: The text is not that; the message shows it with a caret.
    """
    reader = TokenReader(text)
    _skip_to(reader, "in_shardings")
    manual = _read_border(reader)
    if reader.peek() != "(":
        reader.end()
    return manual


def find_manual_regions(text: str) -> tuple[ManualRegion, ...]:
    """Every manual computation in pasted compiler output that is not inside another one.

    Of each region, the shardings on operations inside and the manual computations nested in it
    are kept; the rest is skipped.

    Raises:
        ShardingError: Something begins as a manual computation or as a sharding and is not one, or
            a region does not end.
    """
    reader = TokenReader(text)
    regions = []
    while reader.peek():
        if reader.take("sdy.manual_computation"):
            regions.append(_read_region(reader))
        else:
            reader.at += 1
    return tuple(regions)


def _skip_to(reader: TokenReader, token: str) -> None:
    """Go to the next `token`."""
    if token not in reader.tokens[reader.at :]:
        reader.fail(f"`{token}`", at=len(reader.tokens) - 1)
    reader.at = reader.tokens.index(token, reader.at)


def _read_border(reader: TokenReader) -> ManualComputation:
    ins = _read_shardings(reader, "in_shardings")
    outs = _read_shardings(reader, "out_shardings")
    return ManualComputation(ins, outs, _read_manual_axes(reader))


def _read_region(reader: TokenReader, depth: int = 1) -> ManualRegion:
    """Operands, border, arguments and body, after the name of the operation."""
    if depth > _DEEPEST_NESTING:
        reader.refuse(
            f"manual computations are nested more than {_DEEPEST_NESTING} deep",
            fix="bind several axes in one manual computation",
        )
    _skip_to(reader, "in_shardings")
    manual = _read_border(reader)
    _skip_arguments(reader)
    if reader.take("{}"):
        return ManualRegion(manual)
    start = reader.at
    reader.expect("{")
    num_open = 1
    shardings: list[Sharding] = []
    nested: list[ManualRegion] = []
    while num_open:
        token = reader.peek()
        if not token:
            reader.refuse("this `{` is not closed", fix="end the region with `}`", at=start)
        if token == "<" and starts_sharding(reader):
            shardings.append(read_sharding(reader))
            continue
        reader.at += 1
        if token == "sdy.manual_computation":
            nested.append(_read_region(reader, depth + 1))
        num_open += (token == "{") - (token == "}")
    return ManualRegion(manual, tuple(shardings), tuple(nested))


def _skip_arguments(reader: TokenReader) -> None:
    """The arguments of a region, in parentheses."""
    start = reader.at
    reader.expect("(")
    num_open = 1
    while num_open:
        token = reader.peek()
        if not token:
            reader.refuse("this `(` is not closed", fix="end the arguments with `)`", at=start)
        num_open += (token == "(") - (token == ")")
        reader.at += 1


def _read_shardings(reader: TokenReader, keyword: str) -> tuple[Sharding, ...]:
    """`keyword "=" "[" (sharding ("," sharding)*)? "]"`."""
    reader.expect(keyword)
    reader.expect("=")
    reader.expect("[")
    shardings: list[Sharding] = []
    while reader.peek() != "]" or shardings:
        reader.skip_attribute_name("#sdy.sharding")
        shardings.append(read_sharding(reader))
        if not reader.take(","):
            break
    if not reader.take("]"):
        reader.fail("`,` or `]`")
    return tuple(shardings)


def _read_manual_axes(reader: TokenReader) -> tuple[str, ...]:
    """`"manual_axes" "=" "{" (string ("," string)*)? "}"`."""
    reader.expect("manual_axes")
    reader.expect("=")
    if reader.take("{}"):
        return ()
    reader.expect("{")
    names: list[str] = []
    while reader.peek() != "}" or names:
        names.append(reader.string("the name of an axis", 'manual axes are whole, as in "x"'))
        if not reader.take(","):
            break
    if not reader.take("}"):
        reader.fail("`,` or `}`")
    return tuple(names)
