"""A step as a loop over microbatches: the rewriting of its traced program."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Any, TypeAlias

import jax.numpy as jnp
from jax import lax

# Private; checked on jax 0.10.2.
from jax._src.core import mapped_aval, unmapped_aval
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var

from autoshard.accumulation.choice import Microbatches
from autoshard.accumulation.held import Batch, Held, MixedExamplesError, Rows, Shared, Total
from autoshard.accumulation.level import Level
from autoshard.accumulation.op_rules import BY_ELEMENT
from autoshard.accumulation.written import Equations, Microbatch, split_shape
from autoshard.errors import InputError
from autoshard.frontend.dead_code import without_dead_equations
from autoshard.frontend.jaxpr_paths import bodies, scan_params
from autoshard.frontend.source_lines import SourceLines

_ADDED_LATE = frozenset(
    {
        *("add", "add_any", "convert_element_type", "copy", "neg", "reduce_sum", "reshape"),
        *("squeeze", "sub", "transpose"),
    }
)
"""Linear ops that come before the sum over microbatches where that leaves less to sum."""

_CHEAP = BY_ELEMENT | {
    *("argmax", "broadcast_in_dim", "concatenate", "cumsum", "expand_dims", "iota", "pad"),
    *("reduce_and", "reduce_max", "reduce_min", "reduce_or", "reduce_sum", "reshape", "slice"),
    *("squeeze", "transpose"),
}
"""Primitives that run over the whole batch before the loop, where all examples wait for them."""


_HEAVY = frozenset({"conv_general_dilated", "custom_call", "dot_general", "ragged_dot_general"})
"""Primitives that are worth a loop: over the whole batch, after it, they make it useless."""


@dataclass(frozen=True, slots=True)
class _After:
    """The values that are there after the last microbatch.

    Args:
        origin: The op that takes the examples together.
        why: What it does to them.
        of_rows: Something for every example may be in it.
    """

    origin: JaxprEqn
    why: str
    of_rows: bool = False


_State: TypeAlias = Held | _After


def accumulated(closed: ClosedJaxpr, microbatches: Microbatches | None) -> ClosedJaxpr:
    """A traced program as a loop over microbatches; None leaves it as it is written.

    What has something of its own for every example is computed in the loop, totals over examples
    are added up by it, what all examples share is computed once before it, and what reads totals
    once after it.

    Raises:
        InputError: The examples do not stay apart; names the op that takes them together.
    """
    if microbatches is None or microbatches.count == 1:
        return closed
    dims = microbatches.dims
    jaxpr = closed.jaxpr
    sizes = [var.aval.shape[d] for var, d in zip(jaxpr.invars, dims, strict=True) if d is not None]
    batch = Batch(min(sizes), microbatches.count)
    held: list[Held] = [
        Shared.ANY if dim is None else Rows(dim, 1, var.aval.shape[dim] // batch.size)
        for var, dim in zip(jaxpr.invars, dims, strict=True)
    ]
    step = _Step(jaxpr, held, batch)
    live = without_dead_equations(_written(step, jaxpr))
    return ClosedJaxpr(live, closed.consts)


class _Step(Level):
    """The equations of a whole step: before the loop over microbatches, in it, and after it.

    Args:
        jaxpr: Of the step.
        held: By argument.
        batch: The batch.
    """

    def __init__(self, jaxpr: Jaxpr, held: Sequence[Held], batch: Batch) -> None:
        super().__init__(jaxpr, held, batch)
        self.arguments = dict(self.held)
        self.largest = max(
            v.aval.size for v, one in zip(jaxpr.invars, held, strict=True) if isinstance(one, Rows)
        )
        self.whole: set[int] = set()
        self.after: dict[Var, _After] = {}
        self.origin: dict[Var, JaxprEqn] = {}
        self.position = {id(eqn): position for position, eqn in enumerate(self.eqns)}
        while not self._is_sorted():
            pass
        self.in_loop = {
            position
            for position, eqn in enumerate(self.eqns)
            if position not in self.whole
            and any(not isinstance(self.state(var), (Shared, _After)) for var in eqn.outvars)
        }
        self._leave_out_late()

    def state(self, atom: Any) -> _State:
        found = None if isinstance(atom, Literal) else self.after.get(atom)
        return self.held_of(atom) if found is None else found

    def _is_sorted(self) -> bool:
        """Sort all equations; False where some more have to come before the loop."""
        self.held, self.ops = dict(self.arguments), {}
        self.after, self.origin = {}, {}
        for position, eqn in enumerate(self.eqns):
            if position in self.whole:
                self.held.update(dict.fromkeys(eqn.outvars, Shared.ANY))
            elif not self._sort(position, eqn):
                return False
        return True

    def _sort(self, position: int, eqn: JaxprEqn) -> bool:
        variables = [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        late = [var for var in variables if var in self.after]
        if late:
            after = self.after[late[0]]
        else:
            try:
                self.read(position, eqn)
            except MixedExamplesError as error:
                late = [var for var in variables if isinstance(self.held[var], Total)]
                after = _total(self.origin[late[0]]) if late else _After(error.eqn, error.why)
            else:
                for var, one in zip(eqn.outvars, self.ops[position].results, strict=True):
                    if isinstance(one, Total):
                        own = [self.origin[v] for v in variables if v in self.origin]
                        self.origin[var] = own[0] if own else eqn
                return True
        reads_rows = any(isinstance(self.held.get(var), Rows) for var in variables)
        if reads_rows and late and self._comes_before(late):
            return False
        of_rows = reads_rows or any(self.after[var].of_rows for var in late if var in self.after)
        if of_rows and (eqn.primitive.name in _HEAVY or any(bodies(eqn)) or eqn.effects):
            raise _refused(after, eqn)
        for var in eqn.outvars:
            is_wide = getattr(var.aval, "size", 0) >= self.batch.size
            self.after[var] = replace(after, of_rows=of_rows and is_wide)
        return True

    def _comes_before(self, variables: Sequence[Var]) -> bool:
        """Have cheap equations that values come of run over the whole batch, before the loop."""
        found: set[int] = set()
        todo = list(variables)
        while todo:
            eqn = self.made_by.get(todo.pop())
            if eqn is None or self.position[id(eqn)] in found | self.whole:
                continue
            held = map(self.state, eqn.invars)
            if all(isinstance(one, Shared) for one in held):
                continue
            sizes = [getattr(var.aval, "size", 0) for var in eqn.outvars]
            if eqn.primitive.name not in _CHEAP or max(sizes) > self.largest or eqn.effects:
                return False
            found.add(self.position[id(eqn)])
            todo += [atom for atom in eqn.invars if not isinstance(atom, Literal)]
        self.whole |= found
        return bool(found)

    def _leave_out_late(self) -> None:
        """Take linear ops out of the loop that do not lessen what it adds up."""
        readers: dict[Var, list[int]] = {}
        for position, eqn in enumerate(self.eqns):
            for atom in eqn.invars:
                if not isinstance(atom, Literal):
                    readers.setdefault(atom, []).append(position)
        results = {atom for atom in self.outvars if not isinstance(atom, Literal)}
        linear = {p for p in self.in_loop if self._is_of_totals(p)}
        needed: set[int] = set()  # by equations that read examples too
        for position in sorted(self.in_loop, reverse=True):
            read = [p for var in self.eqns[position].outvars for p in readers.get(var, ())]
            if any(p in self.in_loop and (p not in linear or p in needed) for p in read):
                needed.add(position)
        changed = True
        while changed:
            changed = False
            for position in sorted(linear - needed):
                if position not in self.in_loop:
                    continue
                eqn = self.eqns[position]
                totals = [v for v in eqn.invars if isinstance(self.held_of(v), Total)]
                stays = eqn.primitive.name in _ADDED_LATE and all(
                    var not in results
                    and var not in self.after
                    and all(p in self.in_loop for p in readers[var])
                    for var in totals
                )
                if not stays:
                    changed = True
                    self.in_loop.remove(position)
                    origin = self.origin[totals[0]]
                    self.after.update(dict.fromkeys(eqn.outvars, _total(origin)))

    def _is_of_totals(self, position: int) -> bool:
        held = list(map(self.held_of, self.eqns[position].invars))
        return any(isinstance(one, Total) for one in held) and not any(
            isinstance(one, Rows) for one in held
        )

    @property
    def taken_out(self) -> list[Var]:
        """The values computed in the loop that are read after it."""
        made = {var for p in sorted(self.in_loop) for var in self.eqns[p].outvars}
        late = [eqn for p, eqn in enumerate(self.eqns) if p not in self.in_loop]
        read = [atom for eqn in late for atom in eqn.invars] + list(self.outvars)
        return list(dict.fromkeys(atom for atom in read if isinstance(atom, Var) and atom in made))


def _total(origin: JaxprEqn) -> _After:
    return _After(origin, "takes examples of the batch together")


def _refused(after: _After, reader: JaxprEqn) -> InputError:
    lines = SourceLines()
    reads = lines.line(reader)
    needs = (
        f", and `{reader.primitive.name}`{f' at {reads}' if reads else ''} needs its result for"
        " single examples"
    )
    within = reader is after.origin or any(bodies(reader))
    return InputError(
        f"the step cannot run over microbatches: `{after.origin.primitive.name}` {after.why}"
        f"{'' if within else needs}",
        where=lines.line(after.origin) or reads,
        fix="plan without accumulate=, or keep the examples apart there: norms over features"
        " (layer or group norm) in place of batch norm, losses that are sums over examples",
    )


class _Loop(Microbatch):
    """The body of the loop over microbatches, and what it reads from outside.

    Args:
        step: The whole step.
        index: The number of the microbatch.
    """

    def __init__(self, step: _Step, index: Var, outside: Equations) -> None:
        super().__init__(step, index, outside)
        self.consts: dict[Var, Var] = {}
        self.slices: dict[Var, tuple[Var, Rows]] = {}

    def whole(self, var: Var) -> Any:
        held = self.level.held[var]
        if isinstance(held, Rows) and var not in self.level.made_by:
            return self.piece(var, held)
        if var not in self.atom_of:
            self.consts[var] = self.atom_of[var] = Var(var.aval)
        return self.atom_of[var]

    def sliced(self, var: Var, rows: Rows) -> Any:
        inner = Var(var.aval.update(shape=self.batch.piece(var.aval.shape, rows)))
        self.slices[inner] = (var, rows)
        return inner


@dataclass(frozen=True, slots=True, eq=False)
class _Sum:
    """A total that the loop carries.

    Args:
        like: The op whose results are added up.
        start: The value before the first microbatch.
        carried: The value in the body.
        added: The value after a microbatch.
    """

    like: JaxprEqn
    start: Any
    carried: Var
    added: Any

    @staticmethod
    def of(var: Var, step: _Step, loop: Microbatch, outside: Equations) -> _Sum:
        """A total, in float32 where the type of the value has fewer bits."""
        held, like, aval = step.held[var], step.made_by[var], var.aval
        assert isinstance(held, Total)
        is_short = held.kind == "add" and aval.dtype in (jnp.bfloat16, jnp.float16)
        dtype = jnp.dtype(jnp.float32) if is_short else aval.dtype
        first, combined = _COMBINED[held.kind]
        (start,) = outside.call(
            lambda: lax.full(aval.shape, first(dtype), dtype),
            like=like,
            name=(held.kind, aval.shape, dtype),
        )
        carried = Var(start.aval)
        (added,) = loop.call(
            lambda so_far, one: combined(so_far, one.astype(dtype)),
            carried,
            loop.read(var, held),
            like=like,
            name=held.kind,
        )
        return _Sum(like, start, carried, added)


def _least(dtype: Any) -> Any:
    return -jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).min


def _most(dtype: Any) -> Any:
    return jnp.inf if jnp.issubdtype(dtype, jnp.floating) else jnp.iinfo(dtype).max


_COMBINED: dict[str, tuple[Callable[[Any], Any], Callable[[Any, Any], Any]]] = {
    "add": (lambda _: 0, lax.add),
    "max": (_least, lax.max),
    "min": (_most, lax.min),
    "and": (lambda dtype: True if dtype.kind == "b" else -1, lax.bitwise_and),
    "or": (lambda _: 0, lax.bitwise_or),
}
"""By kind of total, its value without microbatches and what combines two."""


def _written(step: _Step, jaxpr: Jaxpr) -> Jaxpr:
    """The step with its loop."""
    mesh = next((eqn.ctx.cur_abstract_mesh for eqn in step.eqns), None)
    outside = Equations(mesh)
    count = step.batch.count
    (indices,) = outside.call(lambda: lax.iota(jnp.int32, count), like=None)
    loop = _Loop(step, Var(mapped_aval(count, 0, indices.aval)), outside)
    loop.write(sorted(step.in_loop))
    totals = [var for var in step.taken_out if isinstance(step.held[var], Total)]
    rows = [var for var in step.taken_out if isinstance(step.held[var], Rows)]
    sums = [_Sum.of(var, step, loop, outside) for var in totals]
    stacks = [loop.read(var, step.held[var]) for var in rows]
    # All that the loop reads is known: it is made before, the rest after.
    read = [*loop.consts, *(var for var, _ in loop.slices.values())]
    before = _makers(step, read)
    outside.eqns += [step.eqns[position] for position in sorted(before)]
    starts = [one.start for one in sums]
    pieces = [
        outside.call(_by_microbatch(step.batch, var, own), var, like=None)[0]
        for var, own in loop.slices.values()
    ]
    body = Jaxpr(
        [],
        [*loop.consts.values(), *(one.carried for one in sums), loop.index, *loop.slices],
        [*(one.added for one in sums), *stacks],
        loop.eqns,
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )
    scan, results = _scan(outside, body, list(loop.consts), starts, [indices, *pieces], count)
    outside.eqns.append(scan)
    atom_of: dict[Var, Any] = {}
    for var, one, result in zip(totals, sums, results, strict=False):
        end = functools.partial(lax.convert_element_type, new_dtype=var.aval.dtype)
        (atom_of[var],) = outside.call(end, result, like=one.like, name=var.aval.dtype)
    for var, stack in zip(rows, results[len(sums) :], strict=True):
        own = step.held[var]
        assert isinstance(own, Rows)
        back = _in_place(step.batch, var, own)
        (atom_of[var],) = outside.call(back, stack, like=step.made_by[var])

    def renamed(atoms: Iterable[Any]) -> list[Any]:
        return [atom if isinstance(atom, Literal) else atom_of.get(atom, atom) for atom in atoms]

    for position, eqn in enumerate(step.eqns):
        if position not in step.in_loop and position not in before:
            outside.eqns.append(eqn.replace(invars=renamed(eqn.invars)))
    return jaxpr.replace(
        eqns=outside.eqns,
        outvars=renamed(step.outvars),
        debug_info=jaxpr.debug_info.with_unknown_names(),
    )


def _makers(step: _Step, variables: Iterable[Var]) -> Collection[int]:
    """Positions of the equations that values come of."""
    found: set[int] = set()
    todo = list(variables)
    while todo:
        eqn = step.made_by.get(todo.pop())
        if eqn is not None and step.position[id(eqn)] not in found:
            found.add(step.position[id(eqn)])
            todo += [atom for atom in eqn.invars if not isinstance(atom, Literal)]
    return found


def _scan(
    outside: Equations,
    body: Jaxpr,
    consts: Sequence[Any],
    carry: Sequence[Any],
    xs: Sequence[Any],
    count: int,
) -> tuple[JaxprEqn, list[Var]]:
    """The loop, like an equation that JAX traced."""
    outside.call(
        lambda x: lax.scan(lambda c, _: (c, None), x, None, length=count), xs[0], like=None
    )
    like = outside.eqns.pop()
    stacks = body.outvars[len(carry) :]
    results = [Var(one.aval) for one in carry]
    results += [Var(unmapped_aval(count, 0, one.aval)) for one in stacks]
    params = scan_params(like.params, ClosedJaxpr(body, []), len(consts), len(carry))
    operands = [*consts, *carry, *xs]
    return like.replace(invars=operands, outvars=results, params=params), results


def _by_microbatch(batch: Batch, var: Var, rows: Rows) -> Callable[[Any], Any]:
    """Stacks the pieces of a value; where it is cut over devices, each stays with its own."""
    shape, place = split_shape(batch, var.aval.shape, rows)
    order = (place, *(dim for dim in range(len(shape)) if dim != place))
    local = batch.piece(var.aval.shape, rows)
    return lambda whole: lax.transpose(whole.reshape(shape), order).reshape(batch.count, *local)


def _in_place(batch: Batch, var: Var, rows: Rows) -> Callable[[Any], Any]:
    """Puts stacked pieces back to where their examples are."""
    shape, place = split_shape(batch, var.aval.shape, rows)
    stacked = (batch.count, *shape[:place], *shape[place + 1 :])
    order = (*range(1, place + 1), 0, *range(place + 1, len(shape)))
    return lambda stack: lax.transpose(stack.reshape(stacked), order).reshape(var.aval.shape)
