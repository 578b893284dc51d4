"""Golden files, in the folder `goldens` beside the test; `--update-goldens` writes them anew."""

from __future__ import annotations

from collections.abc import Callable

import pytest


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-goldens", action="store_true", help="write the golden files anew")


@pytest.fixture
def check_golden(request: pytest.FixtureRequest) -> Callable[[str, str], None]:
    """Compare text with a golden file, or write the file when asked to."""
    update = request.config.getoption("--update-goldens", default=False)

    def check(name: str, text: str) -> None:
        path = request.path.parent / "goldens" / name
        if update:
            path.write_text(text, encoding="utf-8")
        assert text == path.read_text(encoding="utf-8")

    return check
