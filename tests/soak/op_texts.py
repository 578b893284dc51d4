"""Expressions of single ops: one for each op of StableHLO that JAX lowers to, and their kinds."""

from __future__ import annotations

from collections.abc import Callable

from tests.soak.writer import FLOATS, INTEGERS, NothingFitsError, Writer

Write = Callable[[Writer], str]

_FLOAT_UNARY = (
    """
jnp.sin({x})|jnp.cos({x})|jnp.tanh({x})|jnp.exp(-jnp.abs({x}))|jnp.log(jnp.abs({x}) + 1)|-{x}
jnp.abs({x})|jnp.sqrt(jnp.abs({x}))|lax.rsqrt(jnp.abs({x}) + 1)|jax.nn.sigmoid({x})|lax.erf({x})
jax.nn.gelu({x})|jax.nn.relu({x})|jnp.square(jnp.tanh({x}))|jnp.expm1(jnp.tanh({x}))
jnp.log1p(jnp.abs({x}))|jnp.floor({x})|jnp.ceil({x})|jnp.round({x})|jnp.sign({x})|jnp.cbrt({x})
lax.reduce_precision({x}, 5, 7)|lax.stop_gradient({x})|jnp.arctan({x})|jnp.sinh(jnp.tanh({x}))
lax.optimization_barrier({x})|jnp.isfinite({x})|jnp.nan_to_num({x})|lax.lgamma(jnp.abs({x}) + 1)
lax.digamma(jnp.abs({x}) + 1)|lax.erf_inv(jnp.tanh({x}) * 0.9)|{x} * 1|{x} + 0
jnp.where(jnp.isfinite({x}), {x}, 0)|jnp.clip({x}, -1, 1)|jax.nn.softplus({x})|{x}.astype(t.float32)
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_FLOAT_BINARY = (
    """
{x} + {y}|{x} - {y}|{x} * jnp.tanh({y})|{x} / (jnp.abs({y}) + 1)|jnp.maximum({x}, {y})
jnp.minimum({x}, {y})|jnp.arctan2({x}, {y})|jnp.where({x} > {y}, {x}, {y})|{x} < {y}
lax.nextafter({x}, {y})|jnp.power(jnp.abs({x}) + 1, jnp.tanh({y}))|lax.rem({x}, jnp.abs({y}) + 1)
jnp.hypot({x}, {y})|lax.clamp({x} - 1, {y}, {x} + 1)|jnp.add({x}, {y}) * 0.5
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_INTEGER = (
    """
{x} + {y}|{x} * {y}|{x} & {y}|{x} | {y}|{x} ^ {y}|~{x}|{x} << 1|{x} >> 1|lax.population_count({x})
lax.clz({x})|{x} // ({y} | 1)|{x} % ({y} | 1)|{x} == {y}|{x}.astype(t.float32)
lax.shift_right_logical({x}, {x} & 3)|jnp.maximum({x}, {y})|{x}.astype(t.int4).astype(t.int32)
jnp.sum({x})|jnp.cumsum({x}.ravel())|jnp.bincount({x}.ravel().astype(t.int32) & 3, length=4)
""".replace("|{x} | {y}|", "|jnp.bitwise_or({x}, {y})|")
    .replace("({y} | 1)", "jnp.bitwise_or({y}, 1)")
    .replace("\n", "|")
    .strip("|")
    .split("|")
)
_FOUR_BITS = (
    "{x} + {y}",
    "{x}.astype(t.float32) * 0.5",
    "jnp.concatenate([{x}, {y}])",
    "{x}.reshape(-1)",
    "{x}[0]",
    "{x}.T.astype(t.int32)",
    "jnp.sum({x}.astype(t.int32), 0)",
)
_BOOLEAN = "~{x}|{x} & {y}|jnp.logical_or({x}, {y})|{x} ^ {y}|{x}.astype(t.float32)".split("|")
_COMPLEX = (
    """
jnp.real({x})|jnp.imag({x})|jnp.abs({x})|jnp.conj({x})|{x} * {y}|{x} * 1j|{x} + {y}
jnp.angle({x})|jnp.exp(1j * jnp.real({x}))|jnp.sum({x})|{x}.reshape(-1)|jnp.fft.fft({x})
jnp.tensordot({x}, jnp.conj({y}), {x}.ndim)|jnp.real({x} * {y}).astype(t.bfloat16)
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_CASTS = (
    "{x}.astype(t.bfloat16)",
    "{x}.astype(t.float16)",
    "{x}.astype(t.float32)",
    "{x}.astype(t.float8_e4m3fn).astype(t.float32)",
    "jnp.clip({x}, -7, 7).astype(t.int32)",
    "jnp.clip({x}, -7, 7).astype(t.int8)",
    "jnp.clip({x}, -7, 7).astype(t.int4)",
    "({x} > 0)",
    "({x} + 1j).astype(t.complex64)",
)
_REDUCED = (
    """
jnp.sum({x}, {d})|jnp.max({x}, {d})|jnp.min({x}, {d})|jnp.mean({x}, {d})
jnp.prod(jnp.tanh({x}), {d})
jnp.sum({x}, {d}, keepdims=True)|jnp.sum({x})|jax.nn.softmax({x}, {d})|jax.nn.logsumexp({x}, {d})
jnp.argmax({x}, {d})|jnp.argmin({x}, {d})|jnp.var({x}, {d})|jnp.any({x} > 1, {d})|jnp.max({x})
jnp.cumsum({x}, {d})|jnp.cumprod(jnp.tanh({x}), {d})|lax.cummax({x}, {d})|lax.cumlogsumexp({x}, {d})
jnp.linalg.norm({x}, axis={d})|jnp.sort({x}, {d})|jnp.argsort({x}, {d})|jnp.flip({x}, {d})
jnp.roll({x}, 1, {d})|jnp.diff({x}, axis={d})|jnp.median({x}, {d})
lax.associative_scan(jnp.add, {x}, axis={d})|lax.rev({x}, ({d},))|jnp.squeeze({x}[..., :1], -1)
lax.reduce_xor(({x} > 0).astype(t.int32), ({d},))|lax.reduce_and({x} > 0, ({d},))
jnp.repeat({x}, 2, {d})|jnp.concatenate([{x}, {x}], {d})|jnp.expand_dims({x}, {d})
jnp.stack([{x}, {x}], {d})|jnp.tile({x}, 2)|lax.top_k({x}, 1)[0]|lax.top_k({x}, 1)[1]
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_MOVED = (
    """
jnp.transpose({x})|{x}.ravel()|{x}.reshape(-1, {x}.shape[-1])|{x}.reshape({x}.shape[0], -1)
jnp.swapaxes({x}, 0, -1)|{x}[::2]|{x}[1:]|{x}[..., ::-1]|{x}[:, None]|jnp.moveaxis({x}, 0, -1)
jnp.pad({x}, 1)|{x}[None]|{x}[0]|{x}[..., -1]|jnp.broadcast_to({x}, (4, *{x}.shape))
{x}.reshape(2, -1)|{x}.reshape(-1, 2)|{x}.reshape(-1, 8)|{x}[3:7]|jnp.diag({x})|jnp.tril({x})
jnp.take({x}, jnp.array([0, 2, 1]), 0, mode="clip")|jnp.split({x}, 2)[1]|{x}[jnp.array([1, 0])]
lax.pad({x}, jnp.zeros((), {x}.dtype), [(1, -1, 1)] + [(0, 0, 0)] * ({x}.ndim - 1))
lax.bitcast_convert_type({x}, t.int32)|jnp.zeros_like({x})|jnp.full_like({x}, 2)
lax.broadcasted_iota(t.int32, {x}.shape, 0)|jax.nn.one_hot({x}.argmax(-1), {x}.shape[-1])
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_UPDATES = (
    """
{x}.at[0].set({u})|{x}.at[-1].add({u})|{x}.at[{i}].set({u})|{x}.at[{i}].add({u})
{x}.at[{i}].max({u})|{x}.at[{i}].multiply({u})
lax.dynamic_update_slice_in_dim({x}, {u}[None], {i}, 0)
lax.dynamic_index_in_dim({x}, {i}, 0)|lax.dynamic_slice_in_dim({x}, {i}, {x}.shape[0] // 2)
{x}[{i}]|jnp.take({x}, {i}, 0)|{x}.at[{i}].get(mode="fill", fill_value=0)
lax.dynamic_update_slice_in_dim({x}, {x}[:2], {i}, 0)|{x}.at[::2].set({x}[::2] * 2)
{x}.at[1:3].add(1)|{x}.at[:, 0].set(0)|{x}.at[jnp.array([0, 2])].set(0)|{x}.at[{i}].set(1)
{x}.at[jnp.array([0, 0, 1])].add(1)|jax.ops.segment_sum({x}, jnp.arange({x}.shape[0]) // 2, 3)
jnp.take_along_axis({x}, jnp.argsort({x}, 0), 0)|jnp.searchsorted({x}.ravel(), {x}.ravel())
{x}.T.at[:, 0].set({u})|{x}.at[0, 0].add(1)|{x}.at[{i}, 0].set(2)
""".replace("\n", "|")
    .strip("|")
    .split("|")
)
_WHOLE = (
    "jnp.fft.fft({x})",
    "jnp.fft.rfft({x})",
    "jnp.abs(jnp.fft.fft2({x}))",
    "jnp.fft.irfft(jnp.fft.rfft({x}))",
    "jnp.linalg.cholesky({x} @ {x}.T + 8 * jnp.eye({x}.shape[0]))",
    "jnp.linalg.solve({x} @ {x}.T + 8 * jnp.eye({x}.shape[0]), {x})",
    "jnp.linalg.qr({x})[1]",
    "jax.random.normal(jax.random.key(3), {x}.shape) + {x}",
    "jax.random.uniform(jax.random.wrap_key_data(jnp.array([1, 2], t.uint32)), {x}.shape) + {x}",
    "jax.random.bits(jax.random.key(1), {x}.shape)",
    "jax.random.permutation(jax.random.key(5), {x})",
    "lax.reduce_window({x}, -jnp.inf, lax.max, (2,) * {x}.ndim, (2,) * {x}.ndim, 'VALID')",
    "lax.reduce_window({x}, 0.0, lax.add, (3,) * {x}.ndim, (1,) * {x}.ndim, 'SAME')",
    "jax.grad(lambda y: jnp.sum(jnp.sin(lax.reduce_window(y, -jnp.inf, lax.max,"
    " (2,) * y.ndim, (2,) * y.ndim, 'VALID'))))({x})",
    "jnp.convolve({x}.ravel(), jnp.array([1.0, 2.0, 1.0], t.float32), 'same')",
    "jax.image.resize({x}, tuple(2 * n for n in {x}.shape), 'linear')",
    "jnp.sort({x}.ravel())",
    "lax.sort(({x}, {x} * 2), num_keys=1)[1]",
    "jnp.histogram({x}, 4, (-2, 2))[0]",
    "jnp.interp({x}, jnp.array([-1.0, 0.0, 1.0]), jnp.array([3.0, 1.0, 2.0]))",
    "jnp.unique({x}.ravel(), size=3, fill_value=0)",
    "jnp.linalg.eigh({x} @ {x}.T)[0]",
    "jax.scipy.linalg.lu({x} @ {x}.T + 8 * jnp.eye({x}.shape[0]))[2]",
    "lax.linalg.triangular_solve(jnp.tril({x} @ {x}.T) + 8 * jnp.eye({x}.shape[0]), {x},"
    " left_side=True, lower=True)",
    "lax.rng_bit_generator(jnp.arange(4, dtype=t.uint32), {x}.shape)[1]",
    "lax.reduce(({x}, {x} * 2), (jnp.float32(0), jnp.float32(1)),"
    " lambda a, b: (a[0] + b[0], jnp.maximum(a[1], b[1])), (0,))[1]",
    "lax.reduce_window({x}, 0.0, lax.add, (2,) * {x}.ndim, (1,) * {x}.ndim, 'SAME',"
    " window_dilation=(2,) * {x}.ndim)",
    "lax.approx_max_k({x}, 1)[0]",
    "jnp.einsum('...i,...i->...', {x}, {x})",
    "jnp.kron({x}.ravel()[:4], {x}.ravel()[:3])",
    "jnp.outer({x}.ravel()[:8], {x}.ravel()[:8])",
    "jnp.tensordot({x}, {x}, ({x}.ndim - 1, {x}.ndim - 1))",
    "lax.complex({x}, {x} * 2)",
    "jnp.abs(jnp.fft.ifft(lax.complex({x}, jnp.sin({x}))))",
    "lax.igamma(jnp.abs({x}) + 1, jnp.abs({x}) + 2)",
    "jnp.searchsorted(jnp.sort({x}.ravel()), {x})",
    "jax.hessian(lambda y: jnp.sum(jnp.sin(y)))({x}.ravel()[:5])",
    "jax.jacfwd(jnp.tanh)({x}.ravel()[:6])",
    "jax.linearize(jnp.sin, {x})[1]({x})",
    "lax.dot_general(({x} * 4).astype(t.int8), ({x} * 4).astype(t.int8),"
    " ((({x}.ndim - 1,), ({x}.ndim - 1,)), ((), ())), preferred_element_type=t.int32)",
    "jax.vmap(lambda row: lax.cond(row.ravel()[0] > 0, jnp.sin, jnp.cos, row))({x})",
    "jnp.where({x} > 0, jnp.nan, {x})",
    "lax.ragged_dot({x}.reshape(-1, {x}.shape[-1]), jnp.ones((2, {x}.shape[-1], 4), t.float32),"
    " jnp.array([1, {x}.size // {x}.shape[-1] - 1], t.int32))",
    "{x}.at[jnp.argsort({x}.ravel())[:2] % {x}.shape[0]].mul(2.0)",
    "jnp.apply_along_axis(jnp.cumsum, 0, {x})",
    "jax.nn.dot_product_attention({x}.reshape(1, -1, 1, {x}.shape[-1]),"
    " {x}.reshape(1, -1, 1, {x}.shape[-1]), {x}.reshape(1, -1, 1, {x}.shape[-1]))",
)


def _from(texts: list[str] | tuple[str, ...], pick: Callable[[Writer], str]) -> Write:
    def write(w: Writer) -> str:
        x = pick(w)
        text = w.rng.choice(texts)
        y = w.like(x) if "{y}" in text else x
        reads = (x,) if x == y else (x, y)
        dim = w.dim(x) if "{d}" in text and w.shape(x) else 0
        return w.add(text.format(x=x, y=y, d=dim), *reads)

    return write


def _update(w: Writer) -> str:
    x = w.real(1)
    rows = [
        name
        for name, of in w.known.items()
        if of.shape == w.shape(x)[1:] and of.dtype == w.known[x].dtype
    ]
    text = w.rng.choice(_UPDATES)
    u = w.rng.choice(rows) if rows else f"{x}[0] * 2"
    whole = [name for name, of in w.known.items() if of.dtype == "int32" and not of.shape]
    at = w.rng.choice(whole) if whole and w.rng.random() < 0.7 else str(w.rng.randrange(4))
    reads = dict.fromkeys((x, *(r for r in rows if r == u), *(i for i in whole if i == at)))
    used = [
        name for name in reads if f"{{{'x' if name == x else 'u' if name == u else 'i'}}}" in text
    ]
    return w.add(text.format(x=x, u=u, i=at), *dict.fromkeys((x, *used)))


def _product(w: Writer) -> str:
    a = w.real(1)
    b = w.pick(lambda of: of.dtype in FLOATS and len(of.shape) >= 1 and 0 not in of.shape)
    pairs = [
        (i, j)
        for i, m in enumerate(w.shape(a))
        for j, n in enumerate(w.shape(b))
        if m == n and m > 1
    ]
    if not pairs:
        raise NothingFitsError
    i, j = w.rng.choice(pairs)
    batch = [(m, n) for m, n in pairs if m != i and n != j]
    left, right = [i], [j]
    both = [w.rng.choice(batch)] if batch and w.rng.random() < 0.5 else []
    dims = (
        f"((({left[0]},), ({right[0]},)), (({both[0][0]},), ({both[0][1]},)))"
        if both
        else f"((({left[0]},), ({right[0]},)), ((), ()))"
    )
    size = w.shape(a)[i]
    return w.add(
        f"lax.dot_general({a}, {b}, {dims}, preferred_element_type=t.float32) / {float(size)}",
        *dict.fromkeys((a, b)),
    )


def _convolution(w: Writer) -> str:
    x = w.pick(lambda of: of.dtype == "float32" and len(of.shape) == 4 and 0 not in of.shape)
    features = w.shape(x)[3]
    groups = w.rng.choice([n for n in (1, 2, 4, features) if features % n == 0])
    kernel = (w.rng.choice((1, 2, 3)), 3, features // groups, groups * w.rng.choice((1, 2, 4)))
    strides = w.rng.choice(((1, 1), (2, 2), (1, 2)))
    padding = w.rng.choice(("SAME", "VALID"))
    more = f", feature_group_count={groups}"
    if groups == 1:
        more = w.rng.choice(["", ", lhs_dilation=(2, 1)", ", rhs_dilation=(1, 2)"])
    if w.rng.random() < 0.15 and w.shape(x)[0] % 2 == 0 and kernel[3] % 2 == 0 and groups == 1:
        more = ", batch_group_count=2"
    call = (
        f"lax.conv_general_dilated({{0}}, {{1}}, {strides}, '{padding}',"
        f" dimension_numbers=('NHWC', 'HWIO', 'NHWC'){more})"
    )
    made = f"jnp.sin(jnp.arange({kernel[0] * 3 * kernel[2] * kernel[3]}.0)).reshape{kernel}"
    if w.rng.random() < 0.3:
        inner = call.format("y", "k")
        place = w.rng.randrange(2)
        return w.add(f"jax.grad(lambda y, k: jnp.sum(jnp.sin({inner})), {place})({x}, {made})", x)
    return w.add(call.format(x, made), x)


def _row_convolution(w: Writer) -> str:
    x = w.pick(lambda of: of.dtype == "float32" and len(of.shape) == 3 and 0 not in of.shape)
    features, made = w.shape(x)[2], w.rng.choice((2, 8))
    kernel = f"jnp.cos(jnp.arange({3 * features * made}.0)).reshape(3, {features}, {made})"
    numbers = "dimension_numbers=('NWC', 'WIO', 'NWC')"
    text = w.rng.choice(
        [
            f"lax.conv_general_dilated({x}, {kernel}, (1,), 'SAME', {numbers})",
            f"lax.conv_transpose({x}, {kernel}, (2,), 'SAME', {numbers})",
        ]
    )
    return w.add(text, x)


def _joined(w: Writer) -> str:
    x = w.tensor()
    y = w.like(x)
    dim = w.dim(x)
    return w.add(f"jnp.concatenate([{x}, {y}], {dim})", *dict.fromkeys((x, y)))


def _held(w: Writer) -> str:
    x = w.pick(lambda of: len(of.shape) >= 1 and of.dtype != "int4")
    dims = ", ".join(repr(dim or None) for dim in w.spec(w.shape(x)))
    return w.add(f"held({x}, {dims})", x)


def _broadcast(w: Writer) -> str:
    x = w.real()
    y = w.real()
    return w.add(f"{x} + {y}", *dict.fromkeys((x, y)))


OPS: tuple[tuple[int, Write], ...] = (
    (10, _from(_FLOAT_UNARY, Writer.real)),
    (8, _from(_FLOAT_BINARY, Writer.real)),
    (3, _from(_INTEGER, lambda w: w.pick(lambda of: of.dtype in INTEGERS))),
    (2, _from(_BOOLEAN, lambda w: w.pick(lambda of: of.dtype == "bool"))),
    (1, _from(_FOUR_BITS, lambda w: w.pick(lambda of: of.dtype == "int4"))),
    (2, _from(_COMPLEX, lambda w: w.pick(lambda of: of.dtype == "complex64"))),
    (3, _from(_CASTS, Writer.real)),
    (2, _from(("{x}.astype(t.float32)",), lambda w: w.tensor(0))),
    (9, _from(_REDUCED, lambda w: w.real(1))),
    (9, _from(_MOVED, Writer.tensor)),
    (9, _update),
    (3, _from(_WHOLE, lambda w: w.plain(1))),
    (10, _product),
    (4, _convolution),
    (2, _row_convolution),
    (3, _joined),
    (4, _broadcast),
    (6, _held),
)
"""How often an expression is tried, and what writes it."""


def write_op(w: Writer) -> str:
    """A step of a single op.

    Raises:
        NothingFitsError: The op drawn reads what is not there.
    """
    weights = [weight for weight, _ in OPS]
    _, write = w.rng.choices(OPS, weights)[0]
    return write(w)
