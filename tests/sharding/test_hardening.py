"""Whatever text comes in: a value or a ShardingError, soon, and a message a terminal can show."""

from __future__ import annotations

import time
from collections.abc import Callable

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from autoshard.errors import AutoshardError, ShardingError
from autoshard.sharding import (
    AxisRef,
    find_manual_regions,
    find_shardings,
    format_axis_ref,
    format_sharding,
    parse_axis_ref,
    parse_dim_sharding,
    parse_manual_computation,
    parse_mesh,
    parse_mesh_sizes,
    parse_named_mesh,
    parse_op_sharding_rule,
    parse_sharding,
)

PARSERS: list[Callable[[str], object]] = [
    find_manual_regions,
    find_shardings,
    parse_axis_ref,
    parse_dim_sharding,
    parse_manual_computation,
    parse_mesh,
    parse_mesh_sizes,
    parse_named_mesh,
    parse_op_sharding_rule,
    parse_sharding,
]
GRAMMAR = """
    { } {} [ ] < > ( ) , : ? = -> " // \\ 0 -1 "x":(1)2 {"x" <@mesh @m mesh p1 custom ([i,jk])
    replicated unreduced device_ids in_shardings out_shardings manual_axes sdy.mesh #sdy.sharding
    sdy.manual_computation sdy.sharding #sdy.op_sharding_rule sharding need_replication reduction
"""
WORDS = (*GRAMMAR.split(), "\n", "9" * 30, "0x" + "f" * 30)


def shown(text: str) -> bool:
    """Whether a terminal shows the text as lines of characters."""
    return all(line.isprintable() for line in text.split("\n"))


def assert_read_or_refused(parse: Callable[[str], object], text: str) -> None:
    try:
        parse(text)
    except AutoshardError as error:
        assert shown(str(error)), ascii(str(error))  # noqa: PT017


@pytest.mark.parametrize("parse", PARSERS)
@settings(deadline=None)  # the machine may be busy with other tests
@given(text=st.text(st.characters(), max_size=60) | st.text(max_size=60))
@example(text='"\ud800"')
@example(text='"\ud800\\n"')
@example(text="\x00\x1b[31m\r\n\u2028\x85")
@example(text='"x":(1)\u0662')
def test_any_text_is_read_or_refused(parse: Callable[[str], object], text: str) -> None:
    assert_read_or_refused(parse, text)


@pytest.mark.parametrize("parse", PARSERS)
@settings(deadline=None)
@given(words=st.lists(st.sampled_from(WORDS) | st.text(max_size=3), max_size=25))
def test_any_words_of_the_grammar_are_read_or_refused(
    parse: Callable[[str], object], words: list[str]
) -> None:
    assert_read_or_refused(parse, " ".join(words))


LONG = 100_000
REGION = "sdy.manual_computation() in_shardings=[] out_shardings=[] manual_axes={} () {"


@pytest.mark.parametrize(
    "text",
    [
        "[" * LONG,
        "{" * LONG,
        '"' * LONG,
        '"' + "\\n" * LONG,
        '"' + "\\q" * LONG,
        "@" * LONG,
        "//" * LONG,
        "// a\n" * LONG,
        " " * LONG,
        "([" * LONG,
        "z_" * LONG,
        "-" * LONG,
        "0x" * LONG,
        '<@m, [{"x":(1' * 10_000,
        f"<[{'[' * LONG}",
        f'[{{"x"}}p{"9" * LONG}]',
        f'[{{"x": ({"9" * LONG})2}}]',
        f'[{{"x": (0x{"f" * LONG})2}}]',
        "[{" + '"x", ' * LONG + "}]",
        f"<([{'i' * LONG}])->([i]) {{i={'9' * LONG}}}>",
        f"<([z_{'9' * LONG}])->([i]) {{i=2}}>",
        f"x={'9' * LONG}",
        '<["x"=9223372036854775807], device_ids=[0, 1]>',
        REGION * 5_000,
        f"{REGION * 5_000}{'}' * 5_000}",
    ],
    ids=lambda text: text[:24],
)
@pytest.mark.parametrize("parse", PARSERS)
def test_long_and_deep_text_is_read_or_refused_soon(
    parse: Callable[[str], object], text: str
) -> None:
    start = time.process_time()
    assert_read_or_refused(parse, text)
    assert time.process_time() - start < 2


def test_long_sharding_texts_are_read() -> None:
    names = [f"a{index}" for index in range(20_000)]
    dims = (f'{{"{name}"}}' for name in names)
    sharding = parse_sharding(f"[{', '.join(dims)}]")
    assert [axis.name for axis in sharding.axis_refs()] == names
    assert parse_sharding(format_sharding(sharding)) == sharding
    assert len(find_shardings(f"{format_sharding(sharding)} : " * 3)) == 3


@given(st.text(st.characters(exclude_categories=["Cs"])))
def test_names_of_any_characters_round_trip(name: str) -> None:
    text = format_axis_ref(AxisRef(name))
    assert text.isascii()
    assert parse_axis_ref(text) == AxisRef(name)


@given(st.binary())
def test_names_of_any_bytes_round_trip(raw: bytes) -> None:
    name = raw.decode("utf-8", "surrogateescape")
    assert parse_axis_ref(format_axis_ref(AxisRef(name))) == AxisRef(name)


def test_half_a_character_is_no_name() -> None:
    with pytest.raises(ShardingError) as caught:
        format_axis_ref(AxisRef("a\ud800"))
    assert str(caught.value) == (
        "a name holds half a surrogate pair, which is not a character\n"
        "  where: name `a\N{REPLACEMENT CHARACTER}`\n"
        "  fix: name it with whole characters"
    )
    with pytest.raises(ShardingError, match="a string that does not end"):
        parse_axis_ref('"a\ud800"')
