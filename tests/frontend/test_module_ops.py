"""The rule each kind of op gets, and what is said of ops that have none."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax import lax
from jax.experimental import pallas as pl

from autoshard.graph.program import OpClass, OpKind
from tests.frontend.exporting import (
    array,
    export,
    named,
    names,
    notes,
    one,
    regions,
    rule_of,
    text,
)

X = array(8, 16)
KEY = array(2, dtype=jnp.uint32)
IMAGES = array(8, 16, 16, 8)
MATRICES = array(4, 8, 8)

# -- rules -----------------------------------------------------------------------------------------

RULES: dict[str, tuple[Any, tuple[Any, ...], str, str]] = {
    "take": (
        lambda t, i: t.at[i].get(mode="clip"),
        (array(64, 16), array(8, dtype=jnp.int32)),
        "gather",
        "([k, j], [i, l])->([i, j]) {i=8, j=16, k=64, l=1} reduction={k} need_replication={l}",
    ),
    "scatter-add": (
        lambda t, i, x: t.at[i].add(x, mode="drop"),
        (array(64, 16), array(8, dtype=jnp.int32), X),
        "scatter",
        "([k, j], [i, l], [i, j])->([k, j]) {i=8, j=16, k=64, l=1} reduction={i}"
        " need_replication={l}",
    ),
    "segment_sum": (
        lambda i, x: jax.ops.segment_sum(x, i, 4),
        (array(8, dtype=jnp.int32), X),
        "scatter",
        "([k, j], [i, l], [i, j])->([k, j]) {i=8, j=16, k=4, l=1} reduction={i}"
        " need_replication={l}",
    ),
    "xor of rows": (
        lambda x: lax.reduce_xor(x, (0,)),
        (array(8, 16, dtype=jnp.int32),),
        "reduce",
        "([i, j], [])->([j]) {i=8, j=16} need_replication={i}",
    ),
    "bitwise and of rows": (
        lambda x: lax.reduce_and(x, (0,)),
        (array(8, 16, dtype=jnp.int32),),
        "reduce",
        "([i, j], [])->([j]) {i=8, j=16} need_replication={i}",
    ),
    "logical and of rows": (
        lambda x: jnp.all(x, 0),
        (array(8, 16, dtype=jnp.bool_),),
        "reduce",
        "([i, j], [])->([j]) {i=8, j=16} reduction={i}",
    ),
    "dynamic_slice": (
        lambda x, i: lax.dynamic_slice(x, (i, i), (2, 16)),
        (X, array(dtype=jnp.int32)),
        "dynamic_slice",
        "([i, j], [], [])->([i, j]) {i=8, j=16} need_replication={i}",
    ),
    "convolution": (
        lambda x, w: lax.conv(x, w, (1, 1), "SAME"),
        (array(8, 4, 16, 16), array(32, 4, 3, 3)),
        "convolution",
        "([i, l, j, k], [m, l, n, o])->([i, m, j, k])"
        " {i=8, j=16, k=16, l=4, m=32, n=1, o=1} reduction={l} permutation={j, k}",
    ),
    # A kernel of 3 is not cut in 2 because its stride is 2.
    "strided convolution": (
        lambda x, w: lax.conv(x, w, (2, 2), "SAME"),
        (array(8, 4, 16, 16), array(32, 4, 3, 3)),
        "convolution",
        "([i, n, jk, lm], [o, n, k, m])->([i, o, j, l])"
        " {i=8, j=8, k=2, l=8, m=2, n=4, o=32} reduction={n} need_replication={k, m}"
        " permutation={j, l}",
    ),
    "pooling": (
        lambda x: lax.reduce_window(x, 0.0, lax.add, (1, 2, 2, 1), (1, 2, 2, 1), "VALID"),
        (IMAGES,),
        "reduce_window",
        "([i, j, k, l], [])->([i, j, k, l]) {i=8, j=8, k=8, l=8} permutation={j, k}",
    ),
    "sort": (
        jnp.sort,
        (X,),
        "sort",
        "([i, j])->([i, j]) {i=8, j=16} need_replication={j}",
    ),
    "argsort": (
        lambda x: jnp.argsort(x, axis=0),
        (X,),
        "sort",
        "([i, j], [i, j])->([i, j], [i, j]) {i=8, j=16} need_replication={i}",
    ),
    "top_k": (
        lambda x: lax.top_k(x, 4),
        (X,),
        "top_k",
        "([i, j])->([i, k], [i, l]) {i=8, j=16, k=4, l=4} need_replication={j, k, l}",
    ),
    "top_k of all": (
        lambda x: lax.top_k(x, 16),
        (X,),
        "top_k",
        "([i, j])->([i, k], [i, l]) {i=8, j=16, k=16, l=16} need_replication={j, k, l}",
    ),
    "argmax": (
        lambda x: jnp.argmax(x, -1),
        (X,),
        "reduce",
        "([i, j], [i, j], [], [])->([i], [i]) {i=8, j=16} reduction={j}",
    ),
    "fft": (
        jnp.fft.rfft,
        (X,),
        "fft",
        "([i, j])->([i, j]) {i=8, j=16} need_replication={j}",
    ),
    "cholesky": (
        lambda a: lax.linalg.cholesky(a, symmetrize_input=False),
        (MATRICES,),
        "cholesky",
        "([i, j, k])->([i, j, k]) {i=4, j=8, k=8} need_replication={j, k}",
    ),
    "triangular_solve": (
        lambda a, b: lax.linalg.triangular_solve(a, b, left_side=True, lower=True),
        (MATRICES, MATRICES),
        "triangular_solve",
        "([i, j, l], [i, j, k])->([i, l, k]) {i=4, j=8, k=8, l=8} need_replication={j, k, l}",
    ),
    "lu": (
        lax.linalg.lu,
        (MATRICES,),
        "custom_call @LuDecomposition",
        "([i, j, k])->([i, l, m], [i, n], [i, o])"
        " {i=4, j=8, k=8, l=8, m=8, n=8, o=8} need_replication={j, k, l, m, n, o}",
    ),
    "qr": (
        lambda a: jnp.linalg.qr(a)[0],
        (array(4, 16, 8),),
        "custom_call @Qr",
        "([i, j, k])->([i, l, m], [i, n]) {i=4, j=16, k=8, l=16, m=8, n=8}"
        " need_replication={j, k, l, m, n}",
    ),
    # Shardy's own rule lets the matrices be cut; no device could go on with a piece.
    "eigh": (
        jnp.linalg.eigh,
        (MATRICES,),
        "custom_call @Eigh",
        "([i, j, k])->([i, l, m], [i, n]) {i=4, j=8, k=8, l=8, m=8, n=8}"
        " need_replication={j, k, l, m, n}",
    ),
    # Lowered for CPU: JAX's rule for LAPACK calls names no factor that must stay whole.
    "eig": (
        lambda a: lax.linalg.eig(a, compute_left_eigenvectors=False)[0],
        (MATRICES,),
        "custom_call @lapack_sgeev_ffi",
        "([i, j, k])->([i, l], [i, m], [i, n, o], [i, p, q], [i])"
        " {i=4, j=8, k=8, l=8, m=8, n=8, o=8, p=8, q=8}"
        " need_replication={j, k, l, m, n, o, p, q}",
    ),
    "ragged_dot": (
        lax.ragged_dot,
        (array(16, 8), array(4, 8, 32), array(4, dtype=jnp.int32)),
        "ragged_dot",
        "([i, j], [k, j, l], [m])->([i, l]) {i=16, j=8, k=4, l=32, m=4} reduction={j}"
        " need_replication={i, k, m}",
    ),
    "approx_max_k": (
        lambda x: lax.approx_max_k(x, 4),
        (array(8, 1024),),
        "custom_call @ApproxTopK",
        "([i, j], [i, j], [], [])->([i, k], [i, k]) {i=8, j=1024, k=4} need_replication={j, k}",
    ),
    "rng_bit_generator": (
        lambda k: lax.rng_bit_generator(k, (64, 32))[1],
        (array(4, dtype=jnp.uint32),),
        "rng_bit_generator",
        "([i])->([i], [j, k]) {i=2, j=64, k=32} need_replication={i}",
    ),
    "bitcast to bytes": (
        lambda x: lax.bitcast_convert_type(x, jnp.uint8),
        (X,),
        "bitcast_convert",
        "([i, j])->([i, j, k]) {i=8, j=16, k=4} need_replication={k}",
    ),
    "attention scores": (
        lambda q, k: jnp.einsum("bshd,bthd->bhst", q, k),
        (array(2, 16, 4, 8), array(2, 16, 4, 8)),
        "dot_general",
        "([i, k, j, m], [i, l, j, m])->([i, j, k, l]) {i=2, j=4, k=16, l=16, m=8} reduction={m}",
    ),
}


@pytest.mark.parametrize("case", RULES)
def test_the_rule_of_an_op(case: str) -> None:
    fn, args, name, rule = RULES[case]
    graph = export(fn, *args)
    assert {str(op.rule) for op in named(graph, name)} == {rule}
    assert graph.notes == ()


ELEMENTWISE = {
    "acos": jnp.arccos,
    "asin": lax.asin,
    "atan": jnp.arctan,
    "bessel_i1e": lax.bessel_i1e,
    "digamma": lax.digamma,
    "erf": lax.erf,
    "erf_inv": lax.erf_inv,
    "erfc": lax.erfc,
    "lgamma": lax.lgamma,
    "sinh": jnp.sinh,
    "tan": jnp.tan,
}


@pytest.mark.parametrize("name", ELEMENTWISE)
def test_chlo_ops_that_work_on_elements_are_cut_like_their_operand(name: str) -> None:
    graph = export(ELEMENTWISE[name], X)
    (op, *_) = [op for op in graph.ops if op.kind is OpKind.COMPUTE]
    assert op.name == name
    assert str(op.rule) == "([i, j])->([i, j]) {i=8, j=16}"
    assert op.op_class is OpClass.ELEMENTWISE


def test_two_argument_chlo_ops_are_cut_like_both() -> None:
    for fn, name in ((lax.zeta, "zeta"), (lax.polygamma, "polygamma"), (lax.nextafter, "")):
        graph = export(fn, X, X)
        assert str(one(graph, name or "next_after").rule) == (
            "([i, j], [i, j])->([i, j]) {i=8, j=16}"
        )


def test_the_ragged_gradient_keeps_the_ragged_sum_whole() -> None:
    def fn(a: Any, b: Any, g: Any) -> Any:
        return jax.grad(lambda a, b: lax.ragged_dot(a, b, g).sum(), (0, 1))(a, b)

    graph = export(fn, array(16, 8), array(4, 8, 32), array(4, dtype=jnp.int32))
    assert sorted(str(op.rule) for op in named(graph, "ragged_dot")) == [
        # group by group, rows summed: where a group begins depends on all rows before it
        "([i, j], [i, k], [m])->([l, j, k]) {i=16, j=8, k=32, l=4, m=4} need_replication={i, l, m}",
        "([i, j], [k, l, j], [m])->([i, l]) {i=16, j=32, k=4, l=8, m=4} reduction={j}"
        " need_replication={i, k, m}",
    ]


def test_a_pooling_gradient_scatters_into_windows() -> None:
    def fn(x: Any) -> Any:
        pool = lax.reduce_window(x, -jnp.inf, lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        return pool.sum()

    graph = export(jax.grad(fn), IMAGES)
    op = one(graph, "select_and_scatter")
    assert op.op_class is OpClass.SCATTER
    assert op.rule is not None
    assert op.rule.factor_sizes[0] == 8
    assert 0 not in op.rule.need_replication | op.rule.permutation  # the batch is free


@pytest.mark.parametrize("groups", [1, 2, 8])
def test_grouped_and_transposed_convolutions_export(groups: int) -> None:
    def fn(x: Any, w: Any) -> Any:
        y = lax.conv_general_dilated(
            x,
            w,
            (2, 2),
            "SAME",
            dimension_numbers=("NHWC", "HWIO", "NHWC"),
            feature_group_count=groups,
        )
        return y.sum()

    graph = export(jax.grad(fn, (0, 1)), IMAGES, array(3, 3, 8 // groups, 16))
    assert len(named(graph, "convolution")) == 2
    graph = export(
        lambda x, w: lax.conv_transpose(x, w, (2, 2), "SAME"), IMAGES, array(3, 3, 8, 16)
    )
    assert rule_of(graph, "convolution").startswith("([i, j, k, l], [n, o, l, m])->([i, j, k, m])")


def test_running_sums_keep_their_shape_and_halos() -> None:
    graph = export(lambda x: jnp.cumsum(x, axis=1), X)
    assert rule_of(graph, "reduce_window") == "([i, j], [])->([i, j]) {i=8, j=16} permutation={j}"
    graph = export(lambda x: lax.associative_scan(jnp.multiply, x), X)
    assert {"multiply", "slice", "concatenate"} <= set(names(graph)) | {"pad"}
    assert graph.notes == ()


@pytest.mark.parametrize("implementation", ["threefry2x32", "rbg", "unsafe_rbg"])
def test_random_numbers_of_typed_keys_export_without_notes(implementation: str) -> None:
    def fn(x: Any) -> Any:
        key = jax.random.key(0, impl=implementation)
        drop, noise = jax.random.split(key)
        kept = jax.random.bernoulli(drop, 0.5, x.shape)
        return jnp.where(kept, x, jax.random.normal(noise, x.shape))

    graph = export(fn, X)
    assert graph.notes == ()
    assert ("rng_bit_generator" in names(graph)) == (implementation != "threefry2x32")


@pytest.mark.parametrize(
    "fn",
    [
        lambda k: jax.random.permutation(k, 64),
        lambda k: jax.random.categorical(k, jnp.ones((8, 16))),
        lambda k: jax.random.truncated_normal(k, -2.0, 2.0, (8, 16)),
        lambda k: jax.random.key_data(jax.random.split(k, 8)),
    ],
)
def test_random_ops_on_a_key_argument_export_without_notes(fn: Any) -> None:
    assert export(lambda k: fn(jax.random.wrap_key_data(k)), KEY).notes == ()


def test_a_rejection_sampler_is_a_loop_of_unknown_length_at_the_users_line() -> None:
    graph = export(lambda k: jax.random.gamma(jax.random.wrap_key_data(k), 2.0, (8, 16)), KEY)
    assert not all(region.is_trip_count_known for region in regions(graph, "loop"))
    assert all("(test_module_ops.py)" in note for note in notes(graph))


def test_matrix_solvers_export_without_ops_kept_whole() -> None:
    for fn in (jnp.linalg.solve, lambda a, b: jnp.linalg.inv(a) @ b):
        assert export(fn, MATRICES, MATRICES).notes == ()
    graph = export(jnp.linalg.svd, MATRICES)
    assert not any("kept whole" in note for note in graph.notes)
    graph = export(jax.scipy.linalg.expm, array(8, 8))
    assert not any("kept whole" in note for note in graph.notes)


# -- dtypes and shapes -----------------------------------------------------------------------------


def test_elements_have_the_size_they_are_stored_in() -> None:
    def fn(x: Any) -> Any:
        return (
            x.astype(jnp.int4),
            x.astype(jnp.float8_e4m3fn),
            x.astype(jnp.float4_e2m1fn),
            x > 0,
            x + 1j * x,
            x.astype(jnp.bfloat16),
            x.astype(jnp.int8),
        )

    graph = export(fn, X)
    shown = {
        graph.values[op.operands[0]].dtype: graph.values[op.operands[0]].num_bytes
        for op in graph.results
    }
    assert shown == {
        "i4": 64,
        "f8E4M3FN": 128,
        "f4E2M1FN": 64,
        "i1": 128,
        "complex<f32>": 1024,
        "bf16": 256,
        "i8": 128,
    }


def test_an_odd_number_of_half_bytes_is_rounded_up() -> None:
    graph = export(lambda x: x.astype(jnp.int4), array(3))
    assert graph.values[graph.results[0].operands[0]].num_bytes == 2


def test_low_precision_products_keep_their_types() -> None:
    def fn(x: Any) -> Any:
        small = x.astype(jnp.float8_e4m3fn)
        return lax.dot(small, small.T, preferred_element_type=jnp.float32)

    graph = export(fn, X)
    op = one(graph, "dot_general")
    assert [graph.values[v].dtype for v in (*op.operands, *op.results)] == [
        "f8E4M3FN",
        "f8E4M3FN",
        "f32",
    ]


def test_tensors_without_elements_need_no_note() -> None:
    def fn(x: Any) -> Any:
        return x[:0] @ x.T, x[:0].reshape(0, 4, 4), jnp.concatenate([x[:0], x])

    graph = export(fn, X)
    assert graph.notes == ()
    assert [graph.values[op.operands[0]].shape for op in graph.results] == [
        (0, 8),
        (0, 4, 4),
        (8, 16),
    ]
    assert [graph.maker(op.operands[0]).kind for op in graph.results] == [
        OpKind.FREE,
        OpKind.FREE,
        OpKind.COMPUTE,
    ]


def test_a_program_of_scalars_has_nothing_to_cut_and_no_notes() -> None:
    graph = export(lambda a: jnp.sqrt(a * 2 + 1), array())
    assert graph.notes == ()
    assert names(graph) == ["multiply", "add", "sqrt"]
    assert {str(op.rule) for op in named(graph, "sqrt")} == {"([])->([])"}


def test_what_every_device_can_make_is_free() -> None:
    graph = export(lambda x: x + jnp.arange(16.0) * 2 + jnp.ones((8, 16)) * x.sum(), X)
    free = [op.name for op in graph.ops if op.kind is OpKind.FREE]
    assert "iota" in free
    assert all(
        graph.ops[graph.values[v].op].kind is OpKind.FREE
        for op in named(graph, "iota")
        for v in op.operands
    )
    assert next(line for line in text(graph) if " iota" in line).split("= ")[1] == "free iota"


def test_equal_fills_that_elements_are_computed_with_are_one() -> None:
    graph = export(lambda x, y: (x * 0.5 + 1.0, y * 0.5 + 1.0), X, X)
    free = [op.name for op in graph.ops if op.kind is OpKind.FREE]
    assert free == ["constant", "broadcast_in_dim"] * 2


def test_each_fill_that_something_else_reads_is_its_own() -> None:
    graph = export(lambda x: (x * 0.5, jnp.full_like(x, 0.5) @ x.T), X)
    free = [op.name for op in graph.ops if op.kind is OpKind.FREE]
    assert free.count("broadcast_in_dim") == 2


def test_helper_calls_of_jnp_are_flat() -> None:
    graph = export(lambda x: jnp.where(x > 0, x, 0.0) + jnp.clip(x, 0, 1), X)
    assert len(graph.regions) == 1
    assert "select" in names(graph)


# -- kept whole, and said --------------------------------------------------------------------------


def test_a_callback_is_kept_whole_and_reported_once_with_its_line() -> None:
    def twice(x: Any) -> Any:
        for _ in range(2):
            x = jax.pure_callback(np.sin, X, x)
        return x

    graph = export(twice, X)
    assert notes(graph) == [
        "custom_call @xla_ffi_python_cpu_callback has no sharding rule and is kept whole"
        " (test_module_ops.py)"
    ]
    for op in named(graph, "custom_call @xla_ffi_python_cpu_callback"):
        assert str(op.rule) == (
            "([i, j])->([k, l]) {i=8, j=16, k=8, l=16} need_replication={i, j, k, l}"
        )
        assert op.note == (
            "custom_call @xla_ffi_python_cpu_callback has no sharding rule and is kept whole"
        )


def test_printing_a_scalar_is_no_false_alarm() -> None:
    def fn(x: Any) -> Any:
        jax.debug.print("{}", x.sum())
        return x * 2

    assert export(fn, X).notes == ()


def test_an_interpreted_kernel_is_ordinary_ops() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def fn(x: Any) -> Any:
        shape = jax.ShapeDtypeStruct(x.shape, x.dtype)
        return pl.pallas_call(kernel, out_shape=shape, interpret=True)(x)

    graph = export(fn, X)
    assert "multiply" in names(graph)
    assert graph.notes == ()


def test_a_compiled_kernel_is_kept_whole_and_reported() -> None:
    def kernel(x: Any, out: Any) -> None:
        out[...] = x[...] * 2

    def fn(x: Any) -> Any:
        return pl.pallas_call(kernel, out_shape=jax.ShapeDtypeStruct(x.shape, x.dtype))(x)

    graph = export(fn, array(256, 256))
    assert notes(graph) == [
        "custom_call @tpu_custom_call has no sharding rule and is kept whole (test_module_ops.py)"
    ]


@pytest.mark.parametrize(
    ("fn", "is_sum"), [(jnp.sum, True), (jnp.max, False), (jnp.prod, False), (jnp.argmax, False)]
)
def test_a_reduction_says_whether_it_adds(fn: Any, is_sum: bool) -> None:
    graph = export(lambda x: fn(x, axis=0), X)
    assert [op.is_sum for op in graph.ops if op.op_class is OpClass.REDUCE] == [is_sum]


def test_a_reduction_over_a_dimension_of_size_one_is_a_reshape() -> None:
    graph = export(lambda x: jnp.sum(x[:, None], axis=1), X)
    assert [op.op_class for op in graph.ops if op.name == "reduce"] == [OpClass.COPY]


def test_a_broadcast_that_adds_dimensions_of_size_1_alone_is_a_reshape() -> None:
    graph = export(
        lambda x: (jnp.sin(x)[:, None], jnp.cos(x)[:, None] + jnp.zeros((8, 4))), array(8)
    )
    found = [op.name for op in graph.ops if op.kind is OpKind.COMPUTE]
    assert found.count("reshape") == 2
    assert found.count("broadcast_in_dim") == 1
