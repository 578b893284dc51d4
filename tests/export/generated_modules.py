"""Random StableHLO programs with a random sharding on every value, one for each seed."""

from __future__ import annotations

import random
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

from autoshard.collectives.splitting import finest_parts
from autoshard.sharding import (
    DimSharding,
    Mesh,
    MeshAxis,
    Sharding,
    canonicalize,
    format_mesh,
    format_sharding,
)

MESHES = (
    Mesh((MeshAxis("x", 4), MeshAxis("y", 2))),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 2), MeshAxis("z", 2))),
    Mesh((MeshAxis("x", 8),)),
    Mesh((MeshAxis("x", 2), MeshAxis("y", 4))),
)
WIDE_MESHES = (
    Mesh((MeshAxis("x", 4), MeshAxis("y", 4), MeshAxis("z", 4), MeshAxis("t", 8))),
    Mesh((MeshAxis("x", 4), MeshAxis("y", 2), MeshAxis("z", 4))),
    Mesh(tuple(MeshAxis(name, 2) for name in "xyzwt")),
    Mesh((MeshAxis("x", 6), MeshAxis("y", 4))),
)
"""As in tests of Shardy's: more parts than a search over all layouts goes through."""
SIZES = (4, 8, 16)

Shape = tuple[int, ...]


def random_sharding(
    rng: random.Random, mesh: Mesh, shape: Sequence[int], *, even: bool = True
) -> Sharding:
    """A closed sharding of random parts of the mesh, sub-axes included."""
    parts = next(finest_parts((), mesh))
    dims: list[list[int]] = [[] for _ in shape]
    left = list(shape)
    order = list(range(len(parts.sizes)))
    if rng.random() < 0.3:
        rng.shuffle(order)
    for part in order:
        if not shape or rng.random() < 0.45:
            continue
        dim = rng.randrange(len(shape))
        if even and left[dim] % parts.sizes[part]:
            continue
        dims[dim].append(part)
        left[dim] //= parts.sizes[part]
    found = Sharding(tuple(DimSharding(parts.refs(tuple(dim))) for dim in dims))
    return canonicalize(found, mesh)


@dataclass
class _Writer:
    rng: random.Random
    mesh: Mesh
    values: list[tuple[str, Shape]] = field(default_factory=list)
    lines: list[str] = field(default_factory=list)
    count: int = 0

    def name(self) -> str:
        self.count += 1
        return f"%v{self.count}"

    def sharded(self, shape: Shape) -> str:
        """An attribute with a random sharding of one result."""
        text = format_sharding(random_sharding(self.rng, self.mesh, shape))
        return f"{{sdy.sharding = #sdy.sharding_per_value<[{text}]>}}"

    def pick(self, rank: int | None = None) -> tuple[str, Shape]:
        known = [v for v in self.values if rank is None or len(v[1]) == rank]
        return self.rng.choice(known)

    def add(self, text: str, shape: Shape, indent: str = "    ") -> str:
        """A line `%v = text`; `{S}` in it is a random sharding of the result."""
        name = self.name()
        self.lines.append(f"{indent}{name} = {text.replace('{S}', self.sharded(shape))}")
        self.values.append((name, shape))
        return name


def _type(shape: Shape) -> str:
    return f"tensor<{''.join(f'{size}x' for size in shape)}f32>"


def _elementwise(w: _Writer) -> None:
    value, shape = w.pick()
    same = [name for name, other in w.values if other == shape]
    if w.rng.random() < 0.5:
        w.add(f"stablehlo.add {value}, {w.rng.choice(same)} {{S}} : {_type(shape)}", shape)
    else:
        w.add(f"stablehlo.tanh {value} {{S}} : {_type(shape)}", shape)


def _dot(w: _Writer) -> None:
    left, (m, k) = w.pick(2)
    partners = [(name, shape) for name, shape in w.values if len(shape) == 2 and shape[0] == k]
    if not partners:
        _transpose(w)
        return
    right, (_, n) = w.rng.choice(partners)
    w.add(
        f"stablehlo.dot_general {left}, {right}, contracting_dims = [1] x [0] {{S}} :"
        f" ({_type((m, k))}, {_type((k, n))}) -> {_type((m, n))}",
        (m, n),
    )


def _transpose(w: _Writer) -> None:
    value, shape = w.pick(2)
    out = (shape[1], shape[0])
    w.add(
        f"stablehlo.transpose {value}, dims = [1, 0] {{S}} : ({_type(shape)}) -> {_type(out)}", out
    )


