"""YAML within limits: a small document of sections, lists and values, and nothing else.

`cost_models` and `autoshard` each stand alone, so each has this module; a test holds the two texts
equal.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Hashable, Iterator
from contextlib import contextmanager
from typing import Any, ClassVar

import yaml

MOST_BYTES = 1 << 20
"""Of a file: PyYAML reads 150 kB in a second."""

MOST_NODES = 60_000
"""Values, sections and lists, those of an alias counted wherever it stands."""

MOST_LEVELS = 50
MOST_LETTERS = 10_000
"""Of one value: converting a number takes the square of its length."""


_TAG = "tag:yaml.org,2002:"
_TAGS = tuple(_TAG + kind for kind in ("map", "seq", "str", "int", "float", "bool", "null"))


class DocumentLoader(yaml.SafeLoader):
    """YAML's safe loader within limits; it reads no dates, sets or bytes, and no key twice."""

    # Of other tags there is no value here.
    yaml_constructors: ClassVar[dict[Any, Any]] = {
        tag: yaml.SafeLoader.yaml_constructors[tag] for tag in (*_TAGS, None)
    }

    most_nodes: ClassVar[int] = MOST_NODES

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self.yaml_implicit_resolvers = {
            letter: [(tag, form) for tag, form in forms if tag in _TAGS]
            for letter, forms in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }
        self._levels = 0
        self._nodes = 0
        self._nodes_by_anchor: dict[str | None, int] = {}

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Composes the next node, as the loaders do.

        Raises:
            yaml.composer.ComposerError: A limit is passed.
        """
        event: Any = self.peek_event()  # type: ignore[no-untyped-call]
        before = self._nodes
        if isinstance(event, yaml.AliasEvent):
            if event.anchor in self.anchors and event.anchor not in self._nodes_by_anchor:
                self._refuse("a value that holds itself", event)
            self._nodes += self._nodes_by_anchor.get(event.anchor, 0)
        self._nodes += 1
        if self._nodes > self.most_nodes:
            self._refuse(f"more than {self.most_nodes:,} values", event)
        if self._levels == MOST_LEVELS:
            self._refuse(f"more than {MOST_LEVELS} levels of nesting", event)
        if isinstance(event, yaml.ScalarEvent) and len(event.value) > MOST_LETTERS:
            self._refuse(f"a value of more than {MOST_LETTERS:,} letters", event)
        self._levels += 1
        node: yaml.Node | None = super().compose_node(parent, index)
        self._levels -= 1
        anchor = getattr(event, "anchor", None)
        if anchor is not None and not isinstance(event, yaml.AliasEvent):
            self._nodes_by_anchor[anchor] = self._nodes - before
        return node

    def construct_object(self, node: yaml.Node, deep: bool = False) -> Any:
        """Constructs a value, as the loaders do.

        Raises:
            yaml.constructor.ConstructorError: It is not what its tag or its form says.
        """
        with _refused_at(node):
            return super().construct_object(node, deep=deep)

    def construct_document(self, node: yaml.Node) -> Any:
        """Constructs the document; what is constructed late is held to the same.

        Raises:
            yaml.constructor.ConstructorError: As `construct_object`.
        """
        with _refused_at(node):
            return super().construct_document(node)

    def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> dict[Hashable, Any]:
        """Constructs a section.

        Raises:
            yaml.constructor.ConstructorError: A key stands in it twice, or is no plain value.
        """
        del deep  # always: a key can only be compared once it is whole
        keys = [self.construct_object(key, deep=True) for key, _ in node.value]
        found = super().construct_mapping(node, deep=True)
        if len(found) < len(keys):
            doubled = sorted(str(key) for key, count in Counter(keys).items() if count > 1)
            raise yaml.constructor.ConstructorError(
                None, None, f"keys given twice: {', '.join(doubled)}", node.start_mark
            )
        return found

    def _refuse(self, what: str, event: Any) -> None:
        raise yaml.composer.ComposerError(None, None, f"found {what}", event.start_mark)


@contextmanager
def _refused_at(node: yaml.Node) -> Iterator[None]:
    """Tells what a constructor stumbles over as what it is: a value of another form."""
    try:
        yield
    except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError) as error:
        kind = node.tag.removeprefix(_TAG)
        raise yaml.constructor.ConstructorError(
            None, None, f"found a value that is no {kind}", node.start_mark
        ) from error
