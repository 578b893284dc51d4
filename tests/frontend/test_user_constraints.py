"""Constraints as JAX users give them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import pytest
from jax.sharding import AbstractMesh, NamedSharding
from jax.sharding import PartitionSpec as P

from autoshard.constraints import Group, Pin, Uses, sharding_of
from autoshard.errors import ConstraintError, InputError, ShardingError
from autoshard.frontend.device_orders import DeviceOrder
from autoshard.frontend.trace import trace
from autoshard.frontend.user_constraints import (
    asked_inside,
    read_constraints,
    resolve_constraints,
)
from autoshard.sharding import Sharding, parse_mesh_sizes, parse_sharding

MESH = parse_mesh_sizes("x=2,y=4")
ORDER = DeviceOrder(MESH)


def test_nothing_asks_for_nothing() -> None:
    assert read_constraints(None, ORDER) == ()
    assert read_constraints({}, ORDER) == ()
    assert read_constraints([], ORDER) == ()


def test_a_mapping_is_pins() -> None:
    wanted = parse_sharding('[{"x"}, {?}]')
    assert read_constraints({"a": '[{"x"}, {?}]', "b": wanted}, ORDER) == (
        Pin("a", wanted),
        Pin("b", wanted),
    )


def test_terms_mappings_and_files_may_be_mixed(tmp_path: Path) -> None:
    file = tmp_path / "asked.yaml"
    file.write_text("pins: {c: '[{}]'}\n")
    group = Group("a", "b", id=1)
    given: list[Any] = [group, {"a": "[{}]"}, file, [Uses("b", "[{}]")]]
    closed = parse_sharding("[{}]")
    assert read_constraints(given, ORDER) == (
        group,
        Pin("a", closed),
        Pin("c", closed, where=f"{file}:1"),
        Uses("b", closed),
    )
    assert read_constraints(str(file), ORDER) == (Pin("c", closed, where=f"{file}:1"),)


@pytest.mark.parametrize(
    "given", [P("x"), NamedSharding(AbstractMesh((2, 4), ("x", "y")), P("x"))], ids=["P", "named"]
)
def test_a_partition_spec_leaves_out_what_it_does_not_cut(given: Any) -> None:
    (term,) = read_constraints([Pin("a", given)], ORDER)
    assert isinstance(term, Pin)
    said = sharding_of(term)
    assert not isinstance(said, Sharding)
    assert said.for_rank(3) == parse_sharding('[{"x"}, {}, {}]')
    assert str(said) == "P('x',)"
    with pytest.raises(ShardingError):
        said.for_rank(0)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            7,
            "expected constraints, found int\n"
            "  where: constraints\n"
            "  fix: give a mapping from selector to sharding, a list of Pin, Uses, Group, Keep,"
            " Recompute and Offload, or the path of a YAML file",
        ),
        (
            ["params"],
            "expected a Pin, Uses or Group, found str\n"
            "  where: constraints[0]='params'\n"
            "  fix: give a mapping from selector to sharding, a list of Pin, Uses, Group, Keep,"
            " Recompute and Offload, or the path of a YAML file",
        ),
        (
            {"a": 7},
            "expected a sharding, found int\n"
            "  where: pin `a`\n"
            "  fix: give an autoshard.Sharding, its text, a PartitionSpec (or a tuple of its"
            " entries: names of axes, or None) or a NamedSharding",
        ),
        (
            {7: "[{}]"},
            "expected a selector, found int\n"
            "  where: 7\n"
            '  fix: write it as text: "params**", "model.py:42" or "name:hidden"',
        ),
    ],
)
def test_other_things_are_refused(given: Any, message: str) -> None:
    with pytest.raises(InputError) as caught:
        read_constraints(given, ORDER)
    assert str(caught.value) == message


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (
            P("x"),
            "`n`: float32[]: P('x',) has 1 entry for 0 dimensions\n"
            "  where: pin `n`\n"
            "  fix: write one entry per dimension; None or a missing entry leaves it unsharded",
        ),
        (
            P(unreduced={"x"}),
            '`n`: float32[]: the sharding leaves a sum over "x" to be taken, which no plan does\n'
            "  where: pin `n`\n"
            "  fix: ask for the reduced tensor",
        ),
        (
            P(reduced={"x"}),
            "`n`: float32[]: P(reduced={'x'}) has reduced axes, which say nothing of where a tensor"
            " lies\n"
            "  where: pin `n`\n"
            "  fix: leave them out",
        ),
    ],
)
def test_a_partition_spec_that_does_not_fit_names_the_tensor(spec: P, message: str) -> None:
    scalar = jax.ShapeDtypeStruct((), jnp.float32)
    traced = trace(lambda n: n + 1, (scalar,), {}, mesh=MESH)
    with pytest.raises(ConstraintError) as caught:
        resolve_constraints(read_constraints({"n": spec}, ORDER), traced, MESH)
    assert str(caught.value) == message


def test_what_is_asked_inside_carries_the_mesh() -> None:
    traced = trace(
        lambda x: jnp.sin(x) * 2, (jax.ShapeDtypeStruct((8, 16), jnp.float32),), {}, mesh=MESH
    )
    line = traced.source_by_equation["0"].partition(" ")[0].rpartition("/")[2]
    terms = (
        Pin(f"{line} sin", '[{"x"}, {?}]'),
        Uses(f"{line} sin", '<mesh<["r"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"r"}, {}]>'),
        Group("x", f"{line} mul"),
    )
    resolved = resolve_constraints(terms, traced, MESH)
    inside = asked_inside(resolved, traced, MESH)
    assert inside.values == {"0.0": '<mesh<["x"=2, "y"=4]>, [{"x"}, {?}]>'}
    assert inside.uses == {
        "1<0": '<mesh<["r"=8], device_ids=[7, 6, 5, 4, 3, 2, 1, 0]>, [{"r"}, {}]>'
    }
    assert inside.held == {"in.0", "1.0"}


def test_without_constraints_the_shardings_given_are_all_that_is_asked() -> None:
    traced = trace(
        jnp.sin,
        (jax.ShapeDtypeStruct((8, 16), jnp.float32),),
        {},
        mesh=MESH,
        in_shardings=(P("x"),),
    )
    resolved = resolve_constraints((), traced, MESH)
    assert resolved.arguments == traced.user_in
    assert asked_inside(resolved, traced, MESH).values == {}
