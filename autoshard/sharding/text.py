"""Shardings and meshes as text, in the grammar Shardy prints and reads.

The parser splits the whole text into tokens with one regular-expression call and keeps no
positions; they are worked out again only when there is an error to point at. For speed, an empty
pair of braces is one token, and so is an axis with its sizes when no blank stands inside.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from functools import lru_cache
from typing import NoReturn

from autoshard.errors import ShardingError
from autoshard.sharding.axes import AxisRef
from autoshard.sharding.manual import ManualComputation
from autoshard.sharding.mesh import Mesh, MeshAxis
from autoshard.sharding.sharding import DEFAULT_MESH_NAME, DimSharding, Sharding
from autoshard.sharding.source import source_with_caret

_STRING = r'"(?:[^"\\\n\v\f]|\\(?:["\\nt]|[0-9a-fA-F]{2}))*"'
_TOKEN = re.compile(
    rf"""[ \t\r\n]*(?://[^\n]*[ \t\r\n]*)*
    ( "[^"\\\n\v\f]*"(?::\([0-9]{{1,18}}\)[0-9]{{1,18}}(?![0-9A-Za-z]))?
    | {{}}
    | [\[\]{{}}<>(),:=?]
    | @?{_STRING}
    | [#!@]?[A-Za-z_][A-Za-z0-9_$.]*
    | -?(?:0x[0-9a-fA-F]+|[0-9]+)
    | .
    | \Z )""",
    re.VERBOSE | re.DOTALL | re.ASCII,
)
_BARE_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_$.]*", re.ASCII)
_PLAIN_TEXT = re.compile(r"[ !#-\[\]-~]*")
_ESCAPE = re.compile(rb'\\(["\\nt]|[0-9a-fA-F]{2})')
_ESCAPED = {b'"': b'"', b"\\": b"\\", b"n": b"\n", b"t": b"\t"}
_MAX_INTEGER = 2**63 - 1
_CLOSED = DimSharding()
_PRIORITY = re.compile(r"p(0|[1-9][0-9]*)")


def format_axis_ref(axis: AxisRef) -> str:
    """`"x"` or `"x":(pre_size)size`."""
    if axis.size is None:
        return _quoted(axis.name)
    return f"{_quoted(axis.name)}:({axis.pre_size}){axis.size}"


def format_dim_sharding(dim: DimSharding) -> str:
    """`{"x", "y":(1)2, ?}p3`."""
    items = [format_axis_ref(axis) for axis in dim.axes]
    if dim.is_open:
        items.append("?")
    priority = "" if dim.priority is None else f"p{dim.priority}"
    return f"{{{', '.join(items)}}}{priority}"


def format_sharding(sharding: Sharding) -> str:
    """`<@mesh, [{"x"}, {?}], replicated={"y"}, unreduced={"z"}>`, as Shardy prints it."""
    if sharding.inlined_mesh is not None:
        mesh = f"mesh{format_mesh(sharding.inlined_mesh)}"
    else:
        mesh = format_mesh_name(sharding.mesh_name)
    dims = ", ".join(format_dim_sharding(dim) for dim in sharding.dims)
    text = f"<{mesh}, [{dims}]"
    if sharding.replicated:
        text += f", replicated={_format_axis_list(sharding.replicated)}"
    if sharding.unreduced:
        text += f", unreduced={_format_axis_list(sharding.unreduced)}"
    return text + ">"


def format_mesh(mesh: Mesh, name: str | None = None) -> str:
    """`<["x"=4, "y"=2], device_ids=[...]>`; with a name, the whole `sdy.mesh` line."""
    axes = ", ".join(f"{_quoted(axis.name)}={axis.size}" for axis in mesh.axes)
    ids = ""
    if mesh.device_ids is not None:
        ids = f", device_ids=[{', '.join(map(str, mesh.device_ids))}]"
    text = f"<[{axes}]{ids}>"
    return text if name is None else f"sdy.mesh {format_mesh_name(name)} = {text}"


def format_mesh_name(name: str) -> str:
    """`@mesh`, or `@"a mesh"` for a name with other characters."""
    return f"@{name}" if _BARE_NAME.fullmatch(name) else f"@{_quoted(name)}"


def parse_axis_ref(text: str) -> AxisRef:
    """Read `"x"` or `"x":(pre_size)size`.

    Raises:
        ShardingError: The text is not an axis; the message shows it with a caret.
    """
    reader = _Reader(text)
    axis = reader.axis_ref()
    reader.end()
    return axis


def parse_dim_sharding(text: str) -> DimSharding:
    """Read `{"x", ?}p1`.

    Raises:
        ShardingError: The text is not a dimension sharding; the message shows it with a caret.
    """
    reader = _Reader(text)
    dim = reader.dim_sharding()
    reader.end()
    return dim


def parse_sharding(text: str, *, mesh_name: str = DEFAULT_MESH_NAME) -> Sharding:
    r"""Read a sharding, whatever wrote it: Shardy, this package, or a person.

    Grammar (blanks and `//` comments may stand between tokens):

        text      ::= ("#sdy.sharding" | "sharding")? "<" mesh "," dims named* ">" | dims named*
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
    reader = _Reader(text)
    first = reader.tokens[0]
    if first == "[":
        sharding = reader.sharding_after_mesh(mesh_name, None)
    else:
        if first == "sharding":
            reader.at = 1
        reader.skip_attribute_name("#sdy.sharding")
        sharding = reader.sharding(may_be_empty=first == "sharding")
    reader.end()
    return sharding


def parse_mesh(text: str) -> Mesh:
    """Read a mesh: `<["x"=4, "y"=2]>`, also with a name before it.

    Grammar:

        text ::= inline | "mesh" inline | "#sdy.mesh" inline
               | "sdy.mesh" "@" name "=" "#sdy.mesh"? inline attributes?
               | "@" name "=" inline
               | "@" name "=" "<" axis_sizes ">"
               | "@" name "=" "{" inline "," "device_ids" "=" ids "}"
        inline ::= "<" "[" axis_sizes? "]" ("," "device_ids" "=" ids)? ">"
        axis_sizes ::= string "=" int ("," string "=" int)*
        ids ::= "[" int ("," int)* "]"

    The last two alternatives are notations of Shardy's documents. Attributes after a mesh, as newer
    versions of JAX print them, are skipped.

    Only the form is checked here; `verify_mesh` checks the mesh.

    Raises:
        ShardingError: The text is not a mesh; the message shows it with a caret.
    """
    return parse_named_mesh(text)[1]


def parse_named_mesh(text: str) -> tuple[str, Mesh]:
    """Read a mesh and the name before it, "" where there is none; grammar of `parse_mesh`.

    Raises:
        ShardingError: As `parse_mesh`.
    """
    reader = _Reader(text)
    name = ""
    first = reader.tokens[0]
    if first == "sdy.mesh":
        reader.at = 1
        name = reader.mesh_name()
        reader.expect("=")
        reader.skip_attribute_name("#sdy.mesh")
        mesh = reader.mesh()
        if reader.peek().startswith("{"):
            reader.skip_attributes()
    elif first.startswith("@"):
        name = reader.mesh_name()
        reader.expect("=")
        mesh = reader.document_mesh()
    else:
        if first == "mesh":
            reader.at = 1
        reader.skip_attribute_name("#sdy.mesh")
        mesh = reader.mesh()
    reader.end()
    return name, mesh


def find_shardings(text: str) -> tuple[Sharding, ...]:
    """Every sharding in pasted compiler output, in the order written.

    Found are the forms that name or inline their mesh: attributes (`#sdy.sharding<@mesh, ...>`)
    and the bracketed form inside operations and lists (`<@mesh, ...>`).

    Raises:
        ShardingError: Something begins as a sharding and is not one.
    """
    found = []
    reader = _Reader(text)
    tokens = reader.tokens
    for at in range(len(tokens) - 2):
        if tokens[at] == "<" and (
            tokens[at + 1].startswith("@") or (tokens[at + 1] == "mesh" and tokens[at + 2] == "<")
        ):
            reader.at = at
            found.append(reader.sharding())
    return tuple(found)


def format_manual_computation(manual: ManualComputation) -> str:
    """`in_shardings=[<...>] out_shardings=[<...>] manual_axes={"x"}`."""
    ins = ", ".join(map(format_sharding, manual.in_shardings))
    outs = ", ".join(map(format_sharding, manual.out_shardings))
    axes = ", ".join(map(_quoted, manual.manual_axes))
    return f"in_shardings=[{ins}] out_shardings=[{outs}] manual_axes={{{axes}}}"


def parse_manual_computation(text: str) -> ManualComputation:
    """Read the border of a manual computation.

    Grammar:

        text      ::= skipped? "in_shardings" "=" list "out_shardings" "=" list
                      "manual_axes" "=" "{" (string ("," string)*)? "}" ("(" skipped)?
        list      ::= "[" (sharding ("," sharding)*)? "]"
        sharding  ::= "#sdy.sharding"? "<" ... ">", see `parse_sharding`

    What stands before, the operation and its operands, is skipped, and so is the region after
    the opening parenthesis of its arguments.

    Raises:
        ShardingError: The text is not that; the message shows it with a caret.
    """
    reader = _Reader(text)
    if "in_shardings" not in reader.tokens:
        reader.at = len(reader.tokens) - 1
        reader.fail("`in_shardings`")
    reader.at = reader.tokens.index("in_shardings")
    ins = reader.named_shardings("in_shardings")
    outs = reader.named_shardings("out_shardings")
    axes = reader.manual_axes()
    if reader.peek() != "(":
        reader.end()
    return ManualComputation(ins, outs, axes)


@dataclass(slots=True)
class _Reader:
    """A place in the tokens of one text."""

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
        found = f"found `{token}`" if token else "found the end"
        if token == '"':
            found = "found a string that does not end or has an unknown escape"
        self.refuse(f"expected {expected}, {found}", fix=fix, at=at)

    def refuse(self, what: str, *, fix: str, at: int) -> NoReturn:
        starts = [match.start(1) for match in _TOKEN.finditer(self.text)]
        where = source_with_caret(self.text, starts[at])
        raise ShardingError(what, where=where, fix=fix) from None

    def expect(self, token: str) -> None:
        if self.tokens[self.at] != token:
            self.fail(f"`{token}`")
        self.at += 1

    def end(self) -> None:
        if self.tokens[self.at]:
            self.fail("nothing more")

    def skip_attribute_name(self, name: str) -> None:
        """Pass `name` if it comes next; MLIR wants no blank between it and the `<`."""
        if self.tokens[self.at] == name:
            self.at += 1
            if f"{name}<" not in self.text:
                self.fail(f"`<` right after `{name}`")

    def mesh_name(self) -> str:
        token = self.tokens[self.at]
        if len(token) < 2 or token[0] != "@":
            self.fail("a mesh name", fix="write @ and the name, as in @mesh")
        if token == '@""':
            self.fail("a mesh name that is not empty")
        self.at += 1
        return token[1:] if token[1] != '"' else _unquoted(token[1:])

    def string(self, what: str, fix: str) -> str:
        token = self.tokens[self.at]
        if len(token) < 2 or token[0] != '"' or token[-1] != '"':
            self.fail(what, fix=fix)
        self.at += 1
        return _unquoted(token)

    def integer(self) -> int:
        token = self.tokens[self.at]
        try:
            number = int(token, 16 if "x" in token else 10)
        except ValueError:
            self.fail("a whole number")
        if abs(number) > _MAX_INTEGER:
            self.refuse(
                f"the number {token} is too large",
                fix=f"Shardy's numbers go up to {_MAX_INTEGER}",
                at=self.at,
            )
        self.at += 1
        return number

    def axis_ref(self) -> AxisRef:
        start = self.at
        token = self.tokens[start]
        if len(token) < 2 or token[0] != '"':
            self.fail("an axis", fix='write axis names in double quotes, as in "x"')
        self.at = start + 1
        sizes = None
        if token[-1] == '"' and self.tokens[start + 1] == ":":
            self.at = start + 2
            sizes = self.sub_axis_sizes()
        try:
            return AxisRef(_unquoted(token), *sizes) if sizes else _axis_of_token(token)
        except ShardingError as error:
            self.refuse(error.what, fix=error.fix, at=start)

    def sub_axis_sizes(self) -> tuple[int, int]:
        """`"(" int ")" int`."""
        self.expect("(")
        pre_size = self.integer()
        self.expect(")")
        return pre_size, self.integer()

    def axis_list(self, *, may_be_empty: bool = False) -> tuple[AxisRef, ...]:
        if self.tokens[self.at] == "{}":
            if not may_be_empty:
                self.fail("axes in braces", fix="leave an empty list out")
            self.at += 1
            return ()
        self.expect("{")
        axes = [self.axis_ref()]
        while self.tokens[self.at] == ",":
            self.at += 1
            axes.append(self.axis_ref())
        if self.tokens[self.at] != "}":
            self.fail("`,` or `}`")
        self.at += 1
        return tuple(axes)

    def dim_sharding(self) -> DimSharding:
        tokens = self.tokens
        axes: list[AxisRef] = []
        is_open = False
        if tokens[self.at] == "{}":
            self.at += 1
            if tokens[self.at] in {",", "]"}:
                return _CLOSED
        else:
            self.expect("{")
            while tokens[self.at] != "}" or axes:
                if tokens[self.at] == "?":
                    is_open = True
                    self.at += 1
                    break
                axes.append(self.axis_ref())
                if tokens[self.at] != ",":
                    break
                self.at += 1
            if tokens[self.at] != "}":
                self.fail("`}` after `?`" if is_open else "`,` or `}`")
            self.at += 1
        token = tokens[self.at]
        if token in {",", "]"}:
            return DimSharding(tuple(axes), is_open)
        return DimSharding(tuple(axes), is_open, self.priority())

    def priority(self) -> int | None:
        token = self.tokens[self.at]
        match = _PRIORITY.fullmatch(token)
        if match is None:
            if not _BARE_NAME.fullmatch(token):
                return None
            self.fail(
                "a priority such as `p0`",
                fix="a priority is p and a number without leading zeros",
            )
        priority = int(match[1])
        if priority > _MAX_INTEGER:
            self.refuse(
                f"the priority {token} is too large",
                fix=f"Shardy's numbers go up to {_MAX_INTEGER}",
                at=self.at,
            )
        self.at += 1
        return priority

    def sharding(self, *, may_be_empty: bool = False) -> Sharding:
        """`"<" mesh "," dims named* ">"`."""
        self.expect("<")
        inlined = None
        mesh_name = ""
        if self.tokens[self.at] == "mesh":
            self.at += 1
            inlined = self.mesh()
        elif self.tokens[self.at].startswith("@"):
            mesh_name = self.mesh_name()
        else:
            self.fail('a mesh, such as `@mesh` or `mesh<["x"=2]>`')
        self.expect(",")
        sharding = self.sharding_after_mesh(mesh_name, inlined, may_be_empty=may_be_empty)
        if self.tokens[self.at] != ">":
            self.fail("`,` or `>`")
        self.at += 1
        return sharding

    def sharding_after_mesh(
        self, mesh_name: str, inlined: Mesh | None, *, may_be_empty: bool = False
    ) -> Sharding:
        """`dims named*`; empty lists of named axes only where `may_be_empty`."""
        self.expect("[")
        tokens = self.tokens
        dims: list[DimSharding] = []
        if tokens[self.at] != "]":
            dims.append(self.dim_sharding())
            while tokens[self.at] == ",":
                self.at += 1
                dims.append(self.dim_sharding())
            if tokens[self.at] != "]":
                self.fail("`,` or `]`")
        self.at += 1
        named: dict[str, tuple[AxisRef, ...]] = {}
        while tokens[self.at] == ",":
            self.at += 1
            keyword = tokens[self.at]
            if keyword not in {"replicated", "unreduced"}:
                self.fail("`replicated` or `unreduced`")
            if keyword in named:
                self.fail(
                    f"`{keyword}` only once", fix=f"put all axes into one {keyword}={{...}} list"
                )
            self.at += 1
            self.expect("=")
            named[keyword] = self.axis_list(may_be_empty=may_be_empty)
        return Sharding(
            tuple(dims),
            named.get("replicated", ()),
            named.get("unreduced", ()),
            mesh_name,
            inlined,
        )

    def named_shardings(self, keyword: str) -> tuple[Sharding, ...]:
        """`keyword "=" "[" (sharding ("," sharding)*)? "]"`."""
        self.expect(keyword)
        self.expect("=")
        self.expect("[")
        shardings: list[Sharding] = []
        while self.peek() != "]" or shardings:
            self.skip_attribute_name("#sdy.sharding")
            shardings.append(self.sharding())
            if self.peek() != ",":
                break
            self.at += 1
        if self.peek() != "]":
            self.fail("`,` or `]`")
        self.at += 1
        return tuple(shardings)

    def manual_axes(self) -> tuple[str, ...]:
        """`"manual_axes" "=" "{" (string ("," string)*)? "}"`."""
        self.expect("manual_axes")
        self.expect("=")
        if self.peek() == "{}":
            self.at += 1
            return ()
        self.expect("{")
        names: list[str] = []
        while self.peek() != "}" or names:
            names.append(self.string("the name of an axis", 'manual axes are whole, as in "x"'))
            if self.peek() != ",":
                break
            self.at += 1
        if self.peek() != "}":
            self.fail("`,` or `}`")
        self.at += 1
        return tuple(names)

    def mesh(self) -> Mesh:
        """`"<" "[" axis_sizes? "]" ("," "device_ids" "=" ids)? ">"`."""
        self.expect("<")
        self.expect("[")
        axes: tuple[MeshAxis, ...] = ()
        if self.tokens[self.at] != "]":
            axes = self.axis_sizes()
        if self.tokens[self.at] != "]":
            self.fail("`,` or `]`")
        self.at += 1
        device_ids = self.device_ids() if self.tokens[self.at] == "," else None
        if self.tokens[self.at] != ">":
            self.fail("`,` or `>`")
        self.at += 1
        return Mesh(axes, device_ids)

    def document_mesh(self) -> Mesh:
        """The forms Shardy's documents use beside the one above."""
        if self.peek() == "{":
            self.at += 1
            mesh = self.mesh()
            device_ids = self.device_ids()
            self.expect("}")
            return Mesh(mesh.axes, device_ids)
        if self.peek() == "<" and self.tokens[self.at + 1] != "[":
            self.at += 1
            axes = self.axis_sizes()
            self.expect(">")
            return Mesh(axes)
        return self.mesh()

    def axis_sizes(self) -> tuple[MeshAxis, ...]:
        axes: list[MeshAxis] = []
        while True:
            start = self.at
            name = self.string("a mesh axis", 'write mesh axes as in "x"=4')
            self.expect("=")
            size = self.integer()
            try:
                axes.append(MeshAxis(name, size))
            except ShardingError as error:
                self.refuse(error.what, fix=error.fix, at=start)
            if self.tokens[self.at] != ",":
                return tuple(axes)
            self.at += 1

    def device_ids(self) -> tuple[int, ...]:
        """`"," "device_ids" "=" "[" int ("," int)* "]"`."""
        self.expect(",")
        self.expect("device_ids")
        self.expect("=")
        self.expect("[")
        ids = [self.integer()]
        while self.tokens[self.at] == ",":
            self.at += 1
            ids.append(self.integer())
        if self.tokens[self.at] != "]":
            self.fail("`,` or `]`")
        self.at += 1
        return tuple(ids)

    def skip_attributes(self) -> None:
        """A dictionary in braces, whatever is in it."""
        start = self.at
        depth = 0
        while True:
            token = self.peek()
            if not token:
                self.fail("a `}` for the brace opened here", at=start)
            depth += token.startswith("{") - token.endswith("}")
            self.at += 1
            if depth == 0:
                return


@lru_cache(maxsize=1024)
def _axis_of_token(token: str) -> AxisRef:
    """The axis of a token with or without sizes; a program writes few of them, many times."""
    if token[-1] == '"':
        return AxisRef(_unquoted(token))
    name, sizes = token[1:].split('":(')
    pre_size, size = sizes.split(")")
    return AxisRef(name, int(pre_size), int(size))


def _format_axis_list(axes: tuple[AxisRef, ...]) -> str:
    return f"{{{', '.join(map(format_axis_ref, axes))}}}"


def _quoted(text: str) -> str:
    """A string literal: printable ASCII as it is, other UTF-8 bytes as two hex digits."""
    if _PLAIN_TEXT.fullmatch(text):
        return f'"{text}"'
    parts = []
    for byte in text.encode("utf-8", "surrogateescape"):
        char = chr(byte)
        if char == "\\":
            parts.append("\\\\")
        elif char != '"' and 0x20 <= byte < 0x7F:
            parts.append(char)
        else:
            parts.append(f"\\{byte:02X}")
    return f'"{"".join(parts)}"'


def _unquoted(token: str) -> str:
    """The text of a string literal, quotes included in `token`."""
    if "\\" not in token:
        return token[1:-1]

    def replacement(match: re.Match[bytes]) -> bytes:
        found = match[1]
        return _ESCAPED[found] if found in _ESCAPED else bytes([int(found, 16)])

    raw = token[1:-1].encode("utf-8", "surrogateescape")
    return _ESCAPE.sub(replacement, raw).decode("utf-8", "surrogateescape")
