"""The smallest program that still ends as one did."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import TypeVar

from tests.soak.program import Body, Program, Step

T = TypeVar("T")


def minimal(program: Program, is_same: Callable[[Program], bool], most_tries: int) -> Program:
    """Leave out what can be left out, one thing at a time.

    Args:
        program: To begin with.
        is_same: Whether a smaller one ends alike.
        most_tries: Programs to try.
    """
    left = most_tries
    is_smaller = True
    while is_smaller and left > 0:
        is_smaller = False
        for smaller in simpler(program):
            left -= 1
            if is_same(smaller):
                program, is_smaller = smaller, True
                break
            if left <= 0:
                break
    return program


def simpler(program: Program) -> Iterator[Program]:
    """Programs with one thing less, those that leave out most first."""
    main, asked = program.main, program.asked
    for place in range(len(main.results) if len(main.results) > 1 else 0):
        fewer = _without(main.results, place)
        specs = _without(asked.results, place) if asked.results else ()
        yield Program(replace(main, results=fewer), replace(asked, results=specs))
    for step in reversed(main.live_steps()):
        if step.name not in main.results:
            yield _as_argument(program, step)
    yield from _unread_arguments(program)
    for body in _smaller_bodies(main):
        yield replace(program, main=body)
    yield from _asking_less(program)
    for step in main.live_steps():
        if step.name in main.results and len(step.reads) == 1 and len(main.results) == 1:
            ended = replace(main, results=step.reads)
            yield Program(ended, replace(asked, results=()))


def _asking_less(program: Program) -> Iterator[Program]:
    """With one wish less."""
    asked = program.asked
    if asked.budget is not None:
        yield program.asking(budget=None)
    if asked.alike is not None:
        yield program.asking(alike=None)
    for field in ("pinned", "donated"):
        for place in range(len(getattr(asked, field))):
            yield program.asking(**{field: _without(getattr(asked, field), place)})
    for field in ("arguments", "results"):
        specs = getattr(asked, field)
        for place, spec in enumerate(specs):
            if spec is not None:
                yield program.asking(**{field: (*specs[:place], None, *specs[place + 1 :])})
    if asked.hardware != "cpu-host":
        yield program.asking(hardware="cpu-host")


def _without(items: tuple[T, ...], place: int) -> tuple[T, ...]:
    return (*items[:place], *items[place + 1 :])


def _as_argument(program: Program, step: Step) -> Program:
    """What a step makes is an argument, and what only it needs goes."""
    main, asked = program.main, program.asked
    steps = tuple(one for one in main.steps if one.name != step.name)
    parameters = (*main.parameters, (step.name, step.type))
    arguments = (*asked.arguments, None) if asked.arguments else ()
    return Program(
        replace(main, steps=steps, parameters=parameters), replace(asked, arguments=arguments)
    )


def _unread_arguments(program: Program) -> Iterator[Program]:
    """Without the arguments that nothing reads."""
    main, asked = program.main, program.asked
    read = {name for step in main.live_steps() for name in step.reads} | set(main.results)
    for place, (name, _) in enumerate(main.parameters):
        if name in read or len(main.parameters) == 1:
            continue
        moved = {old: old - (old > place) for old in range(len(main.parameters)) if old != place}
        alike = asked.alike
        if alike is not None:
            alike = None if place in alike else (moved[alike[0]], moved[alike[1]])
        yield Program(
            replace(main, parameters=_without(main.parameters, place)),
            replace(
                asked,
                arguments=_without(asked.arguments, place) if asked.arguments else (),
                donated=tuple(moved[old] for old in asked.donated if old != place),
                pinned=tuple((moved[old], spec) for old, spec in asked.pinned if old != place),
                alike=alike,
            ),
        )


def _smaller_bodies(body: Body) -> Iterator[Body]:
    """With one step less in a body inside."""
    for place, step in enumerate(body.steps):
        for inner, function in enumerate(step.bodies):
            for smaller in (*_passed_on(function), *_smaller_bodies(function)):
                bodies = (*step.bodies[:inner], smaller, *step.bodies[inner + 1 :])
                changed = replace(step, bodies=bodies)
                yield replace(body, steps=(*body.steps[:place], changed, *body.steps[place + 1 :]))


def _passed_on(body: Body) -> Iterator[Body]:
    """With a step that makes a value of the type of an earlier one replaced by that."""
    types = dict(body.parameters)
    for place, step in enumerate(body.steps):
        for name, kind in types.items():
            if kind == step.type and step.text != name:
                passed = replace(step, text=name, reads=(name,), bodies=())
                yield replace(body, steps=(*body.steps[:place], passed, *body.steps[place + 1 :]))
                break
        types[step.name] = step.type
