"""Why jaxlib refuses the manual computations of a module, every reason at once."""

from __future__ import annotations

import re

from autoshard.errors import ExportError, ShardingError
from autoshard.sharding import find_manual_regions, parse_named_mesh, verify_manual_region

_MESH = re.compile(r"^\s*(sdy\.mesh @.*)$", re.MULTILINE)
_PLACE = re.compile(r'"-":(\d+):\d+')


def refused_border(module: str, refusal: str) -> ExportError | None:
    """What is wrong with the borders of manual computations in the text of a module.

    Args:
        module: What did not parse.
        refusal: What jaxlib said of it; it names the first fault alone.

    Returns:
        None where their rules are kept, or the text cannot be read as far as that.
    """
    try:
        meshes = dict(parse_named_mesh(text) for text in _MESH.findall(module))
        violations = [
            violation
            for region in find_manual_regions(module)
            for violation in verify_manual_region(region, meshes)
        ]
    except ShardingError:
        return None
    if not violations:
        return None
    place = _PLACE.search(refusal)
    line = int(place[1]) if place else 0
    shown = module.splitlines()[line - 1].strip() if line else "sdy.manual_computation"
    return ExportError(
        "\n".join(dict.fromkeys(violations)),
        where=f"line {line} of the module: {shown}",
        fix="name the manual axes before the free ones of a dimension, on one mesh, and give manual"
        " computations that are inside one another different axes",
    )
