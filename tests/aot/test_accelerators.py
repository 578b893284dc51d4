"""Real compilers for machines that are not there; skipped where an extra is not installed."""

from __future__ import annotations

import gzip
import importlib.util
import json
import re
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import PartitionSpec as P

import autoshard
from autoshard.aot.targets import parse_target
from autoshard.errors import InputError

BF16 = jnp.bfloat16

needs_tpu = pytest.mark.skipif(
    importlib.util.find_spec("libtpu") is None, reason="needs autoshard[tpu]"
)
needs_gpu = pytest.mark.skipif(
    importlib.util.find_spec("jax_cuda13_plugin") is None, reason="needs autoshard[gpu-verify]"
)
pytestmark = pytest.mark.slow


def planned(num_devices: int, hardware: str) -> autoshard.Plan:
    """A product whose sum over `model` is whole on every device, and one that is gathered."""

    def predict(w1: jax.Array, w2: jax.Array, x: jax.Array) -> Any:
        return jnp.tanh(x @ w1) @ w2

    return autoshard.optimize(
        predict,
        jax.ShapeDtypeStruct((512, 2048), BF16),
        jax.ShapeDtypeStruct((2048, 512), BF16),
        jax.ShapeDtypeStruct((1536, 512), BF16),
        mesh=f"data={num_devices // 4},model=4",
        hardware=hardware,
        in_shardings=(P(None, "model"), P("model"), P("data")),
        out_shardings=P("data"),
        baselines=False,
    )


TPUS = ["v4:2x2x2", "v5e:2x4", "v5p:2x2x2", "v6e:2x4", "tpu7x:2x2x1", "2x v5e:2x4"]
GPUS = ["8xA100", "8xH100", "2x8xH100", "8xH200", "8xB200"]


@pytest.mark.parametrize(
    "topology",
    [pytest.param(name, marks=needs_tpu) for name in TPUS]
    + [pytest.param(name, marks=needs_gpu) for name in GPUS],
)
def test_a_plan_compiles_for_every_kind_of_machine_with_the_bytes_planned(topology: str) -> None:
    target = parse_target(topology)
    assert target.num_devices is not None
    found = planned(target.num_devices, target.hardware).verify(topology)
    assert found.status == "compiled"
    assert found.compiled_bytes == found.predicted_bytes > 0
    assert found.memory is not None
    assert found.memory.argument_bytes == found.memory.predicted_argument_bytes
    if target.kind in {"v5e", "v5p"}:
        assert found.time is not None
        assert found.time.cycles > 0


@needs_tpu
def test_a_slice_that_cannot_be_is_refused_with_those_that_can() -> None:
    with pytest.raises(InputError) as caught:
        planned(12, "tpu-v5e").verify("v5e:3x4")
    told = str(caught.value)
    assert told.startswith("the compiler knows no such topology: INVALID_ARGUMENT: Topology layout")
    assert told.endswith(
        "  fix: write one of 1x1, 1x2, 2x2, 2x4, 4x4, 4x8, 8x8, 8x16, 16x16 behind v5e:"
    )


