"""Trees of shardings as Python code.

The code runs as it stands where every container of the trees has a literal: dict, list, tuple, and
named tuples that can be imported. Other containers (modules, dataclasses, Flax states) are taken
apart and put together by JAX, from the variable that holds the argument.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.apply.named_shardings import JaxMesh
from autoshard.frontend.spec_entries import spec_entries

_WIDTH = 88
_NESTED = "    "
_STRUCTURE = """

def structure(tree):
    def is_array(leaf):
        return hasattr(leaf, "shape") and hasattr(leaf, "dtype")

    arrays = jax.tree.map(lambda leaf: leaf if is_array(leaf) else None, tree)
    return jax.tree.structure(arrays)
"""


@dataclass(frozen=True, slots=True)
class LeafCode:
    """An array's place in a tree: its name, and the code of its sharding."""

    name: str
    code: str


@dataclass(frozen=True, slots=True)
class OtherMesh:
    """Axes over the devices of the plan's mesh, which may be taken in another order.

    Args:
        axes: Names and sizes.
        order: Places in the plan's order; empty where it is that one.
    """

    axes: tuple[tuple[str, int], ...]
    order: tuple[int, ...]

    @staticmethod
    def of(sharding: NamedSharding) -> OtherMesh:
        """That of a sharding; `_logical_device_ids` is private, checked on jax 0.10.2."""
        axes = tuple((str(name), size) for name, size in sharding.mesh.shape.items())
        return OtherMesh(axes, tuple(sharding._logical_device_ids or ()))

    def code(self) -> str:
        """What makes it of `mesh`."""
        names, sizes = (tuple(side) for side in zip(*self.axes, strict=True))
        chosen = f"[{list(self.order)}]" if self.order else ""
        devices = f"mesh.devices.flatten(){chosen}.reshape{sizes!r}"
        return f"jax.sharding.Mesh({devices}, {names!r}, {_auto(len(sizes))})"


@dataclass(eq=False)
class CodeWriter:
    """Writes shardings as code, and remembers what that code needs.

    Args:
        mesh: The mesh of the plan.
    """

    mesh: JaxMesh
    _imports: dict[str, None] = field(default_factory=dict)
    _meshes: dict[OtherMesh, str] = field(default_factory=dict)
    _takes_apart: bool = False

    def spec(self, sharding: NamedSharding | None) -> str:
        """`P('data', None)`; the whole sharding where it is on a finer or another mesh."""
        if sharding is None:
            return "None"
        code = spec_code(sharding.spec)
        own = OtherMesh.of(sharding)
        is_default = sharding.memory_kind in (None, "device")
        memory = "" if is_default else f", memory_kind={sharding.memory_kind!r}"
        if own == OtherMesh(tuple(self.mesh.base.sizes.items()), ()):
            return f"NamedSharding(mesh, {code}{memory})" if memory else code
        name = self._meshes.setdefault(own, f"mesh_{len(self._meshes) + 1}")
        return f"NamedSharding({name}, {code}{memory})"

    def sharding(self, sharding: NamedSharding) -> str:
        """`NamedSharding(mesh, P('data', None))`."""
        code = self.spec(sharding)
        return code if code.startswith("NamedSharding") else f"NamedSharding(mesh, {code})"

    def header(self) -> list[str]:
        """Imports and meshes; to be asked for last."""
        base = self.mesh.base
        names, sizes = base.axis_names, tuple(base.sizes.values())
        made = f"jax.make_mesh({sizes!r}, {names!r}, axis_types={_auto(len(sizes))})"
        lines = ["import jax", *self._imports]
        if base.device_ids is not None:
            lines.insert(1, "import numpy as np")
            order = list(base.device_order)
            devices = f"np.array(jax.devices())[{order}]"
            made = f"jax.sharding.Mesh({devices}.reshape{sizes!r}, {names!r}, {_auto(len(sizes))})"
        lines += [
            "from jax.sharding import NamedSharding, PartitionSpec as P",
            "",
            "# The mesh of the plan; one like it that you have will do.",
            f"mesh = {made}",
            *(f"{name} = {other.code()}" for other, name in self._meshes.items()),
        ]
        return [*lines, _STRUCTURE] if self._takes_apart else lines

    def tree(self, tree: Any, like: str, indent: str = "") -> str:
        """The code of a tree with a `LeafCode` in place of every array.

        Args:
            tree: The tree.
            like: What evaluates to a tree like it, should it have to be taken apart.
            indent: Of the line it begins on.
        """
        return self._literal(tree, indent) if has_literal(tree) else self._apart(tree, like, indent)

    def trees(self, trees: Sequence[Any], like: Sequence[str]) -> str:
        """The code of a tuple of trees, each as it can be written."""
        pairs = zip(trees, like, strict=True)
        items = [self.tree(tree, name, _NESTED) for tree, name in pairs]
        return _bracketed("(", items, ")", "", is_tuple=True)

    def _literal(self, node: Any, indent: str) -> str:
        if isinstance(node, LeafCode):
            return node.code
        deeper = indent + _NESTED
        if type(node) is dict:
            items = [f"{key!r}: {self._literal(value, deeper)}" for key, value in node.items()]
            return _bracketed("{", items, "}", indent)
        if type(node) is list:
            return _bracketed("[", [self._literal(v, deeper) for v in node], "]", indent)
        if type(node) is tuple:
            items = [self._literal(v, deeper) for v in node]
            return _bracketed("(", items, ")", indent, is_tuple=True)
        if node is None:
            return "None"
        kind = type(node)
        self._imports.setdefault(f"from {_importable_from(kind)} import {kind.__name__}")
        items = [
            f"{name}={self._literal(value, deeper)}"
            for name, value in zip(kind._fields, node, strict=True)
        ]
        return _bracketed(f"{kind.__name__}(", items, ")", indent)

    def _apart(self, tree: Any, like: str, indent: str) -> str:
        self._takes_apart = True
        lines = [f"jax.tree.unflatten(structure({like}), ["]
        lines += [f"{indent}{_NESTED}{leaf.code},  # {leaf.name}" for leaf in leaves_of(tree)]
        return "\n".join([*lines, f"{indent}])"])


