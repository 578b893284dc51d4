"""Shardings in `PartitionSpec`'s words."""

from __future__ import annotations

import pytest

from autoshard.sharding import parse_sharding
from autoshard.sharding.spec_text import format_spec


@pytest.mark.parametrize(
    ("sharding", "spec"),
    [
        ("[]", "P()"),
        ("[{}, {}]", "P()"),
        ('[{"x"}, {}]', "P('x')"),
        ('[{}, {"x", "y"}]', "P(None, ('x', 'y'))"),
        ('[{"x":(1)2}]', "P('x:(1)2')"),
        ("[{?}, {}]", "P(P.UNCONSTRAINED)"),
        ('[{"x", ?}]', "P(('x', ...))"),
        ('[{"x"}], unreduced={"y"}', "P('x', unreduced={'y'})"),
        ('[{?}], replicated={"x"}', "P(P.UNCONSTRAINED, replicated={'x'})"),
    ],
)
def test_a_sharding_as_a_partition_spec(sharding: str, spec: str) -> None:
    assert format_spec(parse_sharding(sharding)) == spec


def test_another_mesh_than_the_plans_is_named() -> None:
    sharding = parse_sharding('<mesh<["p"=2, "q"=2], device_ids=[0, 1, 3, 2]>, [{"p"}, {"q"}]>')
    assert format_spec(sharding) == "P('p', 'q') on mesh (p=2, q=2; device_ids=[0, 1, 3, 2])"
