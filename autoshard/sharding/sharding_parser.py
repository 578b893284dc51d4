"""Shardings from Shardy's text."""

from __future__ import annotations

import re
from functools import lru_cache

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.mesh import Mesh
from autoshard.sharding.mesh_parser import read_mesh, read_mesh_name
from autoshard.sharding.sharding import DEFAULT_MESH_NAME, DimSharding, Sharding
from autoshard.sharding.string_literals import BARE_NAME, unquoted
from autoshard.sharding.tokens import MAX_INTEGER, TokenReader

_CLOSED = DimSharding()
_PRIORITY = re.compile(r"p(0|[1-9][0-9]*)")


def parse_axis_ref(text: str) -> AxisRef:
    """Read `"x"` or `"x":(pre_size)size`.

    Raises:
        ShardingError: The text is not an axis; the message shows it with a caret.
    """
    reader = TokenReader(text)
    axis = _read_axis_ref(reader)
    reader.end()
    return axis


def parse_dim_sharding(text: str) -> DimSharding:
    """Read `{"x", ?}p1`.

    Raises:
        ShardingError: The text is not a dimension sharding; the message shows it with a caret.
    """
    reader = TokenReader(text)
    dim = _read_dim_sharding(reader)
    reader.end()
    return dim


def parse_sharding(text: str, *, mesh_name: str = DEFAULT_MESH_NAME) -> Sharding:
    r"""Read a sharding, whatever wrote it: Shardy, this package, or a person.

    Grammar (blanks and `//` comments may stand between tokens):

        text      ::= "#sdy.sharding"? "<" mesh "," dims named* ">" | dims named* | document
        document  ::= "sharding" "<" mesh "," dims (named | empty)* "}"? ">"
        empty     ::= "," ("replicated" | "unreduced") "=" "{" "}"
        mesh      ::= "@" name | "mesh" inline
        inline    ::= "<" "[" (axis_size ("," axis_size)*)? "]" ("," "device_ids" "=" ids)? ">"
        dims      ::= "[" (dim ("," dim)*)? "]"
        dim       ::= "{" (axis ("," axis)* ("," "?")? | "?")? "}" priority?
        priority  ::= "p" int
        axis      ::= string (":" "(" int ")" int)?
        named     ::= "," ("replicated" | "unreduced") "=" "{" axis ("," axis)* "}"

    Args:
        text: One sharding and nothing else. Only its form is checked; see `verify_sharding`.
        mesh_name: The mesh of the short form, which starts with the dimensions.

    Raises:
        ShardingError: The text is not a sharding; the message shows it with a caret.
    """
    reader = TokenReader(text)
    if reader.peek() == "[":
        sharding = _read_after_mesh(reader, mesh_name, None)
    else:
        if not reader.take("sharding"):
            reader.skip_attribute_name("#sdy.sharding")
        sharding = read_sharding(reader)
    reader.end()
    return sharding


def find_shardings(text: str) -> tuple[Sharding, ...]:
    """Every sharding in pasted compiler output, in the order written.

    Found are the forms that name or inline their mesh: attributes (`#sdy.sharding<@mesh, ...>`)
    and the bracketed form inside operations and lists (`<@mesh, ...>`).

    Raises:
        ShardingError: Something begins as a sharding and is not one.
    """
    found = []
    reader = TokenReader(text)
    for at, token in enumerate(reader.tokens):
        reader.at = at
        if token == "<" and starts_sharding(reader):
            found.append(read_sharding(reader))
    return tuple(found)


def starts_sharding(reader: TokenReader) -> bool:
    """Whether a mesh comes after the `<` that is next."""
    mesh = reader.tokens[reader.at + 1]
    return mesh.startswith("@") or (mesh == "mesh" and reader.tokens[reader.at + 2] == "<")


def read_sharding(reader: TokenReader) -> Sharding:
    """`"<" mesh "," dims named* ">"`, and what Shardy's documents write after `sharding`."""
    is_document = reader.at > 0 and reader.tokens[reader.at - 1] == "sharding"
    reader.expect("<")
    inlined = None
    mesh_name = ""
    if reader.take("mesh"):
        inlined = read_mesh(reader)
    elif reader.peek().startswith("@"):
        mesh_name = read_mesh_name(reader)
    else:
        reader.fail('a mesh, such as `@mesh` or `mesh<["x"=2]>`')
    reader.expect(",")
    sharding = _read_after_mesh(reader, mesh_name, inlined, is_document=is_document)
    if is_document:
        reader.take("}")
    if not reader.take(">"):
        reader.fail("`,` or `>`")
    return sharding


