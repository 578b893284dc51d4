"""Meshes from Shardy's text."""

from __future__ import annotations

from autoshard.errors import ShardingError
from autoshard.sharding.mesh import Mesh, MeshAxis
from autoshard.sharding.tokens import TokenReader


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
    reader = TokenReader(text)
    name = ""
    if reader.take("sdy.mesh"):
        name = read_mesh_name(reader)
        reader.expect("=")
        reader.skip_attribute_name("#sdy.mesh")
        mesh = read_mesh(reader)
        if reader.peek().startswith("{"):
            _skip_attributes(reader)
    elif reader.peek().startswith("@"):
        name = read_mesh_name(reader)
        reader.expect("=")
        mesh = _read_document_mesh(reader)
    else:
        reader.take("mesh")
        reader.skip_attribute_name("#sdy.mesh")
        mesh = read_mesh(reader)
    reader.end()
    return name, mesh


def read_mesh_name(reader: TokenReader) -> str:
    return reader.symbol("a mesh name", "write @ and the name, as in @mesh")


def read_mesh(reader: TokenReader) -> Mesh:
    """`"<" "[" axis_sizes? "]" ("," "device_ids" "=" ids)? ">"`."""
    reader.expect("<")
    reader.expect("[")
    axes: tuple[MeshAxis, ...] = ()
    if reader.peek() != "]":
        axes = _read_axis_sizes(reader)
    if not reader.take("]"):
        reader.fail("`,` or `]`")
    device_ids = _read_device_ids(reader) if reader.peek() == "," else None
    if not reader.take(">"):
        reader.fail("`,` or `>`")
    return Mesh(axes, device_ids)


def _read_document_mesh(reader: TokenReader) -> Mesh:
    """The forms Shardy's documents use beside the one above."""
    if reader.take("{"):
        mesh = read_mesh(reader)
        device_ids = _read_device_ids(reader)
        reader.expect("}")
        return Mesh(mesh.axes, device_ids)
    if reader.peek() == "<" and reader.tokens[reader.at + 1] != "[":
        reader.at += 1
        axes = _read_axis_sizes(reader)
        reader.expect(">")
        return Mesh(axes)
    return read_mesh(reader)


def _read_axis_sizes(reader: TokenReader) -> tuple[MeshAxis, ...]:
    axes: list[MeshAxis] = []
    while True:
        start = reader.at
        name = reader.string("a mesh axis", 'write mesh axes as in "x"=4')
        reader.expect("=")
        size = reader.integer()
        try:
            axes.append(MeshAxis(name, size))
        except ShardingError as error:
            reader.refuse(error.what, fix=error.fix, at=start)
        if not reader.take(","):
            return tuple(axes)


def _read_device_ids(reader: TokenReader) -> tuple[int, ...]:
    """`"," "device_ids" "=" "[" int ("," int)* "]"`."""
    for token in (",", "device_ids", "=", "["):
        reader.expect(token)
    ids = [reader.integer()]
    while reader.take(","):
        ids.append(reader.integer())
    if not reader.take("]"):
        reader.fail("`,` or `]`")
    return tuple(ids)


def _skip_attributes(reader: TokenReader) -> None:
    """A dictionary in braces, whatever is in it."""
    start = reader.at
    depth = 0
    while True:
        token = reader.peek()
        if not token:
            reader.refuse("this `{` is not closed", fix="end the attributes with `}`", at=start)
        depth += token.startswith("{") - token.endswith("}")
        reader.at += 1
        if depth == 0:
            return
