"""shard_map bodies: regions in which some mesh axes are the user's own."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from jaxlib.mlir.dialects import sdy

from autoshard.frontend.importer import Env, Importer, Scope
from autoshard.graph.program import OpKind
from autoshard.graph.rule import identity_rule
from autoshard.sharding import (
    ManualComputation,
    Mesh,
    Sharding,
    format_mesh,
    format_sharding,
    parse_sharding,
)


def import_manual(importer: Importer, op: Any, env: Env, scope: Scope) -> None:
    """A body becomes a region; what goes in and comes out passes its border."""
    place = importer.place(op, scope)
    manual = _border_of(op)
    block = op.regions[0].blocks[0]
    inner = dict(env)
    for operand, argument, sharding in zip(
        op.operands, block.arguments, manual.in_shardings, strict=True
    ):
        inner[argument] = _cross(
            importer, OpKind.ENTER_MANUAL, env[operand], argument.type, sharding, place, scope
        )
    mesh = _mesh_of(importer, manual)
    region = importer.build.open_region(
        "manual",
        scope.region,
        manual_axes=manual.manual_axes,
        source=place[0],
        mesh="" if mesh is None else format_mesh(mesh),
    )
    axes = importer.mesh_axes if mesh is None else frozenset(mesh.axis_names)
    has_free_axes = not axes or bool(axes - _taken(importer, region))
    inside = Scope(region, scope.repeat, has_free_axes, *place)
    returned = importer.block(block, inner, inside)
    importer.build.close_region(region)
    for value, result, sharding in zip(returned, op.results, manual.out_shardings, strict=True):
        env[result] = _cross(
            importer, OpKind.LEAVE_MANUAL, value, result.type, sharding, place, scope
        )


def _border_of(op: Any) -> ManualComputation:
    def shardings(name: str) -> tuple[Sharding, ...]:
        per_value = sdy.TensorShardingPerValueAttr(op.attributes[name])
        return tuple(parse_sharding(str(sharding)) for sharding in per_value.shardings)

    axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
    return ManualComputation(
        shardings("in_shardings"), shardings("out_shardings"), tuple(map(str, axes))
    )


def _cross(
    importer: Importer,
    kind: OpKind,
    value: int,
    mlir_type: Any,
    sharding: Sharding,
    place: tuple[str, str],
    scope: Scope,
) -> int:
    """Into or out of a shard_map body; the rule speaks of the local tensor on both sides."""
    found = importer.tensor_type(mlir_type)
    made = importer.build.add(
        kind,
        "shard_map",
        (value,),
        [found],
        rule=identity_rule(
            found[0] if kind is OpKind.ENTER_MANUAL else importer.build.shape(value)
        ),
        region=scope.region,
        repeat=scope.repeat,
        source=place[0],
        equation=place[1],
        pinned=format_sharding(_with_mesh(importer, sharding)),
    )
    return made.results[0]


def _with_mesh(importer: Importer, sharding: Sharding) -> Sharding:
    """The names of meshes do not leave the module."""
    mesh = importer.meshes.get(sharding.mesh_name)
    return sharding if mesh is None else replace(sharding, inlined_mesh=mesh)


def _mesh_of(importer: Importer, manual: ManualComputation) -> Mesh | None:
    for sharding in (*manual.in_shardings, *manual.out_shardings):
        mesh = _with_mesh(importer, sharding).inlined_mesh
        if mesh is not None and mesh.axes:
            return mesh
    return None


def _taken(importer: Importer, region: int) -> set[str]:
    """Axes that regions around, and this one, made manual."""
    taken: set[str] = set()
    while region >= 0:
        taken.update(importer.build.regions[region].manual_axes)
        region = importer.build.regions[region].parent
    return taken