def _read_after_mesh(
    reader: TokenReader, mesh_name: str, inlined: Mesh | None, *, is_document: bool = False
) -> Sharding:
    """`dims named*`; empty lists of named axes only in documents."""
    tokens = reader.tokens
    if tokens[reader.at] != "[":
        reader.fail("`[`", fix="write one pair of braces for each dimension, as in [{}, {?}]")
    reader.at += 1
    dims: list[DimSharding] = []
    if tokens[reader.at] != "]":
        dims.append(_read_dim_sharding(reader))
        while tokens[reader.at] == ",":
            reader.at += 1
            dims.append(_read_dim_sharding(reader))
        if tokens[reader.at] != "]":
            reader.fail("`,` or `]`", fix='close the dimensions, as in [{"x"}, {}]')
    reader.at += 1
    named: dict[str, tuple[AxisRef, ...]] = {}
    while tokens[reader.at] == ",":
        reader.at += 1
        keyword = tokens[reader.at]
        if keyword not in {"replicated", "unreduced"}:
            reader.fail("`replicated` or `unreduced`")
        if keyword in named:
            reader.fail(
                f"`{keyword}` only once", fix=f"put all axes into one {keyword}={{...}} list"
            )
        reader.at += 1
        reader.expect("=")
        named[keyword] = _read_axis_list(reader, may_be_empty=is_document)
    return Sharding(
        tuple(dims),
        named.get("replicated", ()),
        named.get("unreduced", ()),
        mesh_name,
        inlined,
    )


def _read_dim_sharding(reader: TokenReader) -> DimSharding:
    tokens = reader.tokens
    axes: list[AxisRef] = []
    is_open = False
    if tokens[reader.at] == "{}":
        reader.at += 1
        if tokens[reader.at] in {",", "]"}:
            return _CLOSED
    else:
        reader.expect("{")
        while tokens[reader.at] != "}" or axes:
            if tokens[reader.at] == "?":
                is_open = True
                reader.at += 1
                break
            axes.append(_read_axis_ref(reader))
            if tokens[reader.at] != ",":
                break
            reader.at += 1
        if tokens[reader.at] != "}":
            reader.fail("`}` after `?`" if is_open else "`,` or `}`")
        reader.at += 1
    token = tokens[reader.at]
    if token in {",", "]"}:
        return DimSharding(tuple(axes), is_open)
    return DimSharding(tuple(axes), is_open, _read_priority(reader))


def _read_priority(reader: TokenReader) -> int | None:
    token = reader.peek()
    match = _PRIORITY.fullmatch(token)
    if match is None:
        if not BARE_NAME.fullmatch(token):
            return None
        reader.fail(
            "a priority such as `p0`",
            fix="a priority is p and a number without leading zeros",
        )
    if len(match[1]) > 19 or int(match[1]) > MAX_INTEGER:
        reader.refuse_number(what="priority")
    reader.at += 1
    return int(match[1])


def _read_axis_ref(reader: TokenReader) -> AxisRef:
    start = reader.at
    token = reader.tokens[start]
    if len(token) < 2 or token[0] != '"':
        reader.fail("an axis", fix='write axis names in double quotes, as in "x"')
    reader.at = start + 1
    sizes = None
    if token[-1] == '"' and reader.tokens[start + 1] == ":":
        reader.at = start + 2
        sizes = _read_sub_axis_sizes(reader)
    try:
        return AxisRef(unquoted(token), *sizes) if sizes else _axis_of_token(token)
    except ShardingError as error:
        reader.refuse(error.what, fix=error.fix, at=start)


def _read_sub_axis_sizes(reader: TokenReader) -> tuple[int, int]:
    """`"(" int ")" int`."""
    reader.expect("(")
    pre_size = reader.integer()
    reader.expect(")")
    return pre_size, reader.integer()


def _read_axis_list(reader: TokenReader, *, may_be_empty: bool = False) -> tuple[AxisRef, ...]:
    if reader.peek() == "{}":
        if not may_be_empty:
            reader.fail("axes in braces", fix="leave an empty list out")
        reader.at += 1
        return ()
    reader.expect("{")
    axes = [_read_axis_ref(reader)]
    while reader.take(","):
        axes.append(_read_axis_ref(reader))
    if not reader.take("}"):
        reader.fail("`,` or `}`")
    return tuple(axes)


@lru_cache(maxsize=1024)
def _axis_of_token(token: str) -> AxisRef:
    """The axis of a token with or without sizes; a program writes few of them, many times."""
    if token[-1] == '"':
        return AxisRef(unquoted(token))
    name, sizes = token[1:].split('":(')
    pre_size, size = sizes.split(")")
    return AxisRef(name, int(pre_size), int(size))
