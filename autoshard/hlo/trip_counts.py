"""How often the loops of optimized HLO run."""

from __future__ import annotations

import re
from dataclasses import dataclass

from autoshard.hlo.text import HloModule, Instruction

_NOTED = re.compile(r'"?known_trip_count"?\s*:\s*\{\s*"?n"?\s*:\s*"?(\d+)"?')
_PASSING_ON = {"copy", "bitcast", "reshape"}


def known_trip_count(module: HloModule, loop: Instruction) -> int | None:
    """What the compiler noted, else what a counter that is compared with a constant tells.

    A compiler that unrolled a loop makes the counter go up by more than one. A loop that goes on
    while a counter is below its bound *and* something else holds runs as often as it may, as it is
    planned.

    Args:
        module: The program.
        loop: A `while` of it.

    Returns:
        Runs of the body; None where it does not tell.
    """
    noted = _NOTED.search(loop.attributes)
    if noted is not None:
        return int(noted[1])
    called = dict(loop.called())
    counting = _Loop(module, loop, called.get("condition", ""), called.get("body", ""))
    return counting.trip_count()


@dataclass(frozen=True, slots=True)
class _Scope:
    """A computation, and what it is called with.

    Args:
        instructions: Of the computation, by name.
        arguments: Names in the calling scope; empty where they are not to be looked into.
        outer: The calling scope.
    """

    instructions: dict[str, Instruction]
    arguments: tuple[str, ...] = ()
    outer: _Scope | None = None


def _scope(module: HloModule, computation: str) -> _Scope:
    return _Scope(module.computations.get(computation, {}))


def _root(scope: _Scope) -> str:
    return next((i.name for i in scope.instructions.values() if i.is_root), "")


def _resolved(module: HloModule, scope: _Scope, name: str) -> tuple[_Scope, Instruction] | None:
    """What makes a value: through copies, tuples and fusions."""
    while (made := scope.instructions.get(name)) is not None:
        if made.opcode in _PASSING_ON:
            name = made.operands[0]
        elif made.opcode == "parameter" and scope.outer is not None:
            name, scope = scope.arguments[int(made.operands[0])], scope.outer
        elif made.opcode == "fusion":
            called = next((name for key, name in made.called() if key == "calls"), "")
            scope = _Scope(module.computations.get(called, {}), made.operands, scope)
            name = _root(scope)
        elif made.opcode == "get-tuple-element":
            element = _element(module, scope, made.operands[0], made.number("index") or 0)
            if element is None:
                return scope, made
            scope, name = element
        else:
            return scope, made
    return None


def _element(module: HloModule, scope: _Scope, name: str, index: int) -> tuple[_Scope, str] | None:
    """An element of a tuple: a name in a scope; None where the tuple is not made in sight."""
    whole = _resolved(module, scope, name)
    if whole is None or whole[1].opcode != "tuple":
        return None
    return whole[0], whole[1].operands[index]


def _carried(module: HloModule, scope: _Scope, name: str) -> int | None:
    """Which element of the loop's state a value in its body or condition is; None if none."""
    found = _resolved(module, scope, name)
    if found is None or found[1].opcode != "get-tuple-element":
        return None
    whole = _resolved(module, found[0], found[1].operands[0])
    is_state = whole is not None and whole[1].opcode == "parameter" and whole[0].outer is None
    return found[1].number("index") if is_state else None


def _number(constant: Instruction) -> int | None:
    text = constant.operands[0]
    is_number = constant.opcode == "constant" and text.removeprefix("-").isdigit()
    return int(text) if is_number else None


@dataclass(frozen=True, slots=True)
class _Loop:
    """A loop whose condition compares a counter."""

    module: HloModule
    loop: Instruction
    condition: str
    body: str

    def trip_count(self) -> int | None:
        """None unless a counter goes up by a known number to a known bound."""
        scope = _scope(self.module, self.condition)
        return self._limit(scope, _root(scope))

    def _limit(self, scope: _Scope, condition: str) -> int | None:
        """Most runs while a condition holds, which may be that several do."""
        found = _resolved(self.module, scope, condition)
        if found is not None and found[1].opcode == "and":
            limits = [self._limit(found[0], operand) for operand in found[1].operands]
            return min((limit for limit in limits if limit is not None), default=None)
        if found is None or found[1].opcode != "compare":
            return None
        inside, compare = found
        if "direction=LT" not in compare.attributes:
            return None
        counter = _carried(self.module, inside, compare.operands[0])
        bound = self._fixed(inside, compare.operands[1])
        if counter is None or bound is None:
            return None
        start, step = self._before(counter, from_outside=0), self._step(counter)  # as JAX counts
        if start is None or step is None or step < 1:
            return None
        return max(0, -(-(bound - start) // step))

    def _before(self, element: int, *, from_outside: int | None = None) -> int | None:
        """The number that an element of the state is before the first run.

        Args:
            element: Its place in the state.
            from_outside: The answer where the state is an argument of the computation that the loop
                is in.
        """
        for instructions in self.module.computations.values():
            if instructions.get(self.loop.name) is self.loop:
                scope = _Scope(instructions)
                told = _element(self.module, scope, self.loop.operands[0], element)
                if told is None:
                    return from_outside
                found = _resolved(self.module, *told)
                return None if found is None else _number(found[1])
        return None

    def _after(self, element: int) -> tuple[_Scope, str] | None:
        """What an element of the state is after a run: a name in the body."""
        scope = _scope(self.module, self.body)
        return _element(self.module, scope, _root(scope), element)

    def _fixed(self, scope: _Scope, name: str) -> int | None:
        """A number that no run changes, in the text or in the state."""
        found = _resolved(self.module, scope, name)
        if found is not None and found[1].opcode == "constant":
            return _number(found[1])
        element = _carried(self.module, scope, name)
        if element is None:
            return None
        after = self._after(element)
        is_kept = after is not None and _carried(self.module, *after) == element
        return self._before(element) if is_kept else None

    def _step(self, counter: int) -> int | None:
        """What every run adds to the counter."""
        after = self._after(counter)
        found = None if after is None else _resolved(self.module, *after)
        if found is None or found[1].opcode != "add":
            return None
        inside, add = found
        for before, added in (add.operands, add.operands[::-1]):
            if _carried(self.module, inside, before) == counter:
                return self._fixed(inside, added)
        return None
