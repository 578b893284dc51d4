"""A generated program: its text, its arguments, and what a plan of it is asked."""

from __future__ import annotations

import json
import math
import textwrap
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from types import SimpleNamespace
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, NamedSharding, PartitionSpec

AXES = ("a", "b", "c", "d")
Spec = tuple[tuple[str, ...], ...]
"""Axis names by dimension."""


@dataclass(frozen=True, slots=True)
class Type:
    """Shape and element type of an array."""

    shape: tuple[int, ...]
    dtype: str

    @staticmethod
    def of(array: Any) -> Type:
        return Type(tuple(array.shape), str(array.dtype))


@dataclass(frozen=True, slots=True)
class Step:
    """`name = text`, after the functions that the text names.

    Args:
        name: Of the value.
        text: A Python expression of earlier values.
        reads: The values it names.
        type: Of the value.
        bodies: Functions defined before it.
    """

    name: str
    text: str
    reads: tuple[str, ...]
    type: Type
    bodies: tuple[Body, ...] = ()


@dataclass(frozen=True, slots=True)
class Body:
    """A function of the program: `def name(parameters): ...; return results`."""

    name: str
    parameters: tuple[tuple[str, Type], ...]
    steps: tuple[Step, ...]
    results: tuple[str, ...]

    def lines(self) -> Iterator[str]:
        """Its text, without the steps that nothing reads."""
        yield f"def {self.name}({', '.join(name for name, _ in self.parameters)}):"
        for step in self.live_steps():
            for body in step.bodies:
                yield textwrap.indent("\n".join(body.lines()), "    ")
            yield f"    {step.name} = {step.text}"
        ended = ", ".join(self.results)
        yield f"    return {ended}"

    def live_steps(self) -> tuple[Step, ...]:
        """The steps that the results need."""
        needed = set(self.results)
        found: list[Step] = []
        for step in reversed(self.steps):
            if step.name in needed:
                found.append(step)
                needed.update(step.reads)
        return tuple(reversed(found))

    def live(self) -> Body:
        """The same without the steps that nothing reads, in bodies inside too."""
        steps = tuple(
            replace(step, bodies=tuple(body.live() for body in step.bodies))
            for step in self.live_steps()
        )
        return replace(self, steps=steps)


@dataclass(frozen=True, slots=True)
class Asked:
    """What a plan is asked.

    Args:
        mesh: Sizes of the axes `a`, `b`, `c`, `d`.
        hardware: That it is planned for.
        arguments: Shardings of arguments; None is free.
        results: Likewise of results.
        donated: Positions of arguments.
        pinned: Shardings of arguments by constraint, by position.
        alike: Positions of two arguments that must be sharded alike.
        budget: A memory budget, as a share of the peak without one.
    """

    mesh: tuple[int, ...]
    hardware: str = "cpu-host"
    arguments: tuple[Spec | None, ...] = ()
    results: tuple[Spec | None, ...] = ()
    donated: tuple[int, ...] = ()
    pinned: tuple[tuple[int, Spec], ...] = ()
    alike: tuple[int, int] | None = None
    budget: float | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """A function, its arguments, and what is asked of its plan."""

    main: Body
    asked: Asked

    @property
    def source(self) -> str:
        return "\n".join(self.main.lines())

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @staticmethod
    def from_json(text: str) -> Program:
        record = json.loads(text)
        return Program(_body(record["main"]), asked_of(record["asked"]))

    def asking(self, **changes: Any) -> Program:
        """The same with other wishes."""
        return replace(self, asked=replace(self.asked, **changes))


def _tuples(value: Any) -> Any:
    return tuple(map(_tuples, value)) if isinstance(value, list) else value


def asked_of(record: Mapping[str, Any]) -> Asked:
    """As of JSON."""
    return Asked(**{key: _tuples(value) for key, value in record.items()})


def _type(record: Mapping[str, Any]) -> Type:
    return Type(tuple(record["shape"]), record["dtype"])


def _body(record: Mapping[str, Any]) -> Body:
    steps = tuple(
        Step(
            step["name"],
            step["text"],
            tuple(step["reads"]),
            _type(step["type"]),
            tuple(map(_body, step["bodies"])),
        )
        for step in record["steps"]
    )
    parameters = tuple((name, _type(found)) for name, found in record["parameters"])
    return Body(record["name"], parameters, steps, tuple(record["results"]))


# -- running one ----------------------------------------------------------------------------------

_WIDE = {
    "float32": "float64",
    "float16": "float64",
    "bfloat16": "float64",
    "float8_e4m3fn": "float64",
    "complex64": "complex128",
}


