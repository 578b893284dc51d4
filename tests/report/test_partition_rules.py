"""Regular expressions that give every tensor its sharding."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from autoshard.errors import PlanError
from autoshard.report.partition_rules import NamedSpec, Spec, partition_rules


def named(**specs: Spec) -> list[NamedSpec]:
    return [NamedSpec(segments=tuple(path.split("__")), spec=spec) for path, spec in specs.items()]


def matched(rules: tuple[tuple[str, Spec], ...], path: str) -> Spec:
    """What EasyLM's `match_partition_rules` and t5x give a parameter."""
    return next(spec for rule, spec in rules if re.search(rule, path))


def test_layers_alike_are_one_rule_and_what_is_not_cut_is_the_last_one() -> None:
    cut: Spec = (None, "model")
    tensors = named(
        h__0__attn__kernel=cut, h__0__attn__bias=(), h__1__attn__kernel=cut, h__1__attn__bias=()
    )
    assert partition_rules(tensors) == (("(^|/)kernel$", cut), (".*", ()))


def test_a_rule_is_as_long_as_it_takes_to_tell_tensors_apart() -> None:
    up: Spec = (None, "model")
    down: Spec = ("model",)
    tensors = named(h_0__up__kernel=up, h_0__down__kernel=down, h_1__up__kernel=up)
    assert partition_rules(tensors) == (
        ("(^|/)up/kernel$", up),
        ("(^|/)down/kernel$", down),
        (".*", ()),
    )


def test_a_layer_that_differs_is_told_by_its_number() -> None:
    tensors = named(h_0__w=("x",), h_1__w=("y",), h_2__w=("x",))
    assert partition_rules(tensors)[:-1] == (
        ("(^|/)h_0/w$", ("x",)),
        ("(^|/)h_1/w$", ("y",)),
        ("(^|/)h_2/w$", ("x",)),
    )


def test_a_name_that_ends_another_one_is_matched_whole() -> None:
    tensors = named(w=("x",), mu__w=("y",))
    rules = partition_rules(tensors)
    assert [matched(rules, tensor.path) for tensor in tensors] == [("x",), ("y",)]


def test_two_tensors_of_one_path_and_different_shardings_have_no_rules() -> None:
    tensors = [*named(w=("x",)), *named(w=("y",))]
    with pytest.raises(PlanError, match="two tensors are called w"):
        partition_rules(tensors)


words = st.sampled_from(["h_0", "h_1", "0", "1", "w", "attn", "a.b", "(x"])
paths = st.lists(words, min_size=1, max_size=4).map(tuple)
specs = st.sampled_from([(), ("x",), (None, "y"), (("x", "y"),)])


@given(st.dictionaries(paths, specs, max_size=8))
def test_the_rules_give_every_tensor_its_sharding(tensors: dict[tuple[str, ...], Spec]) -> None:
    given_specs = [NamedSpec(segments=segments, spec=spec) for segments, spec in tensors.items()]
    rules = partition_rules(given_specs)
    assert [matched(rules, one.path) for one in given_specs] == [one.spec for one in given_specs]
