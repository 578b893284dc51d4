"""Damaged JSON documents: values changed, members lost, lists cut or grown."""

from __future__ import annotations

import copy
from typing import Any

from hypothesis import strategies as st

ODD_VALUES: list[Any] = [
    None,
    True,
    -1,
    0,
    1.5,
    1e300,
    float("nan"),
    float("inf"),
    2**63 - 1,
    2**63,
    10**16,
    10**17,
    10**400,
    "1",
    "",
    [],
    {},
    [[]],
    [-1],
    [[0, 1]],
]


def places_in(value: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """Returns the path of every value inside a document, its own left out."""
    found = []
    if isinstance(value, dict):
        items: list[tuple[Any, Any]] = list(value.items())
    elif isinstance(value, list):
        items = list(enumerate(value))
    else:
        return []
    for key, inner in items:
        found.append((*path, key))
        found += places_in(inner, (*path, key))
    return found


@st.composite
def mutated(draw: st.DrawFn, example: Any) -> Any:
    """Draws the example with a few of its values replaced, removed or doubled."""
    document = copy.deepcopy(example)
    for _ in range(draw(st.integers(1, 3))):
        places = places_in(document)
        if not places:
            break
        *path, last = draw(st.sampled_from(places))
        holder = document
        for key in path:
            holder = holder[key]
        action = draw(st.sampled_from(["replace", "remove", "double"]))
        if action == "remove":
            del holder[last]
        elif action == "double" and isinstance(holder, list):
            holder.insert(last, copy.deepcopy(holder[last]))
        else:
            odd = draw(st.sampled_from(ODD_VALUES) | st.integers(-5, 20))
            holder[last] = copy.deepcopy(odd)  # later changes may reach into it
    return document
