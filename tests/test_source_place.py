"""Places in the user's program as text."""

from __future__ import annotations

import pytest

from autoshard.source_place import SourcePlace, format_source, parse_source

PLACES = {
    "": SourcePlace(),
    "train.py:12 (loss)": SourcePlace(line="train.py:12", function="loss"),
    "model.mlir:40": SourcePlace(line="model.mlir:40"),
    "h/0/attn": SourcePlace(module="h/0/attn"),
    "h/0/attn backward": SourcePlace(module="h/0/attn", is_backward=True),
    "h/0/attn, train.py:12": SourcePlace(module="h/0/attn", line="train.py:12"),
    "h/0/attn backward, /a b/train.py:12 (<lambda>)": SourcePlace(
        module="h/0/attn", is_backward=True, line="/a b/train.py:12", function="<lambda>"
    ),
    "/a, b/train.py:12 (f)": SourcePlace(line="/a, b/train.py:12", function="f"),
    "C:\\net.py:3 (f)": SourcePlace(line="C:\\net.py:3", function="f"),
}


@pytest.mark.parametrize(("text", "place"), PLACES.items())
def test_a_place_prints_in_the_form_that_is_read(text: str, place: SourcePlace) -> None:
    assert parse_source(text) == place
    assert format_source(place) == text


def test_backward_is_told_with_a_module_only() -> None:
    assert format_source(SourcePlace(line="net.py:3", is_backward=True)) == "net.py:3"


def test_other_text_is_a_line_as_a_whole() -> None:
    assert parse_source("no source line") == SourcePlace(line="no source line")
