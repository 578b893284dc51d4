"""Markup as data and as text."""

from __future__ import annotations

from html.parser import HTMLParser

from hypothesis import given
from hypothesis import strategies as st

from autoshard.report.markup import element, visible, write_markup


def test_elements_are_written_with_their_attributes_and_children() -> None:
    row = element("td", "a ", element("b", "b"), None, class_="wide", data_label="x", colspan=2)
    assert write_markup(row) == '<td class="wide" data-label="x" colspan="2">a <b>b</b></td>'


def test_elements_that_hold_nothing_are_not_closed() -> None:
    assert write_markup(element("meta", charset="utf-8")) == '<meta charset="utf-8">'


def test_an_attribute_may_have_no_value_or_be_left_out() -> None:
    field = element("input", disabled=True, hidden=False, id=None, name="x")
    assert write_markup(field) == '<input disabled name="x">'


def test_text_that_looks_like_markup_stays_text() -> None:
    text = "</script><script>alert('x')</script> & \"quoted\""
    assert write_markup(element("p", text, title=text)) == (
        '<p title="&lt;/script&gt;&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; &amp; '
        '&quot;quoted&quot;">&lt;/script&gt;&lt;script&gt;alert(&#x27;x&#x27;)&lt;/script&gt; '
        "&amp; &quot;quoted&quot;</p>"
    )


def test_control_characters_are_shown_and_not_obeyed() -> None:
    assert write_markup("a\x00b\x1b[1m\ud800") == r"a\x00b\x1b[1m\ud800"


class _Reading(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.text = ""
        self.titles: list[str | None] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.tags.append(tag)
        self.titles += [value for _, value in attrs]

    def handle_data(self, data: str) -> None:
        self.text += data


@given(text=st.text(), title=st.text(min_size=1))
def test_any_text_is_read_back_as_it_is(text: str, title: str) -> None:
    reading = _Reading()
    reading.feed(write_markup(element("p", text, title=title)))
    reading.close()
    assert (reading.tags, reading.titles) == (["p"], [visible(title)])
    assert reading.text == visible(text)
