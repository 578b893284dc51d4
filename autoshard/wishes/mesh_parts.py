"""The parts that a mesh is cut into for one program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import gcd

from autoshard.errors import ConstraintError
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Rule
from autoshard.layouts import MeshParts
from autoshard.sharding import AxisRef, Mesh, Sharding
from autoshard.wishes.other_meshes import asked_shardings, written_refs
from autoshard.wishes.wishes import Wishes


def parts_for(graph: Graph, mesh: Mesh, wishes: Wishes) -> MeshParts:
    """The parts of a plan's mesh, with those of other meshes that some tensors are pinned on.

    Raises:
        ConstraintError: The user's sub-axes of one axis cannot be parts of one splitting of it,
            or a sharding is on other devices.
    """
    asked = list(asked_shardings(graph, wishes, mesh))
    splits = choose_splits(graph, mesh.sizes, written_refs(asked, mesh))
    return MeshParts.of(mesh, splits, _other_meshes(asked))


def _other_meshes(asked: Iterable[Sharding]) -> list[MeshParts]:
    refs_by_mesh: dict[Mesh, list[AxisRef]] = {}
    for sharding in asked:
        if sharding.inlined_mesh is not None:
            refs_by_mesh.setdefault(sharding.inlined_mesh, []).extend(sharding.axis_refs())
    return [MeshParts.of(mesh, _splits_at(refs, mesh.sizes)) for mesh, refs in refs_by_mesh.items()]


def choose_splits(
    graph: Graph, mesh_sizes: dict[str, int], written: Iterable[AxisRef] = ()
) -> dict[str, tuple[int, ...]]:
    """Split an axis where heavy matmuls have a batch factor (heads) that only part of it divides.

    The split that serves the most matmul work wins; an axis no matmul needs in parts stays whole.
    Sub-axes that the user wrote down split their axis where they begin and end, and no further.

    Args:
        graph: The program.
        mesh_sizes: Axis sizes by name.
        written: Axis references in the user's shardings.

    Raises:
        ConstraintError: The user's sub-axes of one axis cannot be parts of one splitting of it.
    """
    splits = _splits_at(list(written), mesh_sizes)
    for axis, size in mesh_sizes.items():
        if axis in splits:
            continue
        work: dict[int, float] = {}
        for op in graph.ops:
            if op.kind is not OpKind.COMPUTE or op.op_class is not OpClass.MATMUL:
                continue
            assert op.rule is not None
            for factor in _batch_factors(op.rule):
                part = gcd(op.rule.factor_sizes[factor], size)
                if 1 < part < size:
                    work[part] = work.get(part, 0.0) + op.flops * op.repeat
        if work:
            part = max(sorted(work), key=lambda p: work[p])
            splits[axis] = (part, size // part)
    return splits


def _splits_at(
    written: Sequence[AxisRef], mesh_sizes: dict[str, int]
) -> dict[str, tuple[int, ...]]:
    """Axes split where sub-axes begin and end."""
    refs: dict[str, list[AxisRef]] = {}
    for ref in written:
        if ref.size is not None and ref.name in mesh_sizes:
            refs.setdefault(ref.name, []).append(ref)
    splits = {}
    for axis, size in mesh_sizes.items():
        if axis not in refs:
            continue
        ends = {end for ref in refs[axis] for end in (ref.pre_size, ref.next_pre_size or size)}
        places = sorted({1, size} | ends)
        if any(after % before for before, after in pairwise(places)):
            shown = " and ".join(str(ref) for ref in dict.fromkeys(refs[axis]))
            raise ConstraintError(
                f'{shown} cannot be parts of one splitting of axis "{axis}" of size {size}',
                where="sub-axes in in_shardings, out_shardings and sharding constraints",
                fix="use sub-axes that begin and end at places which divide one another",
            )
        splits[axis] = tuple(b // a for a, b in pairwise(places))
    return splits


def _batch_factors(rule: Rule) -> set[int]:
    """Factors that every operand and result has: cutting one needs no communication."""
    per_tensor = [
        {factor for dim in tensor for factor in dim} for tensor in (*rule.operands, *rule.results)
    ]
    return set.intersection(*per_tensor) - rule.need_replication
