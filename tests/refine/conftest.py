"""These tests say themselves what a compiler makes: whether it is installed is no matter."""

from __future__ import annotations

import pytest


@pytest.fixture(autouse=True)
def compilers(monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest) -> None:
    """Every compiler counts as installed, but for the tests that run one."""
    if request.node.get_closest_marker("slow") is None:
        monkeypatch.setattr("autoshard.aot.installed._is_there", lambda _: True)
