"""The site builds without a warning, and shows what it shows without a network."""

from __future__ import annotations

import importlib.util
import re
import shutil
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.docs.pages import ROOT, find_pages, prose_of

DOCS = ROOT / "docs"

pytestmark = pytest.mark.skipif(
    any(importlib.util.find_spec(name) is None for name in ("sphinx", "myst_parser", "furo")),
    reason="the docs extra is not installed",
)

_OUTSIDE = r"(?:https?:)?//"
# What a browser fetches by itself: sources of scripts, pictures and frames, and style sheets.
_FETCHED_BY_PAGE = re.compile(
    rf"""<(?:script|img|iframe|source|object|embed)\b[^>]*\b(?:src|data|srcset)=["']{_OUTSIDE}"""
    rf"""|<link\b[^>]*\bhref=["']{_OUTSIDE}""",
    re.IGNORECASE,
)
_FETCHED_BY_STYLE = re.compile(
    rf"""url\(\s*["']?{_OUTSIDE}|@import\s+["']{_OUTSIDE}""", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class Built:
    """A site, or why there is none.

    Args:
        folder: Where it lies.
        exit_code: Of the command that the index names; 0 if there was nothing to complain about.
        complaints: What it wrote to the standard error output.
    """

    folder: Path
    exit_code: int
    complaints: str


def build(pages: Path, folder: Path) -> Built:
    command = [sys.executable, "-m", "sphinx", "-W", "--keep-going", "-q"]
    done = subprocess.run(
        [*command, "-d", str(folder / "read"), str(pages), str(folder / "site")],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    return Built(folder / "site", done.returncode, done.stderr)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(DOCS, tmp_path_factory.mktemp("docs"))


def test_the_site_builds_without_a_warning(site: Built) -> None:
    assert site.complaints == ""
    assert site.exit_code == 0


def test_every_page_is_on_the_site_and_in_the_navigation_of_the_index(site: Built) -> None:
    index = (site.folder / "index.html").read_text(encoding="utf-8")
    navigation = set(re.findall(r'class="toctree-l1"><a [^>]*href="([^"]+)"', index))
    pages = [page.relative_to(DOCS) for page in find_pages() if page.is_relative_to(DOCS)]
    built = {page.with_suffix(".html").as_posix() for page in pages}
    assert [page for page in built if not (site.folder / page).is_file()] == []
    assert navigation == built - {"index.html"}


def test_nothing_that_a_page_shows_comes_from_a_network(site: Built) -> None:
    pages = list(site.folder.rglob("*.html"))
    styles = list(site.folder.rglob("*.css"))
    assert pages
    assert styles
    for file in pages:
        assert _FETCHED_BY_PAGE.findall(file.read_text(encoding="utf-8")) == [], file.name
    for file in (*pages, *styles):
        assert _FETCHED_BY_STYLE.findall(file.read_text(encoding="utf-8")) == [], file.name


@pytest.mark.parametrize(
    "text",
    [
        '<script src="https://example.org/a.js">',
        "<link rel=stylesheet href='//example.org/a.css'>",
        '<img alt="" src="http://example.org/a.png">',
    ],
)
def test_what_a_page_would_fetch_is_found(text: str) -> None:
    assert _FETCHED_BY_PAGE.search(text)
    assert not _FETCHED_BY_PAGE.search(
        text.replace("https:", "").replace("http:", "").replace("//", "")
    )


def test_what_a_style_sheet_would_fetch_is_found() -> None:
    assert _FETCHED_BY_STYLE.search("src: url(https://example.org/font.woff2)")
    assert _FETCHED_BY_STYLE.search("@import '//example.org/a.css'")
    assert not _FETCHED_BY_STYLE.search('url("data:image/svg+xml;<svg xmlns=http://www.w3.org">)')


def test_formulas_and_pictures_are_on_their_pages(site: Built) -> None:
    source = DOCS / "reference" / "the-choice-problem.md"
    num_blocks = sum(line == "$$" for line in prose_of(source)) // 2
    page = (site.folder / "reference" / "the-choice-problem.html").read_text(encoding="utf-8")
    assert num_blocks > 3
    assert page.count('display="block"') == num_blocks
    shown = {picture.name for picture in (site.folder / "_images").iterdir()}
    drawn = {picture.name for picture in (DOCS / "explanation" / "pictures").iterdir()}
    assert shown == drawn - {"report-page.png"}  # the README's


def build_page(text: str, folder: Path) -> Built:
    """A site of an index and one page, configured as ours."""
    pages = folder / "docs"
    shutil.copytree(DOCS / "site", pages / "site")
    shutil.copy(DOCS / "conf.py", pages)
    (pages / "reference").mkdir()
    (pages / "index.md").write_text("# Index\n\n[page](reference/page.md)\n", encoding="utf-8")
    (pages / "reference" / "page.md").write_text(f"# Page\n\n{text}\n", encoding="utf-8")
    return build(pages, folder)


def test_broken_links_fail_the_build_and_are_all_named(tmp_path: Path) -> None:
    broken = ("missing.md", "../index.md#not-there", "#nor-here")
    built = build_page(" ".join(f"[a]({target})" for target in broken), tmp_path)
    assert built.exit_code != 0
    for target in broken:
        assert f"'{target.partition('#')[2] or target}'" in built.complaints


def test_a_formula_that_cannot_be_shown_fails_the_build(tmp_path: Path) -> None:
    built = build_page(r"Formula: $\nosuchcommand$", tmp_path)
    assert built.exit_code != 0
    assert r"reference/page.md: no MathML for '\\nosuchcommand'" in built.complaints
