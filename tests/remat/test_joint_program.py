"""Residuals are found after autodiff, and the program written with others computes the same."""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from jax.extend.core import ClosedJaxpr, jaxpr_as_fun

from autoshard.errors import PlanError
from autoshard.frontend.jaxpr_paths import bodies
from autoshard.remat.forward_ops import value_paths
from autoshard.remat.joint_graph import variables
from autoshard.remat.joint_program import JointProgram, keeping_residuals
from tests.remat.programs import (
    LAYERS,
    WIDTH,
    Step,
    accumulated,
    arguments,
    layer,
    leanest,
    scanned,
    unrolled,
)

REMAT = jax.checkpoint(layer)
PROGRAMS = {
    "scanned": scanned(),
    "scanned, rematerialised": scanned(REMAT),
    "scanned, in a jit": jax.jit(scanned(REMAT)),
    "unrolled": unrolled(),
    "unrolled, rematerialised": unrolled(REMAT),
    "accumulated": accumulated(),
}


def traced(step: Step) -> ClosedJaxpr:
    return jax.make_jaxpr(step)(*arguments())


def run(closed: ClosedJaxpr) -> list[Any]:
    return jax.jit(jaxpr_as_fun(closed))(*jax.tree.leaves(arguments()))  # type: ignore[no-any-return]


def count(jaxpr: Any, name: str) -> int:
    """Equations of one primitive, bodies included."""
    inner = [count(body, name) for eqn in jaxpr.eqns for _, body in bodies(eqn)]
    return sum(inner) + len([eqn for eqn in jaxpr.eqns if eqn.primitive.name == name])


def stacks_read_in_reverse(closed: ClosedJaxpr) -> list[str]:
    """Types of what the reverse scan takes of the forward scan."""
    forward, backward = (e for e in closed.jaxpr.eqns if e.primitive.name == "scan")
    made = set(forward.outvars)
    return sorted(str(v.aval) for v in variables(backward.invars) if v in made)


@pytest.mark.parametrize("step", PROGRAMS.values(), ids=PROGRAMS)
@pytest.mark.parametrize("kept", ["everything", "leanest", "everything on the host"])
def test_keeping_other_residuals_changes_no_result(step: Step, kept: str) -> None:
    closed = traced(step)
    joint = JointProgram.of(closed)
    names = leanest(joint) if kept == "leanest" else joint.everything
    if kept == "everything on the host":
        names = on_host(joint)
    rewritten = joint.keeping(names)
    for before, after in zip(run(closed), run(rewritten), strict=True):
        np.testing.assert_allclose(before, after, rtol=2e-6, atol=1e-6)


def on_host(joint: JointProgram) -> list[str]:
    """Names of all that is read, in host memory where a scan stacks it."""
    is_stacked = {str(n): graph.stack_length is not None for n, graph in enumerate(joint.graphs)}
    return [name + "@host" * is_stacked[name.partition(":")[0]] for name in joint.everything]


def test_what_is_offloaded_leaves_and_comes_back_slice_by_slice() -> None:
    joint = JointProgram.of(traced(scanned()))
    rewritten = joint.keeping(on_host(joint))
    stacks = stacks_read_in_reverse(rewritten)
    assert stacks
    assert all("<host>" in stack for stack in stacks)
    forward, backward = (e for e in rewritten.jaxpr.eqns if e.primitive.name == "scan")
    bodies_of = [scan.params["jaxpr"].jaxpr for scan in (forward, backward)]
    assert [count(body, "device_put") for body in bodies_of] == [len(stacks)] * 2
    assert bodies_of[0].eqns[-1].primitive.name == bodies_of[1].eqns[0].primitive.name


def test_the_leanest_scan_keeps_its_carry_alone() -> None:
    joint = JointProgram.of(traced(scanned()))
    assert stacks_read_in_reverse(joint.keeping(leanest(joint))) == ["float32[4,8,16]"]


def test_nothing_kept_is_lost_in_the_normal_form() -> None:
    closed = traced(scanned())
    everything = JointProgram.of(closed).keeping(JointProgram.of(closed).everything)
    assert stacks_read_in_reverse(everything) == stacks_read_in_reverse(closed)


@pytest.mark.parametrize(
    "block",
    [
        REMAT,
        jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_saveable),
        jax.checkpoint(layer, policy=jax.checkpoint_policies.dots_with_no_batch_dims_saveable),
    ],
    ids=["nothing saved", "dots", "dots without batch"],
)
def test_every_checkpoint_policy_comes_back_to_one_set_of_residuals(block: Step) -> None:
    def normal(step: Step) -> ClosedJaxpr:
        joint = JointProgram.of(traced(step))
        return joint.keeping(joint.everything)

    plain, rematerialised = normal(scanned()), normal(scanned(block))
    assert stacks_read_in_reverse(rematerialised) == stacks_read_in_reverse(plain)
    assert count(rematerialised.jaxpr, "dot_general") == count(plain.jaxpr, "dot_general")


