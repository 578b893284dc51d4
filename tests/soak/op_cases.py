"""Single ops that JAX lowers to, with the arrays they take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax import lax


@dataclass(frozen=True, slots=True)
class ArraySpec:
    """Shape and element type of an operand; integers lie in `range(below)`."""

    shape: tuple[int, ...]
    dtype: str = "float32"
    below: int = 100

    def make(self, rng: np.random.Generator) -> Any:
        """Random elements of this type."""
        dtype = jnp.dtype(self.dtype)
        if dtype == jnp.bool_:
            return jnp.asarray(rng.integers(0, 2, self.shape).astype(bool))
        if jnp.issubdtype(dtype, jnp.integer):
            return jnp.asarray(rng.integers(0, self.below, self.shape)).astype(dtype)
        found = rng.standard_normal(self.shape)
        if jnp.issubdtype(dtype, jnp.complexfloating):
            return jnp.asarray(found + 1j * rng.standard_normal(self.shape), dtype)
        return jnp.asarray(found, dtype)


@dataclass(frozen=True, slots=True)
class OpCase:
    """One op: a function of arrays to an array or a tuple of arrays."""

    name: str
    fn: Callable[..., Any]
    operands: tuple[ArraySpec, ...]


def f(*shape: int) -> ArraySpec:
    """A float32 array."""
    return ArraySpec(shape)


def t(dtype: str, *shape: int, below: int = 100) -> ArraySpec:
    """An array of another element type."""
    return ArraySpec(shape, dtype, below)


def i(*shape: int, below: int) -> ArraySpec:
    """int32 indices in `range(below)`."""
    return ArraySpec(shape, "int32", below)


_ONE_ROUND = [(1, 1), (1, 1)]


def _conv(
    image: ArraySpec, kernel: ArraySpec, strides: tuple[int, int] = (1, 1), **options: Any
) -> tuple[Callable[..., Any], ArraySpec, ArraySpec]:
    padding = options.pop("padding", "SAME")
    names = options.pop("names", ("NHWC", "HWIO", "NHWC"))

    def fn(x: Any, k: Any) -> Any:
        return lax.conv_general_dilated(x, k, strides, padding, dimension_numbers=names, **options)

    return fn, image, kernel


def _conv_gradient(
    of: int, image: ArraySpec, kernel: ArraySpec, **options: Any
) -> tuple[Callable[..., Any], ArraySpec, ArraySpec]:
    fn, _, _ = _conv(image, kernel, **options)

    def gradient(x: Any, k: Any) -> Any:
        return jax.grad(lambda *both: jnp.sum(jnp.sin(fn(*both))), of)(x, k)

    return gradient, image, kernel


def _dot(contract: Any, batch: Any = ((), ())) -> Callable[..., Any]:
    return lambda a, b: lax.dot_general(a, b, (contract, batch))


def _window(reducer: Any, start: float, window: Any, strides: Any, **options: Any) -> Any:
    padding = options.pop("padding", "SAME")
    return lambda x: lax.reduce_window(x, start, reducer, window, strides, padding, **options)


def _pool_gradient(window: Any, strides: Any) -> Any:
    pool = _window(lax.max, -jnp.inf, window, strides, padding="VALID")
    return jax.grad(lambda x: jnp.sum(jnp.sin(pool(x))))


def _spd(a: Any) -> Any:
    return a @ jnp.swapaxes(a, -1, -2) + 8 * jnp.eye(a.shape[-1])


def _scatter(method: str, mode: str | None = None) -> Callable[..., Any]:
    return lambda x, at, u: getattr(x.at[at], method)(u, mode=mode)


def _keyed(sample: Callable[[Any], Any]) -> Callable[..., Any]:
    return lambda bits: sample(jax.random.wrap_key_data(bits[0], impl="threefry2x32"))


_CONVOLUTIONS: tuple[tuple[str, tuple[Callable[..., Any], ArraySpec, ArraySpec]], ...] = (
    ("conv", _conv(f(4, 8, 8, 6), f(3, 3, 6, 8))),
    ("conv nchw", _conv(f(4, 8, 6, 8), f(8, 8, 3, 3), names=("NCHW", "OIHW", "NCHW"))),
    ("conv stride 2", _conv(f(4, 8, 9, 4), f(3, 3, 4, 8), (2, 2))),
    ("conv valid", _conv(f(4, 10, 8, 4), f(3, 3, 4, 8), padding="VALID")),
    ("conv 1x1", _conv(f(8, 4, 4, 8), f(1, 1, 8, 8))),
    ("conv even kernel", _conv(f(4, 8, 8, 4), f(2, 4, 4, 8))),
    ("conv dilated kernel", _conv(f(4, 8, 8, 4), f(3, 3, 4, 8), rhs_dilation=(2, 2))),
    (
        "conv dilated image",
        _conv(f(4, 8, 8, 4), f(3, 3, 4, 8), lhs_dilation=(2, 2), padding=_ONE_ROUND),
    ),
    ("conv grouped", _conv(f(4, 8, 8, 8), f(3, 3, 4, 8), feature_group_count=2)),
    ("conv grouped 4", _conv(f(4, 8, 8, 16), f(3, 3, 4, 8), feature_group_count=4)),
    ("conv grouped 8", _conv(f(4, 8, 8, 16), f(3, 3, 2, 16), feature_group_count=8)),
    ("conv depthwise", _conv(f(4, 8, 8, 8), f(3, 3, 1, 8), feature_group_count=8)),
    ("conv depthwise x2", _conv(f(3, 9, 9, 4), f(3, 3, 1, 8), feature_group_count=4)),
    ("conv depthwise x3", _conv(f(2, 8, 8, 8), f(3, 3, 1, 24), feature_group_count=8)),
    ("conv depthwise stride", _conv(f(2, 8, 8, 8), f(3, 3, 1, 8), (2, 2), feature_group_count=8)),
    (
        "conv depthwise x4 1x1",
        _conv(f(2, 4, 4, 4), f(1, 1, 1, 16), feature_group_count=4),
    ),
    ("conv batch groups", _conv(f(8, 8, 8, 4), f(3, 3, 4, 8), batch_group_count=4)),
    ("conv batch groups 8", _conv(f(8, 4, 4, 4), f(3, 3, 4, 8), batch_group_count=8)),
    ("conv grad image", _conv_gradient(0, f(4, 8, 8, 4), f(3, 3, 4, 8))),
    ("conv grad kernel", _conv_gradient(1, f(4, 8, 8, 4), f(3, 3, 4, 8))),
    ("conv grad image stride", _conv_gradient(0, f(4, 8, 8, 4), f(3, 3, 4, 8), strides=(2, 2))),
    ("conv grad kernel stride", _conv_gradient(1, f(4, 8, 8, 4), f(3, 3, 4, 8), strides=(2, 2))),
    (
        "conv grad image grouped",
        _conv_gradient(0, f(4, 8, 8, 8), f(3, 3, 4, 8), feature_group_count=2),
    ),
    (
        "conv grad kernel grouped",
        _conv_gradient(1, f(4, 8, 8, 8), f(3, 3, 4, 8), feature_group_count=2),
    ),
    (
        "conv grad image depthwise",
        _conv_gradient(0, f(4, 8, 8, 8), f(3, 3, 1, 8), feature_group_count=8),
    ),
    (
        "conv grad kernel depthwise",
        _conv_gradient(1, f(4, 8, 8, 8), f(3, 3, 1, 8), feature_group_count=8),
    ),
    (
        "conv grad kernel depthwise x2",
        _conv_gradient(1, f(4, 8, 8, 4), f(3, 3, 1, 8), feature_group_count=4),
    ),
    (
        "conv 1d",
        (
            lambda x, k: lax.conv_general_dilated(
                x, k, (1,), "SAME", dimension_numbers=("NWC", "WIO", "NWC")
            ),
            f(4, 16, 8),
            f(3, 8, 8),
        ),
    ),
    (
        "conv transposed",
        (lambda x, k: lax.conv_transpose(x, k, (2, 2), "SAME"), f(4, 4, 4, 8), f(3, 3, 8, 8)),
    ),
    (
        "conv causal depthwise",
        (
            lambda x, k: lax.conv_general_dilated(
                x,
                k,
                (1,),
                [(3, 0)],
                dimension_numbers=("NWC", "WIO", "NWC"),
                feature_group_count=8,
            ),
            f(4, 16, 8),
            f(4, 1, 8),
        ),
    ),
)

_PRODUCTS: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    ("dot", _dot(((1,), (0,))), (f(8, 12), f(12, 16))),
    ("dot odd", _dot(((1,), (0,))), (f(6, 9), f(9, 10))),
    ("dot transposed", _dot(((0,), (1,))), (f(16, 8), f(12, 16))),
    ("dot batch", _dot(((2,), (1,)), ((0,), (0,))), (f(4, 6, 8), f(4, 8, 8))),
    ("dot two batch", _dot(((3,), (3,)), ((0, 1), (0, 1))), (f(2, 4, 6, 8), f(2, 4, 8, 8))),
    ("dot two contracted", _dot(((1, 2), (0, 1))), (f(8, 4, 6), f(4, 6, 8))),
    ("dot vector", _dot(((1,), (0,))), (f(16, 8), f(8))),
    ("dot scalar", _dot(((0,), (0,))), (f(16), f(16))),
    ("dot outer", _dot(((), ())), (f(8), f(4, 2))),
    ("dot one row", _dot(((1,), (0,))), (f(1, 8), f(8, 16))),
    (
        "dot int8",
        lambda a, b: lax.dot_general(
            a, b, (((1,), (0,)), ((), ())), preferred_element_type=jnp.int32
        ),
        (t("int8", 8, 16), t("int8", 16, 8)),
    ),
    ("dot bf16", _dot(((1,), (0,))), (t("bfloat16", 8, 16), t("bfloat16", 16, 8))),
    ("dot complex", _dot(((1,), (0,))), (t("complex64", 8, 8), t("complex64", 8, 8))),
    ("einsum", lambda a, b: jnp.einsum("bqhd,bkhd->bhqk", a, b), (f(2, 4, 4, 8), f(2, 6, 4, 8))),
    ("outer sum", lambda a, b: a[:, None] + b[None, :], (f(8), f(16))),
    (
        "ragged dot",
        lambda x, w: lax.ragged_dot(x, w, jnp.array([3, 1, 0, 4], jnp.int32)),
        (f(8, 6), f(4, 6, 8)),
    ),
)

_ELEMENTWISE: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    ("add", lambda a, b: a + b, (f(8, 6), f(8, 6))),
    ("select", jnp.where, (t("bool", 8, 6), f(8, 6), f(8, 6))),
    ("select scalar", lambda p, a, b: jnp.where(p[0], a, b), (t("bool", 2), f(8, 6), f(8, 6))),
    ("clamp", lambda a: lax.clamp(-1.0, a, 1.0), (f(8, 6),)),
    ("erf", lax.erf, (f(8, 6),)),
    ("logistic", jax.nn.sigmoid, (t("bfloat16", 8, 6),)),
    ("complex abs", jnp.abs, (t("complex64", 8, 6),)),
    ("complex make", lax.complex, (f(8, 6), f(8, 6))),
    ("real imag", lambda a: (jnp.real(a), jnp.imag(a)), (t("complex64", 8, 6),)),
    ("population count", lax.population_count, (t("uint32", 8, 6),)),
    ("shift", lambda a: a << 2, (t("uint8", 8, 6),)),
    ("int4 add", lambda a: (a.astype(jnp.int4) + 1).astype(jnp.int32), (t("int8", 8, 6, below=6),)),
    ("int4 operand", lambda a: a.astype(jnp.int32) * 3, (t("int4", 8, 6, below=6),)),
    ("float8", lambda a: a.astype(jnp.float8_e4m3fn).astype(jnp.float32), (f(8, 6),)),
    ("convert f16", lambda a: a.astype(jnp.float16), (f(8, 6),)),
    ("compare", lambda a, b: a < b, (f(8, 6), f(8, 6))),
    ("is finite", jnp.isfinite, (f(8, 6),)),
    ("atan2", jnp.arctan2, (f(8, 6), f(8, 6))),
    ("reduce precision", lambda a: lax.reduce_precision(a, 5, 7), (f(8, 6),)),
    ("barrier", lambda a, b: lax.optimization_barrier((a, b)), (f(8, 6), f(6, 8))),
    ("bitcast same", lambda a: lax.bitcast_convert_type(a, jnp.int32), (f(8, 6),)),
    ("bitcast narrow", lambda a: lax.bitcast_convert_type(a, jnp.uint8), (f(8, 6),)),
    (
        "bitcast wide",
        lambda a: lax.bitcast_convert_type(a, jnp.uint32),
        (t("uint8", 8, 6, 4, below=255),),
    ),
)

_SHAPES: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    ("reshape merge", lambda a: a.reshape(48, 8), (f(8, 6, 8),)),
    ("reshape split", lambda a: a.reshape(4, 6, 16), (f(24, 16),)),
    ("reshape mixed", lambda a: a.reshape(4, 6), (f(8, 3),)),
    ("reshape mixed wide", lambda a: a.reshape(8, 12), (f(16, 6),)),
    ("reshape flat", jnp.ravel, (f(4, 6, 8),)),
    ("reshape ones", lambda a: a.reshape(1, 8, 1, 8), (f(8, 8),)),
    ("transpose", lambda a: jnp.transpose(a, (2, 0, 1)), (f(4, 6, 8),)),
    ("transpose reshape", lambda a: jnp.swapaxes(a, 0, 1).reshape(32, 2), (f(8, 4, 2),)),
    ("broadcast", lambda a: jnp.broadcast_to(a, (4, 8, 6)), (f(8, 6),)),
    ("broadcast one", lambda a: jnp.broadcast_to(a, (8, 6)), (f(8, 1),)),
    ("concatenate", lambda a, b: jnp.concatenate([a, b]), (f(8, 6), f(8, 6))),
    ("concatenate uneven", lambda a, b: jnp.concatenate([a, b]), (f(12, 6), f(4, 6))),
    ("concatenate one", lambda a, b: jnp.concatenate([a, b]), (f(8, 6), f(1, 6))),
    ("concatenate columns", lambda a, b: jnp.concatenate([a, b], 1), (f(8, 6), f(8, 10))),
    ("stack", lambda a, b: jnp.stack([a, b], 1), (f(8, 6), f(8, 6))),
    ("repeat", lambda a: jnp.repeat(a, 2, axis=0), (f(8, 6),)),
    ("tile", lambda a: jnp.tile(a, (2, 3)), (f(8, 6),)),
    ("roll", lambda a: jnp.roll(a, 3, axis=0), (f(8, 6),)),
    ("split", lambda a: tuple(jnp.split(a, 2, axis=0)), (f(16, 6),)),
    ("slice", lambda a: a[2:10], (f(16, 6),)),
    ("slice stride", lambda a: a[1::2], (f(16, 6),)),
    ("slice stride odd", lambda a: a[1:15:3, ::2], (f(16, 8),)),
    ("slice one", lambda a: a[3:4], (f(16, 8),)),
    ("slice row", lambda a: a[5], (f(16, 8),)),
    ("pad", lambda a: lax.pad(a, 0.5, ((2, 2, 0), (0, 4, 0))), (f(4, 4),)),
    ("pad one", lambda a: lax.pad(a, 0.5, ((1, 0, 0), (0, 0, 0))), (f(8, 8),)),
    ("pad interior", lambda a: lax.pad(a, 0.5, ((0, 1, 1), (2, 1, 2))), (f(8, 8),)),
    ("pad negative", lambda a: lax.pad(a, 0.5, ((-2, 2, 0), (0, -4, 0))), (f(8, 8),)),
    ("pad interior negative", lambda a: lax.pad(a, 0.5, ((-1, 2, 1), (0, 0, 0))), (f(8, 8),)),
    ("reverse", lambda a: lax.rev(a, (0,)), (f(8, 6),)),
    ("reverse both", lambda a: lax.rev(a, (0, 1)), (f(8, 6),)),
    ("reverse odd", lambda a: lax.rev(a, (0,)), (f(9, 8),)),
    ("iota", lambda a: a + lax.broadcasted_iota(jnp.float32, (8, 6), 0), (f(8, 6),)),
    ("tril", jnp.tril, (f(8, 8),)),
    ("one hot", lambda at: jax.nn.one_hot(at, 12), (i(8, below=12),)),
    ("diagonal", jnp.diagonal, (f(8, 8),)),
    ("diag", jnp.diag, (f(8),)),
    ("eye", lambda a: a @ jnp.eye(8), (f(8, 8),)),
)

_REDUCTIONS: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    ("sum", lambda a: jnp.sum(a, 0), (f(8, 6),)),
    ("sum all", jnp.sum, (f(8, 6),)),
    ("sum odd", lambda a: jnp.sum(a, 1), (f(8, 9, 4),)),
    ("sum bf16", lambda a: jnp.sum(a, 0), (t("bfloat16", 8, 6),)),
    ("prod", lambda a: jnp.prod(a, 0), (f(8, 6),)),
    ("max", lambda a: jnp.max(a, 1), (f(8, 6),)),
    ("min int", lambda a: jnp.min(a, 0), (i(8, 6, below=50),)),
    ("any", lambda a: jnp.any(a, 0), (t("bool", 8, 6),)),
    ("all", lambda a: jnp.all(a, 1), (t("bool", 8, 6),)),
    ("xor", lambda a: lax.reduce(a, np.uint32(0), lax.bitwise_xor, (0,)), (t("uint32", 8, 6),)),
    ("argmax", lambda a: jnp.argmax(a, 0), (f(8, 6),)),
    ("argmin last", lambda a: jnp.argmin(a, 1), (f(8, 16),)),
    (
        "reduce two",
        lambda a, b: lax.reduce(
            (a, b), (np.float32(0), np.float32(1)), lambda x, y: (x[0] + y[0], x[1] * y[1]), (0,)
        ),
        (f(8, 6), f(8, 6)),
    ),
    ("logsumexp", lambda a: jax.nn.logsumexp(a, axis=1), (f(8, 16),)),
    ("softmax", lambda a: jax.nn.softmax(a, axis=0), (f(8, 16),)),
    ("variance", lambda a: jnp.var(a, axis=(0, 2)), (f(4, 6, 8),)),
    ("cumsum", lambda a: jnp.cumsum(a, 0), (f(16, 6),)),
    ("cumsum last", lambda a: jnp.cumsum(a, 1), (f(8, 9),)),
    ("cumsum back", lambda a: lax.cumsum(a, 0, reverse=True), (f(16, 6),)),
    ("cummax", lambda a: lax.cummax(a, 0), (f(16, 6),)),
    ("cumprod", lambda a: lax.cumprod(a, 1), (f(8, 8),)),
    ("cumlogsumexp", lambda a: lax.cumlogsumexp(a, 0), (f(8, 8),)),
    ("max pool", _window(lax.max, -np.inf, (1, 2, 2, 1), (1, 2, 2, 1)), (f(4, 8, 8, 4),)),
    ("max pool 3", _window(lax.max, -np.inf, (1, 3, 3, 1), (1, 2, 2, 1)), (f(4, 8, 9, 4),)),
    ("sum pool", _window(lax.add, 0.0, (1, 3, 3, 1), (1, 1, 1, 1)), (f(4, 8, 8, 4),)),
    (
        "sum pool dilated",
        _window(lax.add, 0.0, (1, 3, 1), (1, 1, 1), window_dilation=(1, 2, 1)),
        (f(4, 8, 8),),
    ),
    (
        "sum pool base dilated",
        _window(lax.add, 0.0, (1, 3, 1), (1, 1, 1), base_dilation=(1, 2, 1)),
        (f(4, 8, 8),),
    ),
    ("max pool grad", _pool_gradient((1, 2, 2, 1), (1, 2, 2, 1)), (f(4, 8, 8, 4),)),
    ("max pool grad overlap", _pool_gradient((1, 3, 3, 1), (1, 2, 2, 1)), (f(4, 9, 9, 4),)),
    ("sort", lambda a: lax.sort(a, dimension=0), (f(16, 6),)),
    ("sort pairs", lambda a, b: lax.sort((a, b), dimension=1, num_keys=1), (f(8, 16), f(8, 16))),
    ("sort vector", jnp.sort, (f(16),)),
    ("argsort", lambda a: jnp.argsort(a, axis=0), (f(16, 6),)),
    ("top k", lambda a: lax.top_k(a, 4), (f(8, 16),)),
    ("approx max k", lambda a: lax.approx_max_k(a, 4), (f(8, 16),)),
    ("searchsorted", lambda a, b: jnp.searchsorted(jnp.sort(a), b), (f(16), f(8))),
    ("unique counts", lambda a: jnp.bincount(a, length=8), (i(16, below=8),)),
    ("histogram", lambda a: jnp.histogram(a, 8, (-2.0, 2.0))[0], (f(32),)),
    (
        "segment sum",
        lambda a, at: jax.ops.segment_sum(a, at, 8),
        (f(16, 6), i(16, below=8)),
    ),
    (
        "segment max",
        lambda a, at: jax.ops.segment_max(a, at, 8),
        (f(16, 6), i(16, below=8)),
    ),
)

_LOOK_UPS: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    ("take", lambda x, at: x[at], (f(16, 6), i(8, below=16))),
    ("take clip", lambda x, at: jnp.take(x, at, axis=0, mode="clip"), (f(16, 6), i(8, below=20))),
    ("take fill", lambda x, at: jnp.take(x, at, axis=0), (f(16, 6), i(8, below=20))),
    ("take columns", lambda x, at: x[:, at], (f(8, 16), i(4, below=16))),
    ("take two indices", lambda x, a, b: x[a, b], (f(16, 8), i(8, below=16), i(8, below=8))),
    ("take ends", lambda x, a, b: x[a, :, b], (f(8, 6, 8), i(4, below=8), i(4, below=8))),
    ("take matrix", lambda x, at: x[at], (f(16, 6), i(4, 8, below=16))),
    ("take one", lambda x, at: x[at[0]], (f(16, 6), i(2, below=16))),
    (
        "take along axis",
        lambda x, at: jnp.take_along_axis(x, at, axis=1),
        (f(8, 16), i(8, 4, below=16)),
    ),
    (
        "take along axis 0",
        lambda x, at: jnp.take_along_axis(x, at, axis=0),
        (f(16, 8), i(4, 8, below=16)),
    ),
    (
        "gather batch",
        jax.vmap(lambda x, at: x[at]),
        (f(4, 16, 6), i(4, 8, below=16)),
    ),
    (
        "gather windows",
        jax.vmap(lambda at, x: lax.dynamic_slice(x, (at, 0), (3, 4)), (0, None)),
        (i(8, below=12), f(16, 8)),
    ),
    (
        "dynamic slice",
        lambda x, at: lax.dynamic_slice(x, (at[0], 0), (4, 8)),
        (f(16, 8), i(2, below=12)),
    ),
    (
        "dynamic slice one",
        lambda x, at: lax.dynamic_slice(x, (at[0], 0), (1, 8)),
        (f(16, 8), i(2, below=16)),
    ),
    (
        "dynamic slice both",
        lambda x, at: lax.dynamic_slice(x, (at[0], at[1]), (8, 4)),
        (f(16, 8), i(2, below=4)),
    ),
    (
        "dynamic slice past the end",
        lambda x, at: lax.dynamic_slice(x, (at[0] + 14, 0), (4, 8)),
        (f(16, 8), i(2, below=12)),
    ),
)
_UPDATES: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    (
        "dynamic update slice",
        lambda x, u, at: lax.dynamic_update_slice(x, u, (at[0], 0)),
        (f(16, 8), f(4, 8), i(2, below=12)),
    ),
    (
        "dynamic update slice one",
        lambda x, u, at: lax.dynamic_update_slice(x, u, (at[0], 0)),
        (f(16, 8), f(1, 8), i(2, below=16)),
    ),
    (
        "dynamic update slice fixed",
        lambda x, u: lax.dynamic_update_slice(x, u, (3, 0)),
        (f(16, 8), f(4, 8)),
    ),
    (
        "dynamic update slice past the end",
        lambda x, u, at: lax.dynamic_update_slice(x, u, (at[0] + 14, 0)),
        (f(16, 8), f(4, 8), i(2, below=12)),
    ),
    (
        "dynamic update slice one past the end",
        lambda x, u, at: lax.dynamic_update_slice(x, u, (at[0] + 14, 0)),
        (f(16, 8), f(1, 8), i(2, below=12)),
    ),
    (
        "dynamic update slice cache",
        lambda x, u, at: lax.dynamic_update_slice(x, u, (0, at[0], 0, 0)),
        (f(4, 16, 2, 4), f(4, 2, 2, 4), i(2, below=14)),
    ),
    ("set row fixed", lambda x, u: x.at[0].set(u), (f(16, 8), f(8))),
    ("set row fixed 5", lambda x, u: x.at[5].set(u), (f(16, 8), f(8))),
    ("set last row", lambda x, u: x.at[-1].set(u), (f(16, 8), f(8))),
    ("set row turned", lambda x, u: x.T.at[:, 5].set(u), (f(16, 8), f(8))),
    (
        "set row in a loop of one",
        lambda x, u: lax.fori_loop(0, 1, lambda at, y: y.at[at].set(u), x),
        (f(16, 8), f(8)),
    ),
    ("bitwise or", lambda a: lax.reduce_or(a, (0,)), (t("uint32", 8, 6),)),
    ("set row traced", lambda x, u, at: x.at[at[0]].set(u), (f(16, 8), f(8), i(2, below=16))),
    ("add row fixed", lambda x, u: x.at[3].add(u), (f(16, 8), f(8))),
    ("add row traced", lambda x, u, at: x.at[at[0]].add(u), (f(16, 8), f(8), i(2, below=16))),
    ("multiply row", lambda x, u: x.at[3].multiply(u), (f(16, 8), f(8))),
    ("max row", lambda x, u, at: x.at[at[0]].max(u), (f(16, 8), f(8), i(2, below=16))),
    ("set element", lambda x: x.at[3, 2].set(1.0), (f(16, 8),)),
    ("set column", lambda x, u: x.at[:, 3].set(u), (f(16, 8), f(16))),
    ("set column traced", lambda x, u, at: x.at[:, at[0]].set(u), (f(16, 8), f(16), i(2, below=8))),
    ("set rows range", lambda x, u: x.at[2:6].set(u), (f(16, 8), f(4, 8))),
    ("set row of three", lambda x, u: x.at[1].set(u), (f(8, 4, 6), f(4, 6))),
    ("set row vector", lambda x: x.at[3].set(7.0), (f(16),)),
    (
        "set rows",
        lambda x, at, u: x.at[jnp.unique(at, size=4, fill_value=15)].set(u),
        (f(16, 8), i(4, below=15), f(4, 8)),
    ),
    ("scatter add", _scatter("add"), (f(16, 8), i(8, below=16), f(8, 8))),
    ("scatter add drop", _scatter("add", "drop"), (f(16, 8), i(8, below=20), f(8, 8))),
    ("scatter multiply", _scatter("multiply"), (f(16, 8), i(8, below=16), f(8, 8))),
    ("scatter max", _scatter("max"), (f(16, 8), i(8, below=16), f(8, 8))),
    ("scatter min int", _scatter("min"), (i(16, 8, below=50), i(8, below=16), i(8, 8, below=50))),
    ("scatter add vector", _scatter("add"), (f(16), i(8, below=16), f(8))),
    ("scatter add bf16", _scatter("add"), (t("bfloat16", 16, 8), i(8, below=16), f(8, 8))),
    (
        "scatter add columns",
        lambda x, at, u: x.at[:, at].add(u),
        (f(8, 16), i(4, below=16), f(8, 4)),
    ),
    (
        "scatter add two",
        lambda x, a, b, u: x.at[a, b].add(u),
        (f(16, 8), i(8, below=16), i(8, below=8), f(8)),
    ),
    (
        "scatter batch",
        jax.vmap(lambda x, at, u: x.at[at].add(u)),
        (f(4, 16, 6), i(4, 8, below=16), f(4, 8, 6)),
    ),
    (
        "scatter one per row",
        lambda x, at, u: x.at[jnp.arange(8), at].set(u),
        (f(8, 16), i(8, below=16), f(8)),
    ),
    (
        "scatter windows",
        jax.vmap(
            lambda x, u, at: lax.dynamic_update_slice(x, u, (at, 0)),
        ),
        (f(4, 16, 6), f(4, 3, 6), i(4, below=13)),
    ),
    (
        "take gradient",
        lambda x, at: jax.grad(lambda x: jnp.sum(jnp.sin(x[at])))(x),
        (f(16, 6), i(8, below=16)),
    ),
)

_OTHER: tuple[tuple[str, Callable[..., Any], tuple[ArraySpec, ...]], ...] = (
    ("random bits", _keyed(lambda k: jax.random.bits(k, (8, 6))), (t("uint32", 2, 2),)),
    ("random normal", _keyed(lambda k: jax.random.normal(k, (8, 16))), (t("uint32", 2, 2),)),
    (
        "random permutation",
        _keyed(lambda k: jax.random.permutation(k, 16)),
        (t("uint32", 2, 2),),
    ),
    (
        "rng bit generator",
        lambda k: lax.rng_bit_generator(k[0], (8, 6)),
        (t("uint32", 2, 4),),
    ),
    ("fft", jnp.fft.fft, (t("complex64", 8, 16),)),
    ("fft batch", jnp.fft.fft, (t("complex64", 4, 4, 8),)),
    ("rfft", jnp.fft.rfft, (f(8, 16),)),
    ("irfft", lambda a: jnp.fft.irfft(a, 16), (t("complex64", 8, 9),)),
    ("fft2", jnp.fft.fft2, (t("complex64", 4, 8, 8),)),
    ("cholesky", lambda a: jnp.linalg.cholesky(_spd(a)), (f(4, 6, 6),)),
    ("qr", jnp.linalg.qr, (f(4, 8, 6),)),
    ("svd", lambda a: jnp.linalg.svd(a, compute_uv=False), (f(4, 8, 6),)),
    ("eigh", lambda a: jnp.linalg.eigvalsh(_spd(a)), (f(4, 6, 6),)),
    ("lu", lax.linalg.lu, (f(4, 6, 6),)),
    ("solve", lambda a, b: jnp.linalg.solve(_spd(a), b), (f(4, 6, 6), f(4, 6, 2))),
    (
        "triangular solve",
        lambda a, b: lax.linalg.triangular_solve(_spd(a), b, left_side=True, lower=True),
        (f(4, 6, 6), f(4, 6, 8)),
    ),
    ("det", jnp.linalg.det, (f(8, 4, 4),)),
    ("inverse", lambda a: jnp.linalg.inv(_spd(a)), (f(4, 6, 6),)),
    (
        "scan",
        lambda a: lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(a.shape[1:]), a),
        (f(4, 8, 6),),
    ),
    (
        "scan reversed",
        lambda a: lax.scan(lambda c, x: (c + x, c * x), jnp.zeros(8), a, reverse=True)[1],
        (f(8, 8),),
    ),
    (
        "associative scan",
        lambda a: lax.associative_scan(jnp.add, a),
        (f(16, 6),),
    ),
    (
        "while",
        lambda a: lax.fori_loop(0, 3, lambda _, x: jnp.sin(x) + jnp.roll(x, 1, 0), a),
        (f(8, 6),),
    ),
    ("cond", lambda a: lax.cond(a[0, 0] > 0, jnp.sin, lambda a: a * 2, a), (f(8, 6),)),
    ("map", lambda a: lax.map(lambda r: r / jnp.sum(r), a), (f(8, 6),)),
)

CASES: tuple[OpCase, ...] = (
    *(OpCase(name, case[0], tuple(case[1:])) for name, case in _CONVOLUTIONS),
    *(
        OpCase(name, fn, specs)
        for group in (
            _PRODUCTS,
            _ELEMENTWISE,
            _SHAPES,
            _REDUCTIONS,
            _LOOK_UPS,
            _UPDATES,
            _OTHER,
        )
        for name, fn, specs in group
    ),
)
"""Every case, by group; names are unique."""