def spec_code(spec: PartitionSpec) -> str:
    """`P(None, ('data', 'model'))`, uncut dimensions at the end left out."""
    entries = list(spec_entries(spec))
    while entries and entries[-1] is None:
        entries.pop()
    texts = [
        "P.UNCONSTRAINED" if entry is PartitionSpec.UNCONSTRAINED else repr(entry)
        for entry in entries
    ]
    return f"P({', '.join(texts)})"


def leaves_of(tree: Any) -> Iterator[LeafCode]:
    """The arrays of a tree, in order."""
    yield from (leaf for leaf in jax.tree.leaves(tree) if isinstance(leaf, LeafCode))


def has_literal(node: Any) -> bool:
    """Whether all containers of a tree can be written down."""
    if isinstance(node, LeafCode) or node is None:
        return True
    if type(node) is dict:
        return all(_is_plain(key) for key in node) and all(map(has_literal, node.values()))
    if type(node) in (list, tuple):
        return all(map(has_literal, node))
    is_named = isinstance(node, tuple) and hasattr(node, "_fields")
    return is_named and bool(_importable_from(type(node))) and all(map(has_literal, node))


def _is_plain(key: Any) -> bool:
    return isinstance(key, (str, int, bool, float))


def _importable_from(kind: type) -> str:
    """The shortest module that has a class under its name; "" where none has."""
    parts = kind.__module__.split(".")
    for count in range(1, len(parts) + 1):
        module = ".".join(parts[:count])
        if getattr(sys.modules.get(module), kind.__name__, None) is kind:
            return module
    return ""


def _bracketed(
    opening: str, items: Sequence[str], closing: str, indent: str, *, is_tuple: bool = False
) -> str:
    """Items in brackets, on one line if they are short."""
    ending = "," if is_tuple and len(items) == 1 else ""
    flat = f"{opening}{', '.join(items)}{ending}{closing}"
    if "\n" not in flat and len(indent) + len(flat) <= _WIDTH:
        return flat
    inner = "".join(f"{indent}{_NESTED}{item},\n" for item in items)
    return f"{opening}\n{inner}{indent}{closing}"


def _auto(count: int) -> str:
    return f"(jax.sharding.AxisType.Auto,) * {count}"
