"""The search for constraints, on propagations small enough to follow by eye."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any
from unittest import mock

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.apply import minimal_set
from autoshard.apply.minimal_set import Miss, minimal_constraints
from autoshard.apply.propagation.propagator import Propagator
from autoshard.frontend.trace import trace
from autoshard.sharding import Sharding, parse_mesh_sizes, parse_sharding

X = parse_sharding('[{"x"}]')
Y = parse_sharding('[{"y"}]')
NONE = parse_sharding("[{}]")
OPEN = parse_sharding("[{?}]")

Shardings = Sequence[Sharding | None]
Fake = Callable[[Shardings, Shardings, Mapping[str, Sharding]], dict[str, Sharding]]


def chain(length: int, calls: list[Mapping[str, Sharding]] | None = None) -> Fake:
    """Values in a row: each is as constrained, else as the one before; the argument is first."""

    def propagate(
        arguments: Shardings, results: Shardings, constraints: Mapping[str, Sharding]
    ) -> dict[str, Sharding]:
        del results
        if calls is not None:
            calls.append(dict(constraints))
        current = arguments[0] or OPEN
        found = {}
        for index in range(length):
            current = constraints.get(f"{index}.0", current)
            found[f"{index}.0"] = current
        return found

    return propagate


def paths(length: int) -> list[str]:
    return [f"{index}.0" for index in range(length)]


def plan_of(*shardings: Sharding) -> dict[str, Sharding]:
    return dict(zip(paths(len(shardings)), shardings, strict=True))


def test_nothing_is_constrained_where_the_boundary_says_it_all() -> None:
    found = minimal_constraints(chain(5), plan_of(*[X] * 5), paths(5), [X], [], {})
    assert found.constraints == {}
    assert found.is_minimal
    assert found.num_propagations == 1


def test_one_constraint_stands_at_each_change() -> None:
    planned = plan_of(X, X, Y, Y, Y, NONE, NONE)
    found = minimal_constraints(chain(7), planned, paths(7), [X], [], {})
    assert found.constraints == {"2.0": Y, "5.0": NONE}
    assert found.is_minimal
    assert found.misses == ()


def test_a_copy_that_nothing_misses_has_no_constraint() -> None:
    copies = {"0.0": "layer", "1.0": "layer"}
    found = minimal_constraints(
        chain(3), plan_of(X, Y, Y), paths(3), [X], [], {}, copies_of=lambda p: copies.get(p, p)
    )
    assert found.constraints == {"1.0": Y}
    assert found.is_minimal


def test_a_few_constraints_are_left_out_one_by_one_at_once() -> None:
    planned = plan_of(*[(X, Y)[index % 2] for index in range(21)])
    found = minimal_constraints(chain(21), planned, paths(21), [X], [], {})
    assert len(found.constraints) == 20
    grown = 6  # of none, 1, 3, 7, 15 and all
    assert found.num_propagations == grown + len(found.constraints)


@pytest.mark.parametrize("length", [4, 7, 30])
def test_no_constraints_are_propagated_twice(length: int) -> None:
    calls: list[Mapping[str, Sharding]] = []
    planned = plan_of(*[(X, Y, NONE)[index % 3] for index in range(length)])
    minimal_constraints(chain(length, calls), planned, paths(length), [X], [], {})
    assert len({frozenset(call) for call in calls}) == len(calls)


def test_openness_makes_no_difference() -> None:
    open_x = parse_sharding('[{"x", ?}]')
    found = minimal_constraints(chain(3), plan_of(open_x, X, open_x), paths(3), [X], [], {})
    assert found.constraints == {}


def test_neighbouring_parts_of_an_axis_are_the_same_as_one_part() -> None:
    split = parse_sharding('[{"x":(1)2, "x":(2)2}]')
    joined = parse_sharding('[{"x":(1)4}]')
    found = minimal_constraints(chain(2), plan_of(joined, joined), paths(2), [split], [], {})
    assert found.constraints == {}


def test_required_constraints_are_always_there_and_come_first() -> None:
    calls: list[Mapping[str, Sharding]] = []
    found = minimal_constraints(
        chain(4, calls), plan_of(X, X, Y, Y), paths(4), [X], [], {"9<1": NONE}
    )
    assert list(found.constraints) == ["9<1", "2.0"]
    assert all(call["9<1"] == NONE for call in calls)


def test_a_value_that_no_constraint_can_change_is_a_miss_with_both_shardings() -> None:
    def stubborn(a: Shardings, r: Shardings, c: Mapping[str, Sharding]) -> dict[str, Sharding]:
        return {**chain(3)(a, r, c), "stubborn": NONE}

    planned = {**plan_of(X, X, Y), "stubborn": X}
    found = minimal_constraints(stubborn, planned, [*paths(3), "stubborn"], [X], [], {})
    assert found.misses == (Miss("stubborn", X, NONE),)
    assert found.constraints == {"2.0": Y}
    assert found.is_minimal


def test_values_that_are_not_reported_are_not_asked_for() -> None:
    found = minimal_constraints(
        chain(1), {"0.0": X, "constant": Y}, ["0.0", "constant"], [X], [], {}
    )
    assert found.constraints == {}
    assert found.misses == ()


@pytest.mark.parametrize("limit", [{"max_propagations": 4}, {"is_over": lambda: True}])
def test_a_set_cut_short_still_reproduces_the_plan_and_says_so(limit: Any) -> None:
    planned = plan_of(*[(X, Y, NONE)[index % 3] for index in range(30)])
    found = minimal_constraints(chain(30), planned, paths(30), [X], [], {}, **limit)
    assert chain(30)([X], [], found.constraints) == planned
    assert not found.is_minimal
    assert 0 < found.untried <= len(found.constraints)
    assert found.misses == ()


def test_every_propagation_is_told_with_the_limit() -> None:
    told: list[str] = []
    planned = plan_of(X, Y, X)
    minimal_constraints(
        chain(3), planned, paths(3), [X], [], {}, max_propagations=10, tell=told.append
    )
    assert told[0] == "propagation 1 of at most 10, 0 constraints"
    told.clear()
    found = minimal_constraints(chain(3), planned, paths(3), [X], [], {}, tell=told.append)
    assert found.is_minimal
    assert told[0] == "propagation 1, 0 constraints"
    assert len(told) == found.num_propagations


def test_a_constraint_that_only_helped_beside_another_goes_with_it() -> None:
    def either(a: Shardings, r: Shardings, c: Mapping[str, Sharding]) -> dict[str, Sharding]:
        """Value 1 makes value 0 and value 2 right too; value 0 makes nothing else right."""
        del a, r
        is_set = "1.0" in c
        return {
            "0.0": X if is_set or "0.0" in c else OPEN,
            "1.0": X if is_set else OPEN,
            "2.0": X if is_set or "2.0" in c else OPEN,
        }

    found = minimal_constraints(either, plan_of(X, X, X), paths(3), [None], [], {})
    assert found.constraints == {"1.0": X}


shardings = st.sampled_from([X, Y, NONE])


@st.composite
def trees(draw: st.DrawFn) -> tuple[list[int], list[Sharding]]:
    """Values that each follow an earlier one, and a plan for them."""
    size = draw(st.integers(1, 25))
    parents = [draw(st.integers(-1, index - 1)) for index in range(size)]
    return parents, [draw(shardings) for _ in range(size)]


def follow(parents: Sequence[int]) -> Fake:
    """Free values follow their parent or, failing that, their first child that has something."""

    def propagate(
        arguments: Shardings, results: Shardings, constraints: Mapping[str, Sharding]
    ) -> dict[str, Sharding]:
        del results
        values: list[Sharding] = []
        for index, parent in enumerate(parents):
            above = (arguments[0] or OPEN) if parent < 0 else values[parent]
            values.append(constraints.get(f"{index}.0", above))
        for index in reversed(range(len(parents))):
            if parents[index] >= 0 and values[parents[index]] == OPEN:
                values[parents[index]] = values[index]
        return {f"{index}.0": value for index, value in enumerate(values)}

    return propagate


@given(tree=trees(), argument=st.sampled_from([X, None]))
def test_every_set_reproduces_its_plan_and_no_constraint_can_be_left_out(
    tree: tuple[list[int], list[Sharding]], argument: Sharding | None
) -> None:
    parents, wanted = tree
    propagate = follow(parents)
    planned = plan_of(*wanted)

    def axes(found: Mapping[str, Sharding]) -> dict[str, object]:
        return {path: [dim.axes for dim in found[path].dims] for path in planned}

    with mock.patch.object(minimal_set, "_TOGETHER", 1):  # else a few of many are left out at once
        found = minimal_constraints(propagate, planned, list(planned), [argument], [], {})
    assert found.is_minimal
    assert axes(propagate([argument], [], found.constraints)) == axes(planned)
    for path in found.constraints:
        fewer = {other: s for other, s in found.constraints.items() if other != path}
        assert axes(propagate([argument], [], fewer)) != axes(planned)


@given(tree=trees())
def test_the_same_question_has_the_same_answer(tree: tuple[list[int], list[Sharding]]) -> None:
    parents, wanted = tree
    sets = [
        minimal_constraints(follow(parents), plan_of(*wanted), paths(len(wanted)), [X], [], {})
        for _ in range(2)
    ]
    assert list(sets[0].constraints.items()) == list(sets[1].constraints.items())
    assert sets[0].num_propagations == sets[1].num_propagations


def test_shardys_own_propagation_needs_two_constraints_to_gather_a_hidden_layer() -> None:
    mesh = parse_mesh_sizes("x=2,y=4")

    def array(*shape: int) -> jax.ShapeDtypeStruct:
        return jax.ShapeDtypeStruct(shape, np.dtype(np.float32))

    def block(h: Any, up: Any, down: Any) -> Any:
        return h + jnp.tanh(h @ up) @ down

    args = (array(8, 16), array(16, 32), array(32, 16))
    traced = trace(block, args, mesh=mesh)
    propagator = Propagator(traced.module, mesh, operand_paths=traced.operand_paths)
    cut = [parse_sharding(t) for t in ('[{"x"}, {}]', '[{}, {"y"}]', '[{"y"}, {}]')]
    free = propagator.propagate(cut)
    dot, tanh, second, added = (path for path in propagator.paths if not path.startswith("in."))
    planned = {path: free[path].closed() for path in propagator.paths}
    # As Shardy has it, but the hidden layer replicated over y in between.
    rows = parse_sharding('[{"x"}, {}]')
    planned |= {dot: rows, tanh: rows, second: rows, added: rows}
    found = minimal_constraints(propagator.propagate, planned, propagator.paths, cut, [], {})
    assert found.misses == ()
    assert found.is_minimal
    # The second one keeps the cut of `down` from coming back to the hidden layer.
    assert found.constraints == {dot: rows, tanh: rows}
