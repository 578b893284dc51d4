"""Paths of several reads."""

from __future__ import annotations

import pytest

from autoshard.use_paths import join_uses, split_uses


@pytest.mark.parametrize(
    ("path", "uses"),
    [
        ("38<1", ("38<1",)),
        ("38<1&52<0", ("38<1", "52<0")),
        (
            "7.jaxpr/2.branches[1]/38<1&52<0",
            ("7.jaxpr/2.branches[1]/38<1", "7.jaxpr/2.branches[1]/52<0"),
        ),
        ("7.0", ("7.0",)),
    ],
)
def test_reads_of_one_body_are_joined_and_split_again(path: str, uses: tuple[str, ...]) -> None:
    assert split_uses(path) == uses
    assert join_uses(uses) == path
