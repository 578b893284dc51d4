"""Constraints in a YAML file: the terms a user may say, each error with its line.

    meshes:                       # other meshes over the same devices, by name
      ring: '<["r"=8]>'
    pins:                         # selector: sharding
      'params**["w1"]': '[{}, {"model"}]'
      'model.py:42 dot_general': '[{"data"}, {?}]'
      'name:hidden': '<@ring, [{"r"}, {}]>'
    uses:                         # what is read, where (everywhere if left out), and how
      - select: 'params["table"]'
        by: 'model.py:57'
        sharding: '[{}, {"model"}]'
    groups:                       # id: selectors whose tensors end the same
      state: ['params**["w1"]', 'momentum**["w1"]']
    keep: ['attn_out']            # residuals of backward passes: kept from the forward pass
    recompute: ['model.py:57']    # or computed again
    offload: ['name:mlp_out']     # or in host memory between the passes

Every section may be left out. Strings with quotes or brackets stand in single quotes.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from typing import TypeVar

import yaml

from autoshard.constraints.problems import joined
from autoshard.constraints.terms import (
    Group,
    Keep,
    Offload,
    Pin,
    Recompute,
    ResidualTerm,
    Term,
    Uses,
)
from autoshard.errors import AutoshardError, InputError
from autoshard.sharding import (
    Mesh,
    Sharding,
    format_mesh_name,
    parse_mesh,
    parse_sharding,
    verify_mesh,
)
from autoshard.sharding.sharding import DEFAULT_MESH_NAME
from autoshard.user_files import read_or_refuse
from autoshard.yaml_document import MOST_BYTES, DocumentLoader

_SECTIONS = ("meshes", "pins", "uses", "groups", "keep", "recompute", "offload")
_USE_KEYS = ("select", "by", "sharding")

T = TypeVar("T")


def load_constraints(path: str | os.PathLike[str]) -> tuple[Term, ...]:
    """Read a constraints file.

    Raises:
        InputError: The file cannot be read, or as `parse_constraints`.
    """
    where = os.fspath(path)
    fix = "give the path of a YAML file"
    content = read_or_refuse(path, "the constraints file", fix, most_bytes=MOST_BYTES)
    try:
        text = content.decode()
    except UnicodeDecodeError as error:
        raise InputError(
            f"the constraints file is not text: byte {error.start} is not UTF-8",
            where=where,
            fix=fix,
        ) from error
    return parse_constraints(text, where)


def parse_constraints(text: str, where: str = "constraints") -> tuple[Term, ...]:
    """Read constraints from YAML text.

    Args:
        text: Of the form that this module describes.
        where: Names the file in errors and terms.

    Raises:
        InputError: The text is no YAML or holds something else; names every mistake with its line.
    """
    try:
        root = yaml.compose(text, Loader=DocumentLoader)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        raise InputError(
            f"this is not YAML: {getattr(error, 'problem', None) or error}",
            where=where if mark is None else f"{where}:{mark.line + 1}",
            fix="put selectors and shardings in single quotes",
        ) from error
    reader = _Reader(where)
    terms = () if root is None else tuple(reader.terms(root))
    if reader.problems:
        raise joined(reader.problems, "mistakes in the constraints", where)
    return terms


@dataclass(slots=True)
class _Reader:
    """Turns YAML nodes into terms, and keeps every problem on the way."""

    where: str
    problems: list[InputError] = field(default_factory=list)
    meshes: dict[str, Mesh] = field(default_factory=dict)

    def terms(self, root: yaml.Node) -> Iterator[Term]:
        sections = dict(self.sections(root))
        for name, node in self.mapping(sections.get("meshes")):
            self.read_mesh(name, node)
        for select, node in self.mapping(sections.get("pins")):
            yield from self.pin(select, node)
        for node in self.sequence(sections.get("uses")):
            yield from self.use(node)
        for name, node in self.mapping(sections.get("groups")):
            yield from self.group(name, node)
        kinds = ((Keep, "keep"), (Recompute, "recompute"), (Offload, "offload"))
        for kind, section in kinds:
            for node in self.sequence(sections.get(section)):
                yield from self.residual(kind, node)

    def residual(self, kind: type[ResidualTerm], node: yaml.Node) -> Iterator[Term]:
        select = self.text(node)
        if select is not None:
            yield from self.made(node, lambda: kind(select, where=self.at(node)))

    def sections(self, root: yaml.Node) -> Iterator[tuple[str, yaml.Node]]:
        for name, node in self.mapping(root):
            if name in _SECTIONS:
                yield name, node
            else:
                fix = f"the sections are {', '.join(_SECTIONS)}"
                self.refuse(node, f"there is no section `{name}`", fix)

    def read_mesh(self, name: str, node: yaml.Node) -> None:
        mesh = self.parsed(node, parse_mesh)
        if name == DEFAULT_MESH_NAME:
            self.refuse(
                node,
                f"@{name} is the plan's mesh, which a file does not define",
                "call this one something else",
            )
        elif mesh is not None and (wrong := verify_mesh(mesh)):
            self.refuse(node, f"mesh {name}: {'; '.join(wrong)}", "correct it")
        elif mesh is not None:
            self.meshes[name] = mesh

    def pin(self, select: str, node: yaml.Node) -> Iterator[Term]:
        sharding = self.sharding(node)
        if sharding is not None:
            yield from self.made(node, lambda: Pin(select, sharding, where=self.at(node)))

    def use(self, node: yaml.Node) -> Iterator[Term]:
        members = dict(self.mapping(node))
        unknown = [key for key in members if key not in _USE_KEYS]
        missing = [key for key in ("select", "sharding") if key not in members]
        if unknown or missing:
            wrong = [f"`{key}` is not known" for key in unknown]
            wrong += [f"`{key}` is missing" for key in missing]
            self.refuse(node, f"a use: {', '.join(wrong)}", "write select, sharding and maybe by")
            return
        select = self.text(members["select"])
        by = self.text(members["by"]) if "by" in members else None
        sharding = self.sharding(members["sharding"])
        if select is None or sharding is None or (by is None and "by" in members):
            return
        yield from self.made(node, lambda: Uses(select, sharding, by, where=self.at(node)))

    def group(self, name: str, node: yaml.Node) -> Iterator[Term]:
        num_problems = len(self.problems)
        texts = [select for member in self.sequence(node) if (select := self.text(member))]
        if len(self.problems) == num_problems:
            yield from self.made(node, lambda: Group(*texts, id=name, where=self.at(node)))

    def sharding(self, node: yaml.Node) -> Sharding | None:
        """A sharding; one that names a mesh of the file carries it."""
        found = self.parsed(node, parse_sharding)
        if found is None or found.inlined_mesh is not None:
            return found
        if found.mesh_name in self.meshes:
            return replace(found, inlined_mesh=self.meshes[found.mesh_name])
        if found.mesh_name != DEFAULT_MESH_NAME:
            known = ", ".join(format_mesh_name(n) for n in (DEFAULT_MESH_NAME, *self.meshes))
            self.refuse(
                node,
                f"no mesh is called {format_mesh_name(found.mesh_name)}",
                f"define it under `meshes:`, or use one of {known}",
            )
            return None
        return found

    def made(self, node: yaml.Node, make: Callable[[], Term]) -> Iterator[Term]:
        try:
            yield make()
        except AutoshardError as error:
            self.add(node, error)

    def parsed(self, node: yaml.Node, parse: Callable[[str], T]) -> T | None:
        text = self.text(node)
        if text is None:
            return None
        try:
            return parse(text)
        except AutoshardError as error:
            self.add(node, error)
            return None

    # -- nodes ----------------------------------------------------------------------------------

    def mapping(self, node: yaml.Node | None) -> Iterator[tuple[str, yaml.Node]]:
        """Keys, as text, and values; an empty section has none."""
        if node is None or _is_empty(node):
            return
        if not isinstance(node, yaml.MappingNode):
            self.refuse(
                node,
                "expected `key: value` pairs",
                "write lines such as `batch: '[{\"data\"}, {?}]'`, or `moments: [a, b]` for a"
                " group",
            )
            return
        seen: set[str] = set()
        for key, value in node.value:
            text = self.text(key)
            if text in seen:
                self.refuse(key, f"`{text}` stands here twice", "say it once")
            elif text is not None:
                seen.add(text)
                yield text, value

    def sequence(self, node: yaml.Node | None) -> Iterator[yaml.Node]:
        if node is None or _is_empty(node):
            return
        if isinstance(node, yaml.SequenceNode):
            yield from node.value
        else:
            self.refuse(node, "expected a list", "begin each item with `- `, or write [a, b]")

    def text(self, node: yaml.Node) -> str | None:
        if isinstance(node, yaml.ScalarNode) and not _is_empty(node):
            return str(node.value)
        self.refuse(node, "expected text", "put it in single quotes: '[{}, {\"x\"}]'")
        return None

    def at(self, node: yaml.Node) -> str:
        return f"{self.where}:{node.start_mark.line + 1}"

    def refuse(self, node: yaml.Node, what: str, fix: str) -> None:
        self.problems.append(InputError(what, where=self.at(node), fix=fix))

    def add(self, node: yaml.Node, error: AutoshardError) -> None:
        """A mistake in a text, with the caret that shows it."""
        shown = f", in {error.where}" if error.where else ""
        self.problems.append(InputError(error.what, where=f"{self.at(node)}{shown}", fix=error.fix))


def _is_empty(node: yaml.Node) -> bool:
    return isinstance(node, yaml.ScalarNode) and node.tag == "tag:yaml.org,2002:null"