def element_type(name: str, *, is_wide: bool = False) -> Any:
    """An element type by name; of floats the widest there is, where that is asked."""
    return jnp.dtype(_WIDE.get(name, name) if is_wide else name)


def jax_mesh(sizes: Sequence[int]) -> jax.sharding.Mesh:
    """A mesh of Auto axes over all devices."""
    names = AXES[: len(sizes)]
    return jax.make_mesh(tuple(sizes), names, axis_types=(AxisType.Auto,) * len(sizes))


def sharding_of(spec: Spec, mesh: jax.sharding.Mesh) -> NamedSharding:
    """As JAX takes it."""
    return NamedSharding(mesh, PartitionSpec(*(dim or None for dim in spec)))


def scope_of(
    mesh: jax.sharding.Mesh | jax.sharding.AbstractMesh,
    *,
    is_partitioned: bool = True,
    is_wide: bool = False,
) -> dict[str, Any]:
    """The names that the text of a program may use.

    `jax`, `jnp`, `lax`, `np`, `P`; `t.float32` for element types, `held(x, spec)` for constraints,
    `mapped(f, in_specs, out_specs, axes)` for `shard_map` along the first dimension.

    Args:
        mesh: Of constraints and shard_maps.
        is_partitioned: Constraints count, and a `shard_map` runs on the mesh. Without, XLA's
            partitioner has no part in the program, which it may get wrong: `jax.vmap` is in the
            place of `shard_map`.
        is_wide: Whether all floats are float64.
    """

    def held(value: Any, *spec: Any) -> Any:
        if not is_partitioned:
            return value
        return lax.with_sharding_constraint(value, NamedSharding(mesh, PartitionSpec(*spec)))

    def mapped(
        body: Callable[..., Any], in_specs: Any, out_specs: Any, axes: Sequence[str]
    ) -> Callable[..., Any]:
        found: Callable[..., Any] = jax.shard_map(
            body,
            mesh=mesh,
            in_specs=in_specs,
            out_specs=out_specs,
            axis_names=set(axes),
            check_vma=False,
        )
        return found

    def vmapped(
        body: Callable[..., Any], in_specs: Any, out_specs: Any, axes: Sequence[str]
    ) -> Callable[..., Any]:
        del in_specs, out_specs
        sizes = [mesh.shape[axis] for axis in axes]
        for axis in reversed(axes):
            body = jax.vmap(body, axis_name=axis)

        def joined(x: jax.Array) -> Any:
            pieces = x.reshape(*sizes, x.shape[0] // math.prod(sizes), *x.shape[1:])
            made = body(pieces)
            return made.reshape(-1, *made.shape[len(sizes) + 1 :])

        return joined

    names = "float32 float16 bfloat16 float8_e4m3fn complex64 int32 int8 int4 uint32 uint8 bool"
    types = {name: element_type(name, is_wide=is_wide) for name in names.split()}
    return {
        "jax": jax,
        "jnp": jnp,
        "lax": lax,
        "np": np,
        "P": PartitionSpec,
        "t": SimpleNamespace(**types),
        "held": held,
        "mapped": mapped if is_partitioned else vmapped,
    }


def function_of(source: str, scope: dict[str, Any]) -> Callable[..., Any]:
    """The function `main` of a text that may use the names of a scope."""
    exec(compile(source, "<program>", "exec"), scope)
    function: Callable[..., Any] = scope["main"]
    return function


def arguments_of(types: Sequence[Type], *, is_wide: bool = False) -> list[Any]:
    """Arrays of such types, equal ones for equal types and places."""
    rng = np.random.default_rng(len(types))
    return [_array(rng, of, is_wide=is_wide) for of in types]


def _array(rng: np.random.Generator, of: Type, *, is_wide: bool) -> Any:
    dtype = element_type(of.dtype, is_wide=is_wide)
    if dtype == jnp.bool_:
        return rng.integers(0, 2, of.shape).astype(bool)
    if jnp.issubdtype(dtype, jnp.integer):
        return np.asarray(rng.integers(0, 7, of.shape)).astype(dtype)
    found = np.asarray(rng.standard_normal(of.shape)).astype(np.float32)
    if jnp.issubdtype(dtype, jnp.complexfloating):
        found = found + 1j * np.asarray(rng.standard_normal(of.shape)).astype(np.float32)
    narrow = np.asarray(found).astype(jnp.dtype(of.dtype))
    return np.asarray(narrow).astype(dtype)
