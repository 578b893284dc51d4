"""Why jaxlib refuses the manual computations of a module or a program, every reason at once."""

from __future__ import annotations

import re
from collections.abc import Iterator

from jax.extend.core import Jaxpr, JaxprEqn
from jax.sharding import PartitionSpec

from autoshard.errors import ExportError, ShardingError
from autoshard.frontend.jaxpr_paths import bodies
from autoshard.frontend.source_lines import SourceLines
from autoshard.frontend.spec_entries import spec_entries
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


def reused_manual_axes(jaxpr: Jaxpr) -> ExportError | None:
    """What is wrong with a program in which a `shard_map` cuts by axes of one around it.

    JAX finds that out when it lowers, and says nothing of the axes.
    """
    sources = SourceLines()
    found = dict.fromkeys(
        f'the shard_map at {sources.line(eqn) or "unknown line"} cuts by axis "{axis}", which is'
        " manual already in a shard_map around it"
        for eqn in _shard_maps(jaxpr)
        for axis in sorted(_axes_of_specs(eqn) & set(map(str, eqn.params["mesh"].manual_axes)))
    )
    if not found:
        return None
    return ExportError(
        "\n".join(found),
        where="shard_map",
        fix="cut by other axes in its specs: inside the outer one, tensors are local to that axis",
    )


def _shard_maps(jaxpr: Jaxpr) -> Iterator[JaxprEqn]:
    for eqn in jaxpr.eqns:
        if eqn.primitive.name == "shard_map":
            yield eqn
        for _, body in bodies(eqn):
            yield from _shard_maps(body)


def _axes_of_specs(eqn: JaxprEqn) -> set[str]:
    specs: tuple[PartitionSpec, ...] = (*eqn.params["in_specs"], *eqn.params["out_specs"])
    return {
        str(name)
        for spec in specs
        for entry in spec_entries(spec)
        if entry is not None
        for name in (entry if isinstance(entry, tuple) else (entry,))
    }
