"""Buffers of compiled programs, and their live ranges."""

from __future__ import annotations

from autoshard.hlo.live_buffers import compiled_buffers, live_at_peak
from autoshard.hlo.text import parse_hlo

ONE = "f32[8,128]{1,0:T(8,128)}"
ON_CHIP = "f32[8,128]{1,0:T(8,128)S(1)}"


def entry(*lines: str, others: str = "") -> str:
    body = "\n".join(f"  {line}" for line in lines)
    return f"HloModule m\n\n{others}\nENTRY %main (p: f32[8,128]) -> f32[8,128] {{\n{body}\n}}\n"


def names(text: str, *, in_hbm: bool = True) -> list[tuple[str, int, int]]:
    """Name, bytes and times from the first to the last access of each buffer."""
    return [
        (one.instruction.name, one.num_bytes, one.stop - one.start)
        for one in compiled_buffers(parse_hlo(text))
        if one.in_hbm == in_hbm
    ]


def test_a_buffer_lives_from_its_instruction_to_its_last_read() -> None:
    text = entry(
        f"%p = {ONE} parameter(0)",
        f"%a = {ONE} negate(%p)",
        f"%b = {ONE} negate(%p)",
        f"%c = {ONE} add(%a, %b)",
        f"ROOT %r = {ONE} negate(%c)",
    )
    assert names(text) == [("a", 4096, 3), ("b", 4096, 2), ("c", 4096, 2)]


def test_narrow_rows_take_whole_tiles() -> None:
    text = entry(
        f"%p = {ONE} parameter(0)",
        "%a = f32[8,4]{1,0:T(8,128)} slice(%p)",
        f"ROOT %r = {ONE} pad(%a)",
    )
    assert names(text) == [("a", 4096, 2)]


def test_an_eviction_is_a_buffer_in_hbm_and_one_on_the_chip() -> None:
    text = entry(
        f"%p = {ONE} parameter(0)",
        f"%a = {ON_CHIP} negate(%p)",
        f"%s = ({ONE}, {ON_CHIP}, u32[]{{:T(128)S(2)}}) copy-start(%a)",
        f"%d = {ONE} copy-done(%s)",
        f"ROOT %r = {ONE} negate(%d)",
    )
    assert [name for name, num_bytes, _ in names(text) if num_bytes == 4096] == ["s"]
    assert ("a", 4096, 3) in names(text, in_hbm=False)


def test_a_loop_returns_what_it_carries_in_the_same_buffers() -> None:
    carried = f"({ONE}, {ONE})"
    body = "\n".join(
        (
            f"%body (t: {carried}) -> {carried} {{",
            f"  %t = {carried} parameter(0)",
            f"  %x = {ONE} get-tuple-element(%t), index=0",
            f"  %y = {ONE} get-tuple-element(%t), index=1",
            f"  %inside = {ONE} negate(%x)",
            f"  %next = {ONE} add(%inside, %y)",
            f"  ROOT %made = {carried} tuple(%next, %y)",
            "}",
            f"%cond (t: {carried}) -> pred[] {{",
            f"  %t = {carried} parameter(0)",
            "  ROOT %c = pred[] constant(true)",
            "}\n",
        )
    )
    text = entry(
        f"%p = {ONE} parameter(0)",
        f"%first = {ONE} negate(%p)",
        f"%second = {ONE} negate(%p)",
        f"%start = {carried} tuple(%first, %second)",
        f"%loop = {carried} while(%start), condition=%cond, body=%body",
        f"%last = {ONE} get-tuple-element(%loop), index=0",
        f"ROOT %r = {ONE} negate(%last)",
        others=body,
    )
    found = compiled_buffers(parse_hlo(text))
    assert [one.instruction.name for one in found] == ["first", "second", "inside"]
    peak = live_at_peak(found)
    assert {one.instruction.name for one in peak} == {"first", "second", "inside"}


def test_a_fusion_that_writes_an_operand_makes_no_buffer() -> None:
    aliasing = "output_to_operand_aliasing={{0}: (0, {})}"
    text = entry(
        f"%p = {ONE} parameter(0)",
        f"%a = {ONE} negate(%p)",
        f"%f = ({ONE}, {ONE}) fusion(%a), kind=kLoop, calls=%none, {aliasing}",
        f"%x = {ONE} get-tuple-element(%f), index=0",
        f"%y = {ONE} get-tuple-element(%f), index=1",
        f"ROOT %r = {ONE} add(%x, %y)",
    )
    assert names(text) == [("a", 4096, 5), ("f", 4096, 4)]
