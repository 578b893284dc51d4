"""Every example of the documentation runs, prints what is shown, and every link leads somewhere."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.docs.pages import (
    ROOT,
    anchors_of,
    find_pages,
    links_of,
    page_name,
)
from tests.docs.running import ExampleError, PageRun

PAGES = find_pages()

SLOW = (
    "docs/how-to/fit-a-70b-model.md",
    "docs/how-to/flax-and-equinox.md",
    "docs/how-to/recompute-residuals.md",
)
"""Pages whose examples take more than ten seconds of a processor."""

# What a page may use without saying so: the README shows its first lines on a step of one's own.
BEFORE = {
    "README.md": """
import autoshard
from experiments.workloads import get_workload
gpt = get_workload("gpt")
train_step, state, batch = gpt.step, gpt.state, gpt.batch
"""
}


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The current folder, new and empty; modules imported from it are forgotten after the test."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    yield tmp_path
    for name, module in list(sys.modules.items()):
        if (getattr(module, "__file__", None) or "").startswith(str(tmp_path)):
            del sys.modules[name]


@pytest.mark.usefixtures("folder", "compiled_here")
@pytest.mark.parametrize(
    "page",
    [
        pytest.param(page, marks=[pytest.mark.slow] if page_name(page) in SLOW else [])
        for page in PAGES
    ],
    ids=page_name,
)
def test_the_examples_of_a_page_run_as_shown(page: Path) -> None:
    run = PageRun(page)
    exec(BEFORE.get(page_name(page), ""), run.namespace)
    run.run()
    if page.parent.name in ("how-to", "tutorials"):
        assert run.num_run > 0, "a page on how to do something shows how"


def test_an_example_that_prints_something_else_is_found(folder: Path) -> None:
    page = folder / "page.md"
    page.write_text("```python\nprint(1 + 1)\n```\n\n```text\n3\n```\n", encoding="utf-8")
    run = PageRun(page)
    run_error = pytest.raises(ExampleError, match="Expected")
    with pytest.MonkeyPatch.context() as patch, run_error:
        patch.setattr("tests.docs.running.page_name", lambda path: path.name)
        run.run()


@pytest.mark.parametrize("page", PAGES, ids=page_name)
def test_every_link_leads_to_a_page_and_a_heading_that_exist(page: Path) -> None:
    for target in links_of(page):
        if target.startswith("https://"):
            continue
        path, _, anchor = target.partition("#")
        aim = (page.parent / path).resolve() if path else page
        assert aim.exists(), f"[...]({target}) leads nowhere"
        assert aim.is_relative_to(ROOT), f"[...]({target}) leaves the repository"
        if anchor:
            assert anchor in anchors_of(aim), f"[...]({target}): no such heading"


def test_every_page_can_be_reached_from_the_readme() -> None:
    reached: set[Path] = set()
    todo = [ROOT / "README.md"]
    while todo:
        page = todo.pop()
        if page in reached or page.suffix != ".md":
            continue
        reached.add(page)
        paths = [target.partition("#")[0] for target in links_of(page) if "://" not in target]
        todo += [(page.parent / path).resolve() for path in paths if path]
    assert [page_name(page) for page in PAGES if page not in reached] == []
