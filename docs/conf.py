"""How the site is built from these pages.

    python -m sphinx -W --keep-going docs build/site

* Navigation follows the index: each folder is a chapter, its pages in the order in which the index
  first links to them. A page that the index forgets fails the build, as any warning does.
* Formulas become MathML while the site is built. Nothing that a page shows comes from a network.
"""

from __future__ import annotations

import re

from docutils import nodes
from docutils.utils.math.latex2mathml import tex2mathml
from sphinx.application import Sphinx
from sphinx.errors import SphinxError
from sphinx.writers.html5 import HTML5Translator

from autoshard.version import VERSION

project = "autoshard"
version = release = VERSION

extensions = ["myst_parser"]
myst_enable_extensions = ["dollarmath"]
myst_heading_anchors = 4

html_theme = "furo"
html_title = f"autoshard {VERSION}"
html_static_path = ["site"]
html_css_files = ["site.css"]
html_math_renderer = "mathml"
html_show_copyright = False
html_copy_source = False
html_use_index = False

CHAPTERS = {
    "tutorials": "Learn",
    "how-to": "How do I ...",
    "reference": "What exactly is ...",
    "explanation": "Why ...",
}


def add_navigation(_: Sphinx, page: str, source: list[str]) -> None:
    """Appends a table of contents per chapter to the index, as Sphinx reads it."""
    if page != "index":
        return
    links = dict.fromkeys(re.findall(r"\(([\w/-]+)\.md[)#]", source[0]))
    for folder, caption in CHAPTERS.items():
        pages = [link for link in links if link.startswith(f"{folder}/")]
        lines = ["", "```{toctree}", ":hidden:", f":caption: {caption}", *pages, "```", ""]
        source[0] += "\n".join(lines)


def write_inline_formula(writer: HTML5Translator, node: nodes.math) -> None:
    writer.body.append(_mathml(node, as_block=False))
    raise nodes.SkipNode


def write_formula(writer: HTML5Translator, node: nodes.math_block) -> None:
    writer.body.append(f'<div class="math">{_mathml(node, as_block=True)}</div>')
    raise nodes.SkipNode


def _mathml(node: nodes.Element, *, as_block: bool) -> str:
    """Raises `SphinxError` for what docutils cannot say in MathML."""
    formula = node.astext()
    try:
        return str(tex2mathml(formula, as_block=as_block))
    except (SyntaxError, ValueError) as error:  # by version of docutils
        raise SphinxError(f"{node.source}: no MathML for {formula!r}: {error}") from error


def setup(app: Sphinx) -> None:
    app.connect("source-read", add_navigation)
    app.add_html_math_renderer(
        "mathml",
        inline_renderers=(write_inline_formula, None),
        block_renderers=(write_formula, None),
    )