@needs_tpu
def test_a_program_too_large_for_the_device_is_told_with_the_compilers_figures() -> None:
    def ordered(x: jax.Array) -> Any:
        return jnp.sort(x, axis=0)

    plan = autoshard.optimize(
        ordered,
        jax.ShapeDtypeStruct((2**16, 2**16), jnp.float32),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        memory_budget=None,
        in_shardings=P(),
        out_shardings=P(),
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.status == "out of memory"
    assert "exceeds available HBM" in found.failures[0].what


@needs_tpu
def test_the_flag_that_switches_windowed_einsums_off_is_one_the_compiler_knows() -> None:
    assert planned(8, "tpu-v5e").verify("v5e:2x4").status == "compiled"


@needs_gpu
def test_the_flag_is_known_to_the_gpu_compiler_too() -> None:
    assert planned(8, "h100").verify("8xH100").status == "compiled"


@pytest.mark.parametrize(
    "topology",
    [pytest.param("v5e:2x4", marks=needs_tpu), pytest.param("8xH100", marks=needs_gpu)],
)
def test_gradients_added_up_over_microbatches_are_summed_once(topology: str) -> None:
    def step(weights: jax.Array, batches: jax.Array) -> Any:
        def body(total: jax.Array, batch: jax.Array) -> tuple[jax.Array, None]:
            return total + jax.grad(lambda w: jnp.tanh(batch @ w).sum())(weights), None

        return jax.lax.scan(body, jnp.zeros_like(weights), batches)[0]

    plan = autoshard.optimize(
        step,
        jax.ShapeDtypeStruct((256, 1024), BF16),
        jax.ShapeDtypeStruct((8, 65536, 256), BF16),
        mesh="data=8",
        hardware=parse_target(topology).hardware,
        in_shardings=(P(), P(None, "data")),
        out_shardings=P(),
        baselines=False,
    )
    found = plan.verify(topology)
    assert found.compiled_bytes == found.predicted_bytes == 256 * 1024 * 2
    assert [row.compiled_count for row in found.collectives] == [1]


@pytest.mark.parametrize(
    "topology",
    [pytest.param("v5e:2x4", marks=needs_tpu), pytest.param("8xH100", marks=needs_gpu)],
)
@pytest.mark.parametrize("looks_up", [False, True], ids=["products", "scatters"])
def test_sums_that_are_added_to_one_another_are_taken_once(topology: str, looks_up: bool) -> None:
    def scattered(rows: jax.Array, indices: jax.Array) -> Any:
        return jnp.zeros((256, 1024), BF16).at[indices[:, 0]].add(rows)

    def added(x: jax.Array, a: jax.Array, v: jax.Array, b: jax.Array, w: jax.Array) -> Any:
        if looks_up:
            return jnp.tanh(x) + scattered(v, a) + scattered(w, b)
        return a @ v + b @ w

    shape, dtype = ((65536, 1), jnp.int32) if looks_up else ((256, 65536), BF16)
    left, right = jax.ShapeDtypeStruct(shape, dtype), jax.ShapeDtypeStruct((65536, 1024), BF16)
    cut = P("data") if looks_up else P(None, "data")
    plan = autoshard.optimize(
        added,
        jax.ShapeDtypeStruct((256, 1024), BF16),
        *(left, right, left, right),
        mesh="data=8",
        hardware=parse_target(topology).hardware,
        in_shardings=(P(), cut, P("data"), cut, P("data")),
        out_shardings=P(),
        baselines=False,
    )
    found = plan.verify(topology)
    assert found.compiled_bytes == found.predicted_bytes == 256 * 1024 * 2


@needs_tpu
@pytest.mark.parametrize(("precision", "bits"), [(None, 16), ("high", 32), ("highest", 32)])
def test_operands_of_products_travel_in_the_elements_that_are_multiplied(
    precision: str | None, bits: int
) -> None:
    def predict(x: jax.Array, w: jax.Array) -> Any:
        return jnp.dot(x, w, precision=precision)

    plan = autoshard.optimize(
        predict,
        jax.ShapeDtypeStruct((256, 512), jnp.float32),
        jax.ShapeDtypeStruct((512, 4096), jnp.float32),
        mesh="data=8",
        hardware="tpu-v5e",
        in_shardings=(P("data"), P(None, "data")),
        out_shardings=P(None, "data"),
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.compiled_bytes == found.predicted_bytes == 256 * 512 * bits // 8


BOTH = ("data", "model")


@needs_tpu
@pytest.mark.parametrize(
    ("topology", "shape", "spec"),
    [
        ("v5e:2x4", (512, 1024), P(None, BOTH)),
        ("v5e:2x4", (512, 512), P(None, BOTH)),
        ("v5e:2x4", (512, 1024), P("data", "model")),
        ("v5e:2x4", (65536,), P(BOTH)),
        ("v5p:2x2x2", (512, 1024), P(BOTH)),
        ("v5e:4x4", (1024, 1024), P(BOTH)),
    ],
)
def test_sums_are_scattered_where_the_plan_says_so(
    topology: str, shape: tuple[int, ...], spec: P
) -> None:
    target = parse_target(topology)
    assert target.num_devices is not None
    plan = autoshard.optimize(
        lambda x: x.sum(0),
        jax.ShapeDtypeStruct((64, *shape), jnp.float32),
        mesh=f"data={target.num_devices // 4},model=4",
        hardware=target.hardware,
        in_shardings=P(BOTH),
        out_shardings=spec,
        baselines=False,
    )
    rows = plan.verify(topology).collectives
    assert {row.kind for row in rows} & {"all-reduce", "reduce-scatter"}
    assert [row.predicted_bytes for row in rows] == [row.compiled_bytes for row in rows]


@needs_tpu
def test_the_gradient_of_a_table_is_scattered_not_its_updates_gathered() -> None:
    def gradient(rows: jax.Array, updates: jax.Array) -> Any:
        return jnp.zeros((1024, 512)).at[rows].add(updates)

    plan = autoshard.optimize(
        gradient,
        jax.ShapeDtypeStruct((32768,), jnp.int32),
        jax.ShapeDtypeStruct((32768, 512), jnp.float32),
        mesh="data=8",
        hardware="tpu-v5e",
        in_shardings=(P("data"), P("data")),
        out_shardings=P("data"),
        baselines=False,
    )
    (row,) = plan.verify("v5e:2x4").collectives
    assert row.kind == "reduce-scatter"
    assert row.predicted_bytes == row.compiled_bytes == 1024 * 512 * 4


@needs_tpu
@pytest.mark.parametrize("cut", [P("data"), P(None, "data")], ids=["rows", "columns"])
def test_a_transposed_product_is_scattered_as_its_transpose_lies(cut: P) -> None:
    def gradient(x: jax.Array, y: jax.Array) -> Any:
        return jax.lax.dot_general(y, x, (((0,), (0,)), ((), ()))).T

    operand = jax.ShapeDtypeStruct((65536, 1024), BF16)
    plan = autoshard.optimize(
        gradient,
        operand,
        operand,
        mesh="data=8",
        hardware="tpu-v5e",
        in_shardings=(P("data"), P("data")),
        out_shardings=cut,
        baselines=False,
    )
    rows = plan.verify("v5e:2x4").collectives
    assert "reduce-scatter" in {row.kind for row in rows}
    assert [row.predicted_bytes for row in rows] == [row.compiled_bytes for row in rows]


@needs_tpu
def test_what_is_added_to_a_scatter_does_not_change_where_it_scatters() -> None:
    def add_up(x: jax.Array, rows: jax.Array, updates: jax.Array) -> Any:
        return x + jnp.zeros_like(x).at[rows].add(updates)

    columns = P(None, "data")
    plan = autoshard.optimize(
        add_up,
        jax.ShapeDtypeStruct((1024, 1024), jnp.float32),
        jax.ShapeDtypeStruct((8192,), jnp.int32),
        jax.ShapeDtypeStruct((8192, 1024), jnp.float32),
        mesh="data=8",
        hardware="tpu-v5e",
        in_shardings=(P(), P(), columns),
        out_shardings=columns,
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.compiled_bytes == found.predicted_bytes == 0


@needs_tpu
def test_sums_on_to_the_batch_of_a_product_are_scattered_not_the_batch_gathered() -> None:
    def combine(weights: jax.Array, experts: jax.Array) -> Any:
        return jnp.einsum("bsc,bcd->bsd", weights, experts)

    plan = autoshard.optimize(
        combine,
        jax.ShapeDtypeStruct((64, 128, 4096), BF16),
        jax.ShapeDtypeStruct((64, 4096, 256), BF16),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        in_shardings=(P("data", None, "model"), P("data", "model")),
        out_shardings=P(BOTH),
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.predicted_bytes == 32 * 128 * 256 * 2
    assert found.compiled_bytes == pytest.approx(found.predicted_bytes, rel=0.01)


@needs_tpu
def test_what_a_loop_slices_travels_in_the_elements_that_its_products_take() -> None:
    def run(w: jax.Array, rows: jax.Array, start: jax.Array) -> Any:
        return jax.lax.scan(lambda h, x: (jnp.tanh(x @ w) + h, None), start, rows)[0]

    columns = P(None, BOTH)
    plan = autoshard.optimize(
        run,
        jax.ShapeDtypeStruct((512, 512), jnp.float32),
        jax.ShapeDtypeStruct((16, 64, 512), jnp.float32),
        jax.ShapeDtypeStruct((64, 512), jnp.float32),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        in_shardings=(columns, P(None, None, BOTH), columns),
        out_shardings=columns,
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.compiled_bytes == found.predicted_bytes == 16 * 64 * 512 * 2


def trained(hardware: str) -> autoshard.Plan:
    """A step of training with momentum: weights whole, a batch in pieces, gradients summed."""

    def loss(weights: Any, x: jax.Array) -> Any:
        for w in weights:
            x = jax.nn.gelu(x @ w)
        return jnp.mean(x**2)

    def step(weights: Any, momenta: Any, x: jax.Array) -> Any:
        gradients = jax.grad(loss)(weights, x)
        momenta = [0.9 * m + g for m, g in zip(momenta, gradients, strict=True)]
        return [w - 0.1 * m for w, m in zip(weights, momenta, strict=True)], momenta

    weights = [jax.ShapeDtypeStruct((2048, 2048), jnp.float32)] * 6
    whole, batch = [P()] * 6, jax.ShapeDtypeStruct((16384, 2048), jnp.float32)
    return autoshard.optimize(
        step,
        weights,
        weights,
        batch,
        mesh="data=8",
        hardware=hardware,
        in_shardings=(whole, whole, P("data")),
        out_shardings=(whole, whole),
        donate_argnums=(0, 1),
        baselines=False,
    )


@pytest.mark.parametrize(
    ("topology", "hardware"),
    [
        pytest.param("v5e:2x4", "tpu-v5e", marks=needs_tpu),
        pytest.param("8xH100", "h100", marks=needs_gpu),
    ],
)
def test_a_step_of_training_holds_what_was_planned(topology: str, hardware: str) -> None:
    found = trained(hardware).verify(topology)
    assert found.memory is not None
    assert found.memory.temp_bytes > 0
    assert found.memory.predicted_bytes == pytest.approx(found.memory.compiled_bytes, rel=0.1)


@needs_tpu
def test_memory_on_a_tpu_is_what_the_compilers_report_says(tmp_path: Path) -> None:
    found = trained("tpu-v5e").verify("v5e:2x4", keep_in=tmp_path)
    (kept,) = tmp_path.iterdir()
    compiled = json.loads(gzip.decompress(kept.read_bytes()))
    assert found.memory is not None
    told = re.search(r"Memory Space: default.*\nTotal bytes: (\d+)", compiled["memory_report"])
    assert told is not None
    assert found.memory.compiled_bytes == int(told[1])
    sizes = compiled["memory"]
    parts = sizes["argument"] + sizes["output"] - sizes["alias"] + sizes["temp"]
    assert found.memory.argument_bytes < found.memory.compiled_bytes <= parts


@needs_tpu
def test_an_outer_product_moves_what_was_planned() -> None:
    """XLA writes it as a product before it propagates, which then takes other ways."""

    def loss(x: Any, widen: Any, mix: Any) -> Any:
        return (((x[..., None] @ widen) @ mix) ** 2).sum()

    shapes = ((32, 512), (1, 256), (256, 256))
    plan = autoshard.optimize(
        jax.grad(loss, (1, 2)),
        *(jax.ShapeDtypeStruct(shape, jnp.float32) for shape in shapes),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        in_shardings=(P(("data", "model")), P(), P()),
    )
    found = plan.verify("v5e:2x4")
    assert found.compiled_bytes == plan.data.collective_bytes


@needs_tpu
@pytest.mark.parametrize("is_adagrad", [False, True], ids=["SGD", "Adagrad"])
def test_tables_of_narrow_rows_are_held_in_copies(*, is_adagrad: bool) -> None:
    def step(state: Any, indices: Any) -> Any:
        def loss(tables: Any) -> Any:
            taken = [table[indices[:, place]] for place, table in enumerate(tables)]
            return (jnp.concatenate(taken, -1) ** 2).sum()

        tables, moments = state
        grads = jax.grad(loss)(tables)
        if is_adagrad:
            moments = [m + g**2 for m, g in zip(moments, grads, strict=True)]
            grads = [g * jax.lax.rsqrt(m + 1e-6) for m, g in zip(moments, grads, strict=True)]
        return [table - 0.1 * g for table, g in zip(tables, grads, strict=True)], moments

    tables = [jax.ShapeDtypeStruct((200_000, 64), jnp.float32)] * 8
    plan = autoshard.optimize(
        step,
        (tables, tables if is_adagrad else []),
        jax.ShapeDtypeStruct((8192, 8), jnp.int32),
        mesh="data=2,model=4",
        hardware="tpu-v5p",
        in_shardings=(P(("data", "model")), P()),
        donate_argnums=0,
        baselines=False,
    )
    found = plan.verify("v5p:2x2x2").memory
    assert found is not None
    assert found.predicted_bytes == pytest.approx(
        found.compiled_bytes, rel=0.2 if is_adagrad else 0.1
    )


@needs_tpu
def test_logits_of_all_but_the_last_token_take_the_time_that_was_planned() -> None:
    def loss(weight: Any, x: Any, tokens: Any) -> Any:
        logits = (jnp.tanh(x) @ weight.astype(BF16)).astype(jnp.float32)[:, :-1]
        labels = jnp.take_along_axis(logits, tokens[:, 1:, None], -1)[..., 0]
        return (jax.nn.logsumexp(logits, -1) - labels).mean()

    plan = autoshard.optimize(
        jax.value_and_grad(loss),
        jax.ShapeDtypeStruct((1024, 32_000), jnp.float32),
        jax.ShapeDtypeStruct((32, 1024, 1024), BF16),
        jax.ShapeDtypeStruct((32, 1024), jnp.int32),
        mesh="data=8",
        hardware="tpu-v5e",
        in_shardings=(P(), P("data"), P("data")),
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.predicted_bytes == found.compiled_bytes
    assert found.time is not None
    assert found.time.predicted_compute_seconds == pytest.approx(
        found.time.compute_seconds, rel=0.15
    )


@needs_tpu
@pytest.mark.parametrize(
    ("topology", "hardware"), [("v5e:2x4", "tpu-v5e"), ("v5p:2x2x2", "tpu-v5p")]
)
def test_the_backward_pass_of_attention_holds_no_gradient_of_scores(
    topology: str, hardware: str
) -> None:
    """Its last two matmuls compute it of the scores and of what came in, in float32."""

    def step(weights: Any, x: Any) -> Any:
        def loss(weights: Any) -> Any:
            into, out = weights
            query, key, value = jnp.moveaxis((x @ into).reshape(*x.shape[:2], 3, 8, 64), 2, 0)
            made = jax.nn.dot_product_attention(query, key, value, is_causal=True)
            return ((made.reshape(x.shape) @ out).astype(jnp.float32) ** 2).mean()

        return jax.grad(loss)(weights)

    shapes = [(512, 3 * 512), (512, 512), (16, 2048, 512)]
    into, out, x = (jax.ShapeDtypeStruct(shape, jnp.bfloat16) for shape in shapes)
    plan = autoshard.optimize(
        step,
        (into, out),
        x,
        mesh="data=2,model=4",
        hardware=hardware,
        in_shardings=(P(), P(("data", "model"))),
        baselines=False,
    )
    found = plan.verify(topology).memory
    assert found is not None
    assert found.predicted_bytes == pytest.approx(found.compiled_bytes, rel=0.05)


@needs_tpu
def test_dispatch_by_one_hot_vectors_moves_what_was_planned() -> None:
    """XLA writes the matmul of one-hot vectors as a sum before it propagates."""
    batch, length, slots = 16, 64, 8

    def dispatch(gates: Any, places: Any, tokens: Any, weights: Any) -> Any:
        slot = jax.nn.one_hot(places, slots)
        sent = jnp.einsum("btke,btkec->btec", gates, slot).astype(BF16)
        return jnp.einsum("btec,btd,edf->ebcf", sent, tokens, weights)

    by_expert, by_batch = P(None, None, None, ("data", "model")), P(("data", "model"))
    plan = autoshard.optimize(
        dispatch,
        jax.ShapeDtypeStruct((batch, length, 2, 8), jnp.float32),
        jax.ShapeDtypeStruct((batch, length, 2, 8), jnp.int32),
        jax.ShapeDtypeStruct((batch, length, 256), BF16),
        jax.ShapeDtypeStruct((8, 256, 512), BF16),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        in_shardings=(by_expert, by_expert, by_batch, by_batch),
        out_shardings=by_batch,
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.compiled_bytes == plan.data.collective_bytes > 0


@needs_tpu
@pytest.mark.parametrize("is_windowed", [False, True])
def test_decoding_one_query_a_head_takes_as_long_as_planned(*, is_windowed: bool) -> None:
    batch, length, heads, width = 32, 1024, 16, 128

    def write(cache: Any, row: Any, place: Any) -> Any:
        return jax.lax.dynamic_update_slice(cache, row[None], (place, 0, 0))

    def decode(cache: Any, query: Any, places: Any) -> Any:
        rows = query.reshape(batch, heads, width)
        if is_windowed:
            cache = jax.vmap(write)(cache, rows, places)
        else:
            cache = cache.at[jnp.arange(batch), places].set(rows)
        scores = jnp.einsum("bhd,bthd->bht", rows, cache).astype(jnp.float32)
        return cache, jnp.einsum("bht,bthd->bhd", jax.nn.softmax(scores).astype(BF16), cache)

    cut = P(("data", "model"))
    plan = autoshard.optimize(
        decode,
        jax.ShapeDtypeStruct((batch, length, heads, width), BF16),
        jax.ShapeDtypeStruct((batch, heads * width), BF16),
        jax.ShapeDtypeStruct((batch,), jnp.int32),
        mesh="data=2,model=4",
        hardware="tpu-v5e",
        in_shardings=(cut, cut, cut),
        out_shardings=(cut, cut),
        donate_argnums=0,
        baselines=False,
    )
    found = plan.verify("v5e:2x4")
    assert found.time is not None
    assert found.time.compute_seconds == pytest.approx(plan.data.compute_seconds, rel=0.2)
