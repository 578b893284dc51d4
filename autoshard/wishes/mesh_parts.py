"""The parts that a mesh is cut into for one program."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from itertools import pairwise
from math import gcd

from autoshard.errors import ConstraintError
from autoshard.graph.images import images_of
from autoshard.graph.program import Graph, OpClass, OpKind
from autoshard.graph.rule import Rule
from autoshard.layouts import MeshParts
from autoshard.sharding import AxisRef, Mesh, Sharding
from autoshard.wishes.other_meshes import asked_shardings, written_refs
from autoshard.wishes.wishes import Wishes


def parts_for(graph: Graph, mesh: Mesh, wishes: Wishes, least_images: int = 1) -> MeshParts:
    """The parts of a plan's mesh, with those of other meshes that some tensors are pinned on.

    Args:
        graph: The program.
        mesh: The user's.
        wishes: What the user asked for.
        least_images: As of `choose_splits`.

    Raises:
        ConstraintError: The user's sub-axes of one axis cannot be parts of one splitting of it,
            or a sharding is on other devices.
    """
    asked = list(asked_shardings(graph, wishes, mesh))
    splits = choose_splits(graph, mesh.sizes, written_refs(asked, mesh), least_images)
    return MeshParts.of(mesh, splits, _other_meshes(asked))


def _other_meshes(asked: Iterable[Sharding]) -> list[MeshParts]:
    refs_by_mesh: dict[Mesh, list[AxisRef]] = {}
    for sharding in asked:
        if sharding.inlined_mesh is not None:
            refs_by_mesh.setdefault(sharding.inlined_mesh, []).extend(sharding.axis_refs())
    return [MeshParts.of(mesh, _splits_at(refs, mesh.sizes)) for mesh, refs in refs_by_mesh.items()]


def choose_splits(
    graph: Graph,
    mesh_sizes: dict[str, int],
    written: Iterable[AxisRef] = (),
    least_images: int = 1,
) -> dict[str, tuple[int, ...]]:
    """Split an axis where heavy matmuls have a batch factor (heads) that only part of it divides.

    The split that serves the most matmul work wins; an axis no matmul needs in parts stays whole.
    Of axes that would be split at one size the last is, where links are fastest by convention.
    So is the axis split that would leave a device too few of the images that are convolved.
    Sub-axes that the user wrote down split their axis where they begin and end, and no further.

    Args:
        graph: The program.
        mesh_sizes: Axis sizes by name.
        written: Axis references in the user's shardings.
        least_images: A device should have so many, if it convolves any.

    Raises:
        ConstraintError: The user's sub-axes of one axis cannot be parts of one splitting of it.
    """
    splits = _splits_at(list(written), mesh_sizes)
    if least_images > 1:
        splits = _split_for_images(graph, mesh_sizes, least_images) | splits
    served: set[int] = set()
    for axis, size in reversed(mesh_sizes.items()):
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
            if part not in served:
                splits[axis] = (part, size // part)
                served.add(part)
    return splits


def _split_for_images(
    graph: Graph, mesh_sizes: dict[str, int], least: int
) -> dict[str, tuple[int, ...]]:
    """The first axis that cuts images further than a device should have them, if a part would do.

    Axes are taken in the order of the mesh, for the batch on which most work is done. None is split
    where more is done in matrix products.
    """
    work: dict[int, float] = {}
    in_products = 0.0
    for op in graph.ops:
        if images_of(op):
            batch = graph.values[op.operands[0]].shape[0]
            work[batch] = work.get(batch, 0.0) + op.flops * op.repeat
        elif op.op_class is OpClass.MATMUL:
            in_products += op.flops * op.repeat
    most = max(sorted(work), key=lambda batch: work[batch], default=0)
    if not most or work[most] < in_products:
        return {}
    left = most // least
    for axis, size in mesh_sizes.items():
        part = gcd(left, size)
        if part < size:
            return {axis: (part, size // part)} if part > 1 else {}
        left //= size
    return {}


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