def test_a_mask_that_jax_hoists_out_of_the_forward_scan_is_found_again() -> None:
    def masked(x: jax.Array, w: Any) -> Any:
        mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
        scores = jax.nn.softmax(jnp.where(mask, x @ x.T, -1e9))
        return x + jnp.tanh(scores @ x @ w["up"]) @ w["down"]

    plain = JointProgram.of(traced(scanned(masked)))
    again = JointProgram.of(traced(scanned(jax.checkpoint(masked))))
    matmuls = [count(one.keeping(one.everything).jaxpr, "dot_general") for one in (plain, again)]
    assert matmuls[0] == matmuls[1]


def test_a_layer_computed_again_stands_behind_a_barrier_with_a_cotangent() -> None:
    closed = traced(unrolled())
    joint = JointProgram.of(closed)
    lean = joint.keeping(leanest(joint))
    num_segments = len(set(joint.graphs[0].segments))
    assert num_segments > 1
    assert 1 < count(lean.jaxpr, "optimization_barrier") <= num_segments
    assert count(lean.jaxpr, "dot_general") > count(closed.jaxpr, "dot_general")
    made_in_backward = {
        var
        for eqn in lean.jaxpr.eqns
        if "transpose(" in str(eqn.source_info.name_stack)
        for var in eqn.outvars
    }
    barriers = [e for e in lean.jaxpr.eqns if e.primitive.name == "optimization_barrier"]
    assert all(made_in_backward & {*variables(eqn.invars)} for eqn in barriers)


def attending(x: jax.Array, w: Any) -> Any:
    """An MLP block behind masked attention."""
    mask = jnp.tril(jnp.ones((x.shape[0], x.shape[0]), bool))
    scores = jax.nn.softmax(jnp.where(mask, x @ x.T, -1e9))
    return layer(x + scores @ x, w)


def test_layers_with_attention_are_computed_again_from_their_inputs_alone() -> None:
    state, _, key = arguments()
    wide = jnp.ones((2 * WIDTH, WIDTH))
    joint = JointProgram.of(jax.make_jaxpr(unrolled(attending))(state, wide, key))
    (graph,) = joint.graphs
    kept = [v for v in graph.names if v not in graph.free and not graph.is_recomputable(v)]
    arrays = [str(v.aval) for v in kept if not str(v.aval).startswith("key")]
    assert arrays == [f"float32[{2 * WIDTH},{WIDTH}]"] * (LAYERS - 1)


def test_no_constant_of_the_forward_pass_stands_behind_a_barrier() -> None:
    joint = JointProgram.of(traced(unrolled(attending)))
    lean = joint.keeping(leanest(joint)).jaxpr
    held = {
        variable
        for eqn in lean.eqns
        if eqn.primitive.name == "optimization_barrier"
        for variable in variables(eqn.invars)
    }
    masks = [v for v in held if str(v.aval).startswith("bool")]
    assert held
    assert not masks


def test_random_bits_are_computed_again_from_the_same_keys() -> None:
    closed = traced(scanned())
    joint = JointProgram.of(closed)
    lean = joint.keeping(leanest(joint))
    assert count(lean.jaxpr, "random_bits") == 2 * count(closed.jaxpr, "random_bits")


def test_callbacks_run_as_often_as_they_are_written() -> None:
    calls: list[float] = []

    def told(x: jax.Array, w: Any) -> Any:
        jax.debug.callback(lambda value: calls.append(float(value)), x.sum())
        return layer(x, w)

    closed = traced(scanned(told))
    joint = JointProgram.of(closed)
    run(joint.keeping(leanest(joint)))
    jax.effects_barrier()
    assert len(calls) == LAYERS


def test_a_custom_derivative_is_computed_again_as_a_whole() -> None:
    doubled = jax.custom_vjp(lambda x: 2.0 * x)

    def forward(x: jax.Array) -> tuple[jax.Array, jax.Array]:
        return 2.0 * x, jnp.cos(x)

    def backward(saved: jax.Array, cotangent: jax.Array) -> tuple[jax.Array]:
        return (saved * cotangent,)  # not the derivative: only the rule knows

    doubled.defvjp(forward, backward)
    step = scanned(lambda x, w: doubled(layer(x, w)))
    closed = traced(step)
    joint = JointProgram.of(closed)
    lean = joint.keeping(leanest(joint))
    for before, after in zip(run(closed), run(lean), strict=True):
        np.testing.assert_allclose(before, after, rtol=2e-6, atol=1e-6)


