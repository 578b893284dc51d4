"""Constraints go in where their path says, and nowhere else."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax._src.core import check_jaxpr  # private; checked on jax 0.9.2 and 0.10.2
from jax.extend.core import ClosedJaxpr
from jax.sharding import AbstractMesh, PartitionSpec

from autoshard.apply.constrain import constrain_jaxpr
from autoshard.errors import PlanError, ShardingError
from autoshard.frontend.trace import trace
from autoshard.sharding import Sharding, parse_mesh_sizes, parse_sharding

MESH = parse_mesh_sizes("x=2,y=4")
ABSTRACT = AbstractMesh((2, 4), ("x", "y"))
X = jax.ShapeDtypeStruct((8, 16), jnp.float32)
WS = jax.ShapeDtypeStruct((5, 16, 16), jnp.float32)
CUT = parse_sharding('<@mesh, [{"x"}, {"y"}]>')


def program(fn: Callable[..., Any], *args: Any) -> ClosedJaxpr:
    return trace(fn, args, mesh=MESH).jaxpr


def scanned(x: Any, ws: Any) -> Any:
    return jax.lax.scan(lambda c, w: (jnp.tanh(c @ w), jnp.sum(c * c, 1)), x, ws)


def primitives(jaxpr: Any) -> list[str]:
    return [eqn.primitive.name for eqn in jaxpr.eqns]


def test_no_constraints_leave_the_program_itself() -> None:
    closed = program(scanned, X, WS)
    assert constrain_jaxpr(closed, {}, ABSTRACT) is closed


def test_a_value_is_constrained_for_every_use() -> None:
    closed = program(lambda x: (jnp.tanh(x) * 2, jnp.tanh(x)), X)
    found = constrain_jaxpr(closed, {"0.0": CUT}, ABSTRACT)
    assert primitives(found) == ["tanh", "sharding_constraint", *primitives(closed)[1:]]
    constrained = found.eqns[1].outvars[0]
    assert found.eqns[2].invars[0] is constrained


def test_an_argument_is_constrained_first_and_a_result_last() -> None:
    closed = program(jnp.tanh, X)
    found = constrain_jaxpr(closed, {"in.0": CUT, "out<0": CUT}, ABSTRACT)
    assert primitives(found) == ["sharding_constraint", "tanh", "sharding_constraint"]
    assert found.outvars[0] is found.eqns[-1].outvars[0]
    assert found.invars == closed.invars


def test_an_argument_returned_as_it_came_can_be_constrained() -> None:
    closed = program(lambda x: x, X)
    found = constrain_jaxpr(closed, {"out<0": CUT}, ABSTRACT)
    assert primitives(found) == ["sharding_constraint"]


def test_both_operands_of_one_equation_can_be_constrained_apart() -> None:
    closed = program(lambda x: x * x, X)
    rows, columns = parse_sharding('<@mesh, [{"x"}, {}]>'), parse_sharding('<@mesh, [{}, {"x"}]>')
    found = constrain_jaxpr(closed, {"0<0": rows, "0<1": columns}, ABSTRACT)
    assert [eqn.params["sharding"].spec for eqn in found.eqns[:2]] == [
        PartitionSpec("x", None),
        PartitionSpec(None, "x"),
    ]
    assert found.eqns[2].invars == [found.eqns[0].outvars[0], found.eqns[1].outvars[0]]


def test_only_the_bodies_on_the_way_are_copied() -> None:
    def fn(x: Any, ws: Any) -> Any:
        return scanned(x, ws), scanned(x * 2, ws)

    closed = program(fn, X, WS)
    scans = [i for i, name in enumerate(primitives(closed)) if name == "scan"]
    found = constrain_jaxpr(closed, {f"{scans[0]}.jaxpr/1.0": CUT}, ABSTRACT)
    before, after = ([c.eqns[i].params["jaxpr"] for i in scans] for c in (closed, found))
    assert primitives(after[0]) == [
        "dot_general",
        "tanh",
        "sharding_constraint",
        *primitives(before[0])[2:],
    ]
    assert after[1] is before[1]


def test_every_place_inside_a_body_can_be_named() -> None:
    closed = program(scanned, X, WS)
    places = ["in.0", "in.1", "0<0", "0<1", "0.0", "1.0", "out<0"]  # as they stand in the body
    found = constrain_jaxpr(closed, {f"0.jaxpr/{place}": CUT for place in places}, ABSTRACT)
    body = found.eqns[0].params["jaxpr"]
    scopes = [
        str(eqn.source_info.name_stack)
        for eqn in body.eqns
        if eqn.primitive.name == "sharding_constraint"
    ]
    assert scopes == [f"autoshard[0.jaxpr/{place}]" for place in places]
    check_jaxpr(found.jaxpr)


def refusal(constraints: dict[str, Sharding]) -> str:
    def fn(x: Any, ws: Any) -> Any:
        return scanned(x, ws), jnp.sum(x)

    with pytest.raises(PlanError) as caught:
        constrain_jaxpr(program(fn, X, WS), constraints, ABSTRACT)
    return str(caught.value)


def test_a_path_the_program_does_not_have_is_refused() -> None:
    assert refusal({"0.0": CUT, "0.jaxpr/99.0": CUT, "7.branches[0]/1<0": CUT}) == (
        "the program has no value or use called 0.jaxpr/99.0, 7.branches[0]/1<0\n"
        "  where: 2 of 3 constraints\n"
        "  fix: plan again for this program, or pass the function the plan was made for"
    )
    assert refusal({f"{i}.9": CUT for i in range(7)}).startswith(
        "the program has no value or use called 0.9, 1.9, 2.9, 3.9, 4.9 and 2 more\n"
    )


def test_a_value_of_another_rank_is_refused() -> None:
    assert refusal({"in.1": CUT}) == (
        "the plan's sharding has 2 dimensions, the value there is float32[5,16,16]\n"
        "  where: in.1\n"
        "  fix: plan again for this program"
    )


def test_a_scalar_is_refused() -> None:
    assert refusal({"1.0": CUT}) == (
        "the plan constrains a value of type float32[], which cannot be cut\n"
        "  where: 1.0\n"
        "  fix: plan again for this program"
    )


def test_an_axis_a_shard_map_works_over_is_refused_inside_it() -> None:
    spec = PartitionSpec("x")
    mean = jax.shard_map(jnp.tanh, mesh=ABSTRACT, in_specs=spec, out_specs=spec, axis_names={"x"})
    with pytest.raises(ShardingError) as caught:
        constrain_jaxpr(program(mean, X), {"0.jaxpr/0.0": CUT}, ABSTRACT)
    assert str(caught.value) == (
        "axis x is manual inside this shard_map body\n"
        "  where: 0.jaxpr/0.0\n"
        "  fix: use axes the shard_map does not map over"
    )


def twice_multiplied(x: Any, v: Any, w: Any) -> Any:
    return x @ v, x @ w


SQUARE = jax.ShapeDtypeStruct((16, 16), jnp.float32)
ROWS, WHOLE = (parse_sharding(f"<@mesh, {text}>") for text in ('[{"x"}, {}]', "[{}, {}]"))


def test_uses_behind_the_same_stops_share_the_way() -> None:
    closed = program(twice_multiplied, X, SQUARE, SQUARE)
    way = {"0<0~0": CUT, "0<0": WHOLE, "1<0~0": CUT, "1<0": WHOLE}
    found = constrain_jaxpr(closed, way, ABSTRACT)
    assert primitives(found) == ["sharding_constraint"] * 2 + ["dot_general"] * 2
    assert found.eqns[2].invars[0] is found.eqns[3].invars[0] is found.eqns[1].outvars[0]
    check_jaxpr(found.jaxpr)


def in_a_call(x: Any) -> Any:
    return jnp.tanh(x), jax.jit(jnp.sin)(x)


def under_another_name(x: Any) -> Any:
    return jnp.tanh(x), jnp.sin(jax.lax.stop_gradient(x))


def twice_an_operand(x: Any) -> Any:
    return jax.checkpoint(lambda a, b: (jnp.tanh(a), jnp.sin(b)))(x, x)


@pytest.mark.parametrize(
    ("fn", "uses"),
    [
        (in_a_call, ("0<0", "1.jaxpr/0<0")),
        (under_another_name, ("0<0", "2<0")),
        (twice_an_operand, ("0.jaxpr/0<0", "0.jaxpr/1<0")),
    ],
)
def test_uses_of_one_value_share_their_way_in_calls_and_under_other_names(
    fn: Callable[..., Any], uses: Sequence[str]
) -> None:
    way = {path: to for use in uses for path, to in ((f"{use}~0", CUT), (use, WHOLE))}
    found = constrain_jaxpr(program(fn, X), way, ABSTRACT)
    assert str(found).count("sharding_constraint") == 2
    check_jaxpr(found.jaxpr)


def test_a_call_with_constraints_is_replaced_by_its_equations_as_often_as_it_is_called() -> None:
    wave = jax.jit(lambda x: jnp.sin(jnp.tanh(x)))
    closed = program(lambda x: wave(wave(x)), X)
    found = constrain_jaxpr(closed, {"0.jaxpr/0.0": CUT, "1.jaxpr/out<0": ROWS}, ABSTRACT)
    once = ["tanh", "sharding_constraint", "sin"]
    assert primitives(found) == [*once, "tanh", "sin", "sharding_constraint"]
    check_jaxpr(found.jaxpr)


def test_a_use_that_ends_at_a_stop_leaves_the_way_of_the_others_alone() -> None:
    closed = program(lambda x, v: (x @ v, jnp.tanh(x), x @ v.T), X, SQUARE)
    way = {"0<0~0": CUT, "0<0": WHOLE, "1<0": CUT, "3<0~0": CUT, "3<0": WHOLE}
    found = constrain_jaxpr(closed, way, ABSTRACT)
    first, last = (e for e in found.eqns if e.primitive.name == "dot_general")
    assert first.invars[0] is last.invars[0]
    assert primitives(found).count("sharding_constraint") == 3


def test_their_ways_part_where_they_differ() -> None:
    closed = program(twice_multiplied, X, SQUARE, SQUARE)
    way = {"0<0~0": CUT, "0<0": WHOLE, "1<0~0": CUT, "1<0": ROWS}
    found = constrain_jaxpr(closed, way, ABSTRACT)
    assert primitives(found).count("sharding_constraint") == 3
    first, second, third = (e for e in found.eqns if e.primitive.name == "sharding_constraint")
    assert second.invars[0] is third.invars[0] is first.outvars[0]


def test_uses_without_stops_are_constrained_one_by_one() -> None:
    closed = program(twice_multiplied, X, SQUARE, SQUARE)
    found = constrain_jaxpr(closed, {"0<0": WHOLE, "1<0": WHOLE}, ABSTRACT)
    assert primitives(found).count("sharding_constraint") == 2


def test_reads_with_one_path_share_one_constraint() -> None:
    def fn(x: Any) -> Any:
        return jnp.tanh(x), jnp.sin(x), jnp.cos(x)

    closed = program(fn, X)
    found = constrain_jaxpr(closed, {"0<0&2<0": CUT}, ABSTRACT)
    assert primitives(found) == ["sharding_constraint", "tanh", "sin", "cos"]
    constrained = found.eqns[0].outvars[0]
    reads = [eqn.invars[0] for eqn in found.eqns[1:]]
    assert [read is constrained for read in reads] == [True, False, True]


def test_a_read_that_the_program_does_not_have_is_refused_among_others() -> None:
    assert "0<0&9<0" in refusal({"0<0&9<0": CUT})
