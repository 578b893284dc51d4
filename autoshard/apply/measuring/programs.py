"""Programs that repeat one op on every device, so that starting them hardly counts.

Each repeat reads its operand `x`, writes its result `y`, and moves one element of the result into
the operand: no repeat can be left out or begin before the last has ended. Both are donated, so
that a run allocates nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax
from jax.sharding import AxisType, Mesh, NamedSharding, PartitionSpec

from autoshard.apply.measuring.probes import CollectiveProbe, OpProbe, Probe, ProbeSizes

_PROGRAM_SECONDS = 4e-3
_LEAST_REPEATS, _MOST_REPEATS = 4, 2000
_COLLECTIVE_SECONDS = 50e-6  # roughly, of a small one
_SORT_SLOWDOWN = 30  # roughly, over a copy
_PATTERN = 2**16 + 1  # no power of two, so that rows differ
_SHARDED = PartitionSpec(("other", "group"))

NUM_STEPS = 64
"""Multiply-adds per element of an element-wise op that is bound by arithmetic."""

Array = np.ndarray[Any, Any]
State = tuple[jax.Array, jax.Array]
Local = Callable[..., jax.Array]
"""What one device does: from the operand and what stays the same to the result."""


@dataclass(slots=True)
class Program:
    """A compiled program and the arrays it works on.

    Attributes:
        repeats: Of the op, in one run.
        compiled: Takes and gives the state; takes the constants as well.
    """

    repeats: int
    compiled: jax.stages.Compiled
    _state: State
    _constants: tuple[jax.Array, ...]

    def run(self) -> State:
        """Starts one run."""
        self._state = self.compiled(*self._state, *self._constants)
        return self._state


def program_of(probe: Probe, devices: tuple[jax.Device, ...], sizes: ProbeSizes) -> Program:
    """The program that measures a probe, compiled.

    Raises:
        Exception: Whatever JAX raises where the devices cannot do that.
    """
    if isinstance(probe, CollectiveProbe):
        mesh = _mesh(devices, probe.group_size)
        num_elements = probe.full_bytes // 4
        if probe.kind == "all-gather":
            num_elements //= probe.group_size
        operand = np.zeros(num_elements, np.float32)
        seconds = _COLLECTIVE_SECONDS + probe.full_bytes / sizes.rough_bytes_per_second
        return _program(mesh, _COLLECTIVES[probe.kind](probe.group_size), operand, (), seconds)
    operand, constants = _operands(probe)
    flops, num_bytes = work_of(probe)
    seconds = flops / sizes.rough_flops_per_second + num_bytes / sizes.rough_bytes_per_second
    if probe.op_class == "sort":
        seconds *= _SORT_SLOWDOWN
    return _program(_mesh(devices, 1), _OPS[probe.op_class], operand, constants, seconds)


def empty_program(devices: tuple[jax.Device, ...]) -> Program:
    """A program that does next to nothing: what starting one takes."""
    return _program(_mesh(devices, 1), lambda x: x + 1, np.zeros(1, np.float32), (), math.inf, 1)


def work_of(probe: OpProbe) -> tuple[float, float]:
    """FLOP and bytes of one device, counted as the planner counts them."""
    itemsize = jnp.dtype(probe.dtype).itemsize
    count = math.prod(probe.dims)
    if probe.op_class == "matmul":
        m, n, k = probe.dims
        result = 4 if probe.dtype == "int8" else itemsize
        return 2.0 * m * n * k, float((m * k + k * n) * itemsize + m * n * result)
    if probe.op_class == "elementwise":
        return 2.0 * NUM_STEPS * count, 2.0 * count * itemsize
    indices = 4.0 * probe.dims[0]
    if probe.op_class == "gather":  # of the table, only what is read, with the result once
        return 0.0, count * itemsize + indices
    if probe.op_class == "scatter":  # operand, updates, result
        return 0.0, 3.0 * count * itemsize + indices
    return 0.0, 2.0 * count * itemsize


def _mesh(devices: tuple[jax.Device, ...], group_size: int) -> Mesh:
    """A mesh in JAX's own device order, whose groups are neighbours."""
    return jax.make_mesh(
        (len(devices) // group_size, group_size),
        ("other", "group"),
        devices=devices,
        axis_types=(AxisType.Auto,) * 2,
    )


def _program(
    mesh: Mesh,
    local: Local,
    operand: Array,
    constants: tuple[Array, ...],
    seconds: float,
    least_repeats: int = _LEAST_REPEATS,
) -> Program:
    """Compiles `local`, repeated, on every device, each with its own copy of the arrays."""
    repeats = max(least_repeats, min(_MOST_REPEATS, int(_PROGRAM_SECONDS / seconds)))

    def on_every_device(array: Array) -> jax.Array:
        shape = (mesh.size * array.shape[0], *array.shape[1:])
        sharding = NamedSharding(mesh, _SHARDED)
        # Copies: host devices would share one array, and with it the cache.
        copies: jax.Array = jax.make_array_from_callback(shape, sharding, lambda _: array.copy())
        return copies

    x, fixed = on_every_device(operand), tuple(map(on_every_device, constants))
    once = partial(jax.shard_map, mesh=mesh, in_specs=_SHARDED, check_vma=False)
    result = jax.eval_shape(once(local, out_specs=_SHARDED), x, *fixed)
    num_rows, *others = result.shape
    y = on_every_device(np.zeros((num_rows // mesh.size, *others), result.dtype))
    whole = once(_repeated(local, repeats), out_specs=(_SHARDED, _SHARDED))
    compiled = jax.jit(whole, donate_argnums=(0, 1)).lower(x, y, *fixed).compile()
    return Program(repeats, compiled, (x, y), fixed)


def _repeated(local: Local, repeats: int) -> Callable[..., State]:
    def step(state: State, fixed: tuple[jax.Array, ...]) -> State:
        y = local(state[0], *fixed)
        return _with_first_element(state[0], y), y

    def run(x: jax.Array, y: jax.Array, *fixed: jax.Array) -> State:
        last: State = lax.fori_loop(0, repeats, lambda _, state: step(state, fixed), (x, y))
        return last

    return run


def _with_first_element(x: jax.Array, y: jax.Array) -> jax.Array:
    """`x` with the first element of `y` in place of its own."""
    first = lax.slice(y, (0,) * y.ndim, (1,) * y.ndim).reshape((1,) * x.ndim)
    changed: jax.Array = lax.dynamic_update_slice(x, first.astype(x.dtype), (0,) * x.ndim)
    return changed


def _permute(group_size: int) -> Local:
    ring = [(index, (index + 1) % group_size) for index in range(group_size)]
    return lambda x: lax.ppermute(x, "group", ring)


_COLLECTIVES: dict[str, Callable[[int], Local]] = {
    "all-gather": lambda _: lambda x: lax.all_gather(x, "group", tiled=True),
    "all-reduce": lambda _: lambda x: lax.psum(x, "group"),
    "all-to-all": lambda _: lambda x: lax.all_to_all(x, "group", 0, 0, tiled=True),
    "collective-permute": _permute,
    "reduce-scatter": lambda _: lambda x: lax.psum_scatter(x, "group", tiled=True),
}


def _operands(probe: OpProbe) -> tuple[Array, tuple[Array, ...]]:
    """Random operand and constants of one device; large ones repeat a pattern."""
    random = np.random.default_rng(0)

    def drawn(*shape: int) -> Array:
        count = min(math.prod(shape), _PATTERN)
        if probe.dtype == "int8":
            return np.resize(random.integers(-4, 5, count, np.int8), shape)
        pattern = random.standard_normal(count, np.float32).astype(jnp.dtype(probe.dtype))
        return np.resize(pattern, shape)

    if probe.op_class == "matmul":
        m, n, k = probe.dims
        return drawn(m, k), (drawn(k, n),)
    if probe.op_class in ("gather", "scatter"):
        num_rows = probe.dims[0]
        return drawn(*probe.dims), (random.integers(0, num_rows, num_rows, np.int32),)
    return drawn(*probe.dims), ()


def _product(x: jax.Array, other: jax.Array) -> jax.Array:
    wide = jnp.int32 if x.dtype == jnp.int8 else None
    product: jax.Array = jnp.matmul(x, other, preferred_element_type=wide)
    return product


def _arithmetic(x: jax.Array) -> jax.Array:
    y = x
    for _ in range(NUM_STEPS):
        y = y * x + x
    return y


_OPS: dict[str, Local] = {
    "copy": lambda x: x + 1,
    "elementwise": _arithmetic,
    "matmul": _product,
    "gather": lambda x, rows: jnp.take(x, rows, axis=0, mode="clip"),
    "scatter": lambda x, rows: jnp.zeros_like(x).at[rows].add(x, mode="drop"),
    "sort": jnp.sort,
}