def test_a_program_without_a_backward_pass_has_nothing_to_choose() -> None:
    joint = JointProgram.of(jax.make_jaxpr(lambda x: jnp.tanh(x @ x))(jnp.ones((4, 4))))
    assert not joint.has_residuals
    assert joint.everything == ()


def test_a_program_as_written_is_left_alone() -> None:
    closed = traced(scanned())
    assert keeping_residuals(closed, None) is closed


@pytest.mark.parametrize(
    ("names", "what"),
    [
        (["0:77.0"], "the program has no residual called 77.0"),
        (["9:0.0"], "the program has no residual called 9:0.0"),
        ([], "the backward pass needs in.0, which is not kept and cannot be computed again"),
    ],
)
def test_residuals_of_another_program_are_refused(names: list[str], what: str) -> None:
    with pytest.raises(PlanError) as caught:
        JointProgram.of(traced(scanned())).keeping(names)
    assert caught.value.what == what


def test_no_broadcast_cotangent_stands_behind_a_barrier() -> None:
    joint = JointProgram.of(traced(unrolled()))
    lean = joint.keeping(leanest(joint)).jaxpr
    maker = {var: eqn.primitive.name for eqn in lean.eqns for var in eqn.outvars}
    held = [
        variable
        for eqn in lean.eqns
        if eqn.primitive.name == "optimization_barrier"
        for variable in variables(eqn.invars)
    ]
    assert "broadcast_in_dim" not in [maker.get(variable) for variable in held]


def test_the_zeros_that_a_gradient_is_added_to_pass_no_barrier() -> None:
    def loss(table: jax.Array, x: jax.Array) -> Any:
        rows = table[jnp.argsort(jnp.sin(x))]
        return jnp.mean(jnp.tanh(rows @ rows.T) @ rows)

    shapes = jax.ShapeDtypeStruct((8, 4), jnp.float32), jax.ShapeDtypeStruct((6,), jnp.float32)
    joint = JointProgram.of(jax.make_jaxpr(jax.grad(loss))(*shapes))
    (graph,) = joint.graphs
    all_but_indices = [v for v in graph.required if v.aval.shape != (6, 1)]
    lean = joint.keeping([f"0:{graph.names[v]}" for v in all_but_indices]).jaxpr
    held = [
        variable
        for eqn in lean.eqns
        if eqn.primitive.name == "optimization_barrier"
        for variable in variables(eqn.invars)
    ]
    (zeros,) = (eqn.invars[0] for eqn in lean.eqns if eqn.primitive.name == "scatter-add")
    assert held
    assert zeros not in held


def test_value_paths_tell_where_a_value_is_made_and_where_it_is_computed_again() -> None:
    joint = JointProgram.of(traced(scanned()))
    (number,) = (n for n, graph in enumerate(joint.graphs) if graph.stack_length)
    paths = value_paths(joint.written(leanest(joint)))
    matmul = next(
        f"{number}:{position}.0"
        for position, eqn in enumerate(joint.graphs[number].forward)
        if eqn.primitive.name == "dot_general"
    )
    everything = value_paths(joint.written(joint.everything))
    scans = [path.partition(".")[0] for path in (paths.forward[matmul], paths.copied[matmul])]
    assert int(scans[0]) < int(scans[1])
    assert matmul in everything.forward
    assert matmul not in everything.copied


def test_what_crosses_segments_once_a_loop_is_rewritten_is_kept() -> None:
    def step(weights: Any) -> Any:
        def block(x: Any) -> Any:
            halves = x / (jnp.abs(x) + 1)

            def body(carry: Any, row: Any) -> Any:
                mixed = jnp.tanh(carry + jnp.mean(jnp.tanh(row @ row.T)))
                return mixed, mixed

            return jax.lax.scan(body, halves, jnp.concatenate([halves, halves], 2))[0]

        saves = jax.checkpoint_policies.dots_saveable
        return jax.grad(lambda x: jnp.sum(jnp.sin(jax.checkpoint(block, policy=saves)(x))))(weights)

    x = jnp.linspace(-1.0, 1.0, 96).reshape(1, 32, 3)
    joint = JointProgram.of(jax.make_jaxpr(step)(x))
    lean = jaxpr_as_fun(joint.keeping(leanest(joint)))(x)
    np.testing.assert_allclose(lean[0], step(x), rtol=1e-5)
