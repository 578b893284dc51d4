"""How often a loop runs, by its counter: steps, bounds in the state, fusions, the unknown."""

from __future__ import annotations

import jax
import jax.numpy as jnp
import pytest

from autoshard.hlo.text import HloModule, Instruction, parse_hlo
from autoshard.hlo.trip_counts import known_trip_count

STATE = "(s32[], s32[], f32[4])"
COMPARED = "ROOT %less = pred[] compare(%i, %bound), direction=LT"
COMPARED_TOO = """%less = pred[] compare(%i, %bound), direction=LT
  %odd = pred[] compare(%other, %bound), direction=NE"""
COUNTED = "%next = s32[] add(%i, %step)"


def loop_text(
    *,
    start: str = "constant(0)",
    second: str = "constant(2)",
    bound: str = "s32[] constant(8)",
    compared: str = COMPARED,
    step: str = "s32[] constant(1)",
    counted: str = COUNTED,
    passed_on: str = "%other",
    attributes: str = "",
) -> str:
    """A loop over a counter, another number and an array."""
    return f"""HloModule loops

%less_than (a: s32[], b: s32[]) -> pred[] {{
  %a = s32[] parameter(0)
  %b = s32[] parameter(1)
  ROOT %within = pred[] compare(%a, %b), direction=LT
}}

%two_more (c: s32[]) -> s32[] {{
  %c = s32[] parameter(0)
  %two = s32[] constant(2)
  ROOT %sum = s32[] add(%two, %c)
}}

%condition (p: {STATE}) -> pred[] {{
  %p = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%p), index=0
  %other = s32[] get-tuple-element(%p), index=1
  %bound = {bound}
  {compared}
}}

%body (q: {STATE}) -> {STATE} {{
  %q = {STATE} parameter(0)
  %i = s32[] get-tuple-element(%q), index=0
  %other = s32[] get-tuple-element(%q), index=1
  %x = f32[4] get-tuple-element(%q), index=2
  %step = {step}
  {counted}
  ROOT %after = {STATE} tuple(%next, {passed_on}, %x)
}}

ENTRY %main (v: f32[4], n: s32[]) -> {STATE} {{
  %v = f32[4] parameter(0)
  %n = s32[] parameter(1)
  %first = s32[] {start}
  %begin = s32[] copy(%first)
  %second = s32[] {second}
  %before = {STATE} tuple(%begin, %second, %v)
  ROOT %loop = {STATE} while(%before), condition=%condition, body=%body{attributes}
}}
"""


def the_loop(text: str) -> tuple[HloModule, Instruction]:
    module = parse_hlo(text)
    (loop,) = (
        instruction
        for instructions in module.computations.values()
        for instruction in instructions.values()
        if instruction.opcode == "while"
    )
    return module, loop


@pytest.mark.parametrize(
    ("changed", "count"),
    [
        ({}, 8),
        ({"step": "s32[] constant(2)"}, 4),
        ({"step": "s32[] constant(3)"}, 3),
        ({"start": "constant(5)"}, 3),
        ({"start": "constant(9)"}, 0),
        ({"step": "s32[] get-tuple-element(%q), index=1"}, 4),
        ({"bound": "s32[] get-tuple-element(%p), index=1", "second": "constant(6)"}, 6),
        ({"bound": "s32[] copy(%other)", "second": "constant(6)"}, 6),
        ({"counted": "%next = s32[] add(%step, %i)", "step": "s32[] constant(4)"}, 2),
        ({"counted": "%next = s32[] fusion(%i), kind=kLoop, calls=%two_more"}, 4),
        ({"compared": "ROOT %f = pred[] fusion(%i, %bound), kind=kLoop, calls=%less_than"}, 8),
        ({"compared": f"{COMPARED_TOO}\n  ROOT %both = pred[] and(%less, %odd)"}, 8),
        ({"compared": f"{COMPARED_TOO}\n  ROOT %both = pred[] and(%odd, %less)"}, 8),
        ({"attributes": ', backend_config={"known_trip_count":{"n":"16"}}'}, 16),
    ],
    ids=str,
)
def test_a_counter_tells_how_often_its_loop_runs(changed: dict[str, str], count: int) -> None:
    assert known_trip_count(*the_loop(loop_text(**changed))) == count


@pytest.mark.parametrize(
    "changed",
    [
        {"start": "parameter(1)"},
        {"bound": "s32[] get-tuple-element(%p), index=1", "second": "copy(%n)"},
        {"bound": "s32[] copy(%other)", "passed_on": "%next"},
        {"step": "s32[] constant(0)"},
        {"step": "s32[] constant(-1)"},
        {"counted": "%next = s32[] multiply(%i, %step)"},
        {"counted": "%next = s32[] add(%other, %step)"},
        {"compared": "ROOT %more = pred[] compare(%i, %bound), direction=GT"},
    ],
    ids=str,
)
def test_a_loop_that_counts_in_no_known_way_tells_nothing(changed: dict[str, str]) -> None:
    assert known_trip_count(*the_loop(loop_text(**changed))) is None


@pytest.mark.parametrize("unroll", [1, 2, 4])
def test_a_compiled_loop_is_counted_without_the_compilers_note(unroll: int) -> None:
    def scanned(x: jax.Array) -> jax.Array:
        carried: jax.Array
        carried, _ = jax.lax.scan(lambda c, _: (jnp.tanh(c), None), x, length=12, unroll=unroll)
        return carried

    x = jax.ShapeDtypeStruct((8,), jnp.float32)
    text = jax.jit(scanned).lower(x).compile().as_text()
    assert text is not None
    module, loop = the_loop(text)
    assert known_trip_count(module, loop) == 12 // unroll
    module, loop = the_loop(text.replace("known_trip_count", "a_note"))
    assert known_trip_count(module, loop) == 12 // unroll