def _reduce(w: _Writer) -> None:
    value, shape = w.pick(2)
    dim = w.rng.randrange(2)
    out = (shape[1 - dim],)
    w.add(
        f"stablehlo.reduce({value} init: %zero) applies stablehlo.add across dimensions = [{dim}]"
        f" {{S}} : ({_type(shape)}, tensor<f32>) -> {_type(out)}",
        out,
    )


def _broadcast(w: _Writer) -> None:
    vectors = [v for v in w.values if len(v[1]) == 1]
    if not vectors:
        _reduce(w)
        return
    value, shape = w.rng.choice(vectors)
    out = (shape[0], w.rng.choice(SIZES))
    w.add(
        f"stablehlo.broadcast_in_dim {value}, dims = [0] {{S}} : ({_type(shape)}) -> {_type(out)}",
        out,
    )


def _reshape(w: _Writer) -> None:
    value, (a, b) = w.pick(2)
    out = (a // 2, 2 * b) if w.rng.random() < 0.5 else (a * 2, b // 2)
    w.add(f"stablehlo.reshape {value} {{S}} : ({_type((a, b))}) -> {_type(out)}", out)


def _concatenate(w: _Writer) -> None:
    value, (a, b) = w.pick(2)
    out = (2 * a, b)
    one = _type((a, b))
    w.add(
        f"stablehlo.concatenate {value}, {value}, dim = 0 {{S}} : ({one}, {one}) -> {_type(out)}",
        out,
    )


def _sort(w: _Writer) -> None:
    value, shape = w.pick(2)
    one = _type(shape)
    w.add(
        f'"stablehlo.sort"({value}) <{{dimension = 1 : i64}}> ({{\n'
        "    ^bb0(%p: tensor<f32>, %q: tensor<f32>):\n"
        "      %less = stablehlo.compare LT, %p, %q : (tensor<f32>, tensor<f32>) -> tensor<i1>\n"
        "      stablehlo.return %less : tensor<i1>\n"
        f"    }}) {{S}} : ({one}) -> {one}",
        shape,
    )


def _loop(w: _Writer) -> None:
    value, shape = w.pick(2)
    one = _type(shape)
    carried = format_sharding(random_sharding(w.rng, w.mesh, shape))
    name = w.name()
    w.lines.append(
        f"    {name}:2 = stablehlo.while(%i = %start, %carry = {value}) : tensor<i32>, {one}"
        f" attributes {{sdy.sharding = #sdy.sharding_per_value<[<@mesh, []>, {carried}]>}}\n"
        "    cond {\n"
        "      %go = stablehlo.compare LT, %i, %stop : (tensor<i32>, tensor<i32>) -> tensor<i1>\n"
        "      stablehlo.return %go : tensor<i1>\n"
        "    } do {\n"
        "      %next = stablehlo.add %i, %one : tensor<i32>\n"
        f"      %body = stablehlo.tanh %carry {w.sharded(shape)} : {one}\n"
        f"      stablehlo.return %next, %body : tensor<i32>, {one}\n"
        "    }"
    )
    w.values.append((f"{name}#1", shape))


def _branches(w: _Writer) -> None:
    value, shape = w.pick(2)
    one = _type(shape)
    w.add(
        '"stablehlo.case"(%start) ({\n'
        f"      %first = stablehlo.tanh {value} {w.sharded(shape)} : {one}\n"
        f"      stablehlo.return %first : {one}\n"
        "    }, {\n"
        f"      stablehlo.return {value} : {one}\n"
        f"    }}) {{S}} : (tensor<i32>) -> {one}",
        shape,
    )


_OPS = (
    _elementwise,
    _elementwise,
    _dot,
    _dot,
    _transpose,
    _reduce,
    _broadcast,
    _reshape,
    _concatenate,
    _sort,
    _loop,
    _branches,
)


def sharded_module(
    seed: int,
    num_ops: int = 6,
    meshes: Sequence[Mesh] = MESHES,
    sizes: Sequence[int] = SIZES,
) -> str:
    """A program every value of which has a closed, evenly dividing sharding, and is read."""
    rng = random.Random(seed)
    w = _Writer(rng, rng.choice(meshes))
    arguments = []
    for number in range(3):
        shape = (rng.choice(sizes), rng.choice(sizes))
        text = format_sharding(random_sharding(rng, w.mesh, shape))
        arguments.append(f"%arg{number}: {_type(shape)} {{sdy.sharding = #sdy.sharding{text}}}")
        w.values.append((f"%arg{number}", shape))
    for _ in range(num_ops):
        rng.choice(_OPS)(w)
    body = "\n".join(w.lines)
    unread = [
        (name, shape)
        for name, shape in w.values
        if not re.search(rf"[ (]{re.escape(name)}\b(?! =|:2 =)", body)
    ]
    names = ", ".join(name for name, _ in unread)
    types = ", ".join(_type(shape) for _, shape in unread)
    results = ", ".join(
        f"{_type(shape)} {{sdy.sharding ="
        f" #sdy.sharding{format_sharding(random_sharding(rng, w.mesh, shape))}}}"
        for _, shape in unread
    )
    return "\n".join(
        [
            f"sdy.mesh @mesh = {format_mesh(w.mesh)}",
            f"func.func @main({', '.join(arguments)}) -> ({results}) {{",
            "    %zero = stablehlo.constant dense<0.0> : tensor<f32>",
            "    %start = stablehlo.constant dense<0> : tensor<i32>",
            "    %one = stablehlo.constant dense<1> : tensor<i32>",
            "    %stop = stablehlo.constant dense<3> : tensor<i32>",
            body,
            f"    return {names} : {types}",
            "}",
        ]
    )


def open_module(seed: int) -> str:
    """A program as it is before the export steps: each of them has something to do.

    Constraints and groups are in it, data-flow edges, sharding rules, open dimensions, replicated
    axes, and an argument that its axes do not divide.
    """
    rng = random.Random(seed)
    mesh = rng.choice(MESHES)
    rows, columns = rng.choice(SIZES), rng.choice(SIZES)
    one = _type((rows, columns))

    def some() -> str:
        found = random_sharding(rng, mesh, (rows, columns))
        opened = tuple(
            DimSharding(
                dim.axes, rng.random() < 0.5, None if not dim.axes else rng.choice([None, 1])
            )
            for dim in found.dims
        )
        return format_sharding(Sharding(opened))

    last = mesh.axes[-1].name
    odd = f"tensor<{2 * rng.choice([3, 5, 7])}xf32>"
    names = ", ".join(f'"{axis.name}"' for axis in mesh.axes)
    group = some()
    rule = f"#sdy.op_sharding_rule<([i, j])->([i, j]) {{i={rows}, j={columns}}}>"
    return "\n".join(
        [
            f"sdy.mesh @mesh = {format_mesh(mesh)}",
            f"func.func @main(%a: {one} {{sdy.sharding = #sdy.sharding{group}}},"
            f" %b: {odd} {{sdy.sharding = #sdy.sharding<@mesh, [{{{names}}}]>}},"
            f" %c: {one} {{sdy.sharding = #sdy.sharding<@mesh, [{{?}}, {{}}],"
            f' replicated={{"{last}"}}>}}) -> {one} {{',
            "  %zero = stablehlo.constant dense<0> : tensor<i32>",
            f"  sdy.sharding_group %a group_id=1 : {one}",
            f"  %0 = sdy.sharding_constraint %a {some()} : {one}",
            f"  %1 = stablehlo.tanh %0 {{sdy.sharding = #sdy.sharding_per_value<[{group}]>,"
            f" sdy.sharding_rule = {rule}}} : {one}",
            f"  sdy.sharding_group %1 group_id=1 : {one}",
            f"  %2:2 = stablehlo.while(%i = %zero, %t = %1) : tensor<i32>, {one}",
            "  cond {",
            "    %p = stablehlo.compare LT, %i, %zero : (tensor<i32>, tensor<i32>) -> tensor<i1>",
            "    stablehlo.return %p : tensor<i1>",
            "  } do {",
            f"    stablehlo.return %i, %t : tensor<i32>, {one}",
            "  }",
            f"  %3 = sdy.data_flow_edge %2#1 sharding={some()} : {one}",
            '  %4 = "stablehlo.case"(%zero) ({',
            f"    stablehlo.return %3 : {one}",
            "  }, {",
            f"    stablehlo.return %c : {one}",
            f"  }}) : (tensor<i32>) -> {one}",
            f"  %5 = sdy.data_flow_edge %4 sharding={some()} : {one}",
            f"  return %5 : {one}",
            "}",
        ]
    )
