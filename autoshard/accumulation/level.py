"""The equations of a body, and how each of its values depends on examples."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple, TypeAlias

from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.accumulation.batched_lookups import with_batched_lookups
from autoshard.accumulation.held import Batch, Held, MixedExamplesError, Rows, Shared, joined
from autoshard.accumulation.op_over_batch import LocalOp
from autoshard.accumulation.op_rules import held_literal, local_op, piece_of_result
from autoshard.frontend.inline_calls import REMAT, inlinable_body, inline_calls
from autoshard.frontend.jaxpr_paths import bodies, scan_params

Params: TypeAlias = Mapping[str, Any]


class Body(NamedTuple):
    """A body of an op, and how the op takes each of its results."""

    level: Level
    results: tuple[Held, ...]


class OpWithBodies(NamedTuple):
    """A loop, a branch or a checkpointed region over one microbatch.

    Args:
        operands: As of a `LocalOp`.
        results: As of a `LocalOp`.
        bodies: Those it runs.
        params: Makes the parameters that differ, of the new bodies; each takes the number of the
            microbatch before all else.
        index_places: Where the operands have that number.
    """

    operands: tuple[Held, ...]
    results: tuple[Held, ...]
    bodies: tuple[Body, ...]
    params: Callable[[Sequence[Jaxpr]], Params]
    index_places: tuple[int, ...]


class Level:
    """The equations of a body without the calls that only group them.

    Args:
        jaxpr: The body.
        held: By argument of it.
        batch: The batch.
    """

    def __init__(self, jaxpr: Jaxpr, held: Sequence[Held], batch: Batch) -> None:
        flat, self.outvars = inline_calls(jaxpr, _called)
        self.jaxpr, self.batch = jaxpr, batch
        self.eqns = list(with_batched_lookups([one.eqn for one in flat]))
        self.made_by = {var: eqn for eqn in self.eqns for var in eqn.outvars}
        self.held: dict[Var, Held] = dict.fromkeys(jaxpr.constvars, Shared.ANY)
        self.held.update(zip(jaxpr.invars, held, strict=True))
        self.ops: dict[int, LocalOp | OpWithBodies] = {}
        self.lifted: dict[Var, Rows] = {}
        self._demanded: set[tuple[Var, Rows]] = set()

    def classified(self) -> Level:
        """This level, with all of its equations read.

        Raises:
            MixedExamplesError: An op takes examples together otherwise than to add them up.
        """
        for position, eqn in enumerate(self.eqns):
            self.read(position, eqn)
        return self

    def read(self, position: int, eqn: JaxprEqn) -> None:
        """Find out what an equation is over one microbatch."""
        held = tuple(map(self.held_of, eqn.invars))
        op = op_of(eqn, held, self.batch)
        self.ops[position] = op
        self.held.update(zip(eqn.outvars, op.results, strict=True))
        for atom, wanted in zip(eqn.invars, op.operands, strict=True):
            self.demand(atom, wanted)

    def held_of(self, atom: Any) -> Held:
        return held_literal(atom) if isinstance(atom, Literal) else self.held[atom]

    def demand(self, atom: Any, wanted: Held) -> None:
        """Have an argument cut into microbatches where pieces are read of what comes of it."""
        if not isinstance(wanted, Rows) or not isinstance(self.held_of(atom), Shared):
            return
        if (atom, wanted) in self._demanded:
            return
        self._demanded.add((atom, wanted))
        eqn = self.made_by.get(atom)
        if eqn is None:
            self.lifted.setdefault(atom, wanted)
            return
        op = piece_of_result(eqn, wanted, self.batch)
        if op is not None:
            for operand, own in zip(eqn.invars, op.operands, strict=True):
                self.demand(operand, own)

    def covered(self, held: Sequence[Held], eqn: JaxprEqn) -> tuple[Held, ...]:
        """The way to hold each argument, so that what is demanded of it is there."""
        return tuple(
            _join(one, self.lifted.get(var, one), eqn)
            for one, var in zip(held, self.jaxpr.invars, strict=True)
        )


def op_of(eqn: JaxprEqn, held: tuple[Held, ...], batch: Batch) -> LocalOp | OpWithBodies:
    """An equation over one microbatch.

    Raises:
        MixedExamplesError: It takes examples together otherwise than to add them up.
    """
    reader = _BODIES.get(eqn.primitive.name)
    if all(isinstance(one, Shared) for one in held) or (reader is None and not any(bodies(eqn))):
        return local_op(eqn, held, batch)
    if reader is None:
        raise MixedExamplesError(eqn, "holds a program that is written for the whole batch")
    if eqn.effects:
        raise MixedExamplesError(eqn, "has effects, which a loop over microbatches would repeat")
    return reader(eqn, held, batch)


def _called(eqn: JaxprEqn) -> Jaxpr | None:
    """The body of a call that only groups equations, or names their derivative."""
    if eqn.primitive.name == REMAT:
        return None
    if eqn.primitive.name in ("custom_jvp_call", "custom_vjp_call", "closed_call"):
        called: ClosedJaxpr = eqn.params["jaxpr" if "jaxpr" in eqn.params else "call_jaxpr"]
        return None if called.consts else called.jaxpr
    return inlinable_body(eqn)


def _join(held: Held, other: Held, eqn: JaxprEqn) -> Held:
    found = joined(held, other)
    if found is None:
        raise MixedExamplesError(eqn, "carries examples, and what they share, in one value")
    return found


def _within(held: Sequence[Held], eqn: JaxprEqn) -> tuple[Held, ...]:
    """Slices of stacked values."""
    if any(isinstance(one, Rows) and one.dim == 0 for one in held):
        raise MixedExamplesError(eqn, "loops over the examples of the batch")
    return tuple(one.at(one.dim - 1) if isinstance(one, Rows) else one for one in held)


def _stacked(held: Sequence[Held]) -> tuple[Held, ...]:
    return tuple(one.at(one.dim + 1) if isinstance(one, Rows) else one for one in held)


def _results(level: Level) -> tuple[Held, ...]:
    return tuple(map(level.held_of, level.outvars))


def _closed(params: Params, name: str, body: Jaxpr) -> ClosedJaxpr:
    return ClosedJaxpr(body, params[name].consts)


def _scan(eqn: JaxprEqn, held: tuple[Held, ...], batch: Batch) -> OpWithBodies:
    params = eqn.params
    first, last = params["num_consts"], params["num_consts"] + params["num_carry"]
    inner = (*held[:last], *_within(held[last:], eqn))
    while True:
        level = Level(params["jaxpr"].jaxpr, inner, batch).classified()
        results = _results(level)
        covered = level.covered(inner, eqn)
        carry = [
            _join(one, result, eqn)
            for one, result in zip(covered[first:last], results, strict=False)
        ]
        wanted = (*covered[:first], *carry, *covered[last:])
        if wanted == inner:
            break
        inner = wanted
    stacks = results[last - first :]
    return OpWithBodies(
        (*inner[:last], *_stacked(inner[last:])),
        (*carry, *_stacked(stacks)),
        (Body(level, (*carry, *stacks)),),
        lambda new: scan_params(
            params, _closed(params, "jaxpr", new[0]), first + 1, params["num_carry"]
        ),
        (0,),
    )


def _while(eqn: JaxprEqn, held: tuple[Held, ...], batch: Batch) -> OpWithBodies:
    params = eqn.params
    first, last = params["cond_nconsts"], params["cond_nconsts"] + params["body_nconsts"]
    inner = held
    while True:
        body = Level(params["body_jaxpr"].jaxpr, inner[first:], batch).classified()
        covered = body.covered(inner[first:], eqn)
        carry = tuple(
            _join(one, result, eqn)
            for one, result in zip(covered[last - first :], _results(body), strict=True)
        )
        wanted = (*inner[:first], *covered[: last - first], *carry)
        if wanted == inner:
            break
        inner = wanted
    test = Level(params["cond_jaxpr"].jaxpr, (*inner[:first], *carry), batch).classified()
    if not all(isinstance(one, Shared) for one in _results(test)):
        raise MixedExamplesError(eqn, "runs as often as examples of the batch say")
    return OpWithBodies(
        inner,
        carry,
        (Body(test, _results(test)), Body(body, carry)),
        lambda new: {
            "cond_jaxpr": _closed(params, "cond_jaxpr", new[0]),
            "body_jaxpr": _closed(params, "body_jaxpr", new[1]),
            "cond_nconsts": first + 1,
            "body_nconsts": params["body_nconsts"] + 1,
        },
        (0, first),
    )


def _branches(eqn: JaxprEqn, held: tuple[Held, ...], batch: Batch) -> OpWithBodies:
    branches = eqn.params["branches"]
    if not isinstance(held[0], Shared):
        raise MixedExamplesError(eqn, "takes the branch that examples of the batch say")
    inner = held[1:]
    while True:
        levels = [Level(branch.jaxpr, inner, batch).classified() for branch in branches]
        wanted = inner
        for level in levels:
            wanted = level.covered(wanted, eqn)
        if wanted == inner:
            break
        inner = wanted
    results = _results(levels[0])
    for level in levels[1:]:
        own = zip(results, _results(level), strict=True)
        results = tuple(_join(one, other, eqn) for one, other in own)
    return OpWithBodies(
        (held[0], *inner),
        results,
        tuple(Body(level, results) for level in levels),
        lambda new: {
            "branches": tuple(
                ClosedJaxpr(body, branch.consts) for body, branch in zip(new, branches, strict=True)
            )
        },
        (1,),
    )


def _region(eqn: JaxprEqn, held: tuple[Held, ...], batch: Batch) -> OpWithBodies:
    inner = held
    while True:
        level = Level(eqn.params["jaxpr"], inner, batch).classified()
        wanted = level.covered(inner, eqn)
        if wanted == inner:
            break
        inner = wanted
    results = _results(level)
    return OpWithBodies(
        inner, results, (Body(level, results),), lambda new: {"jaxpr": new[0]}, (0,)
    )


_BODIES: dict[str, Callable[[JaxprEqn, tuple[Held, ...], Batch], OpWithBodies]] = {
    "scan": _scan,
    "while": _while,
    "cond": _branches,
    REMAT: _region,
}
