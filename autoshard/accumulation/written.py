"""Equations over one microbatch, written."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from math import prod
from typing import Any

import jax
import jax.numpy as jnp
from jax import lax
from jax.extend.core import ClosedJaxpr, Jaxpr, JaxprEqn, Literal, Var
from jax.extend.random import threefry2x32_p
from jax.sharding import AbstractMesh

from autoshard.accumulation.held import Batch, Held, Rows, Shape, Total
from autoshard.accumulation.level import Level, OpWithBodies
from autoshard.accumulation.op_over_batch import LocalOp
from autoshard.accumulation.op_rules import piece_of_result
from autoshard.frontend.inline_calls import inline_calls
from autoshard.frontend.meshes import mesh_context

_COUNTER_LIMIT = 2**32
"""Elements that the lower word of a random counter tells apart."""


class Equations:
    """A growing list of equations.

    Args:
        mesh: That new ones are traced under.
        traced: Functions that were traced under it, by name and types.
    """

    def __init__(
        self, mesh: AbstractMesh | None, traced: dict[Hashable, ClosedJaxpr] | None = None
    ) -> None:
        self.mesh, self.traced = mesh, {} if traced is None else traced
        self.eqns: list[JaxprEqn] = []

    def call(
        self, fn: Callable[..., Any], *atoms: Any, like: JaxprEqn | None, name: Hashable = None
    ) -> list[Any]:
        """Append what a function of arrays does, as if it stood in the line of `like`.

        Args:
            fn: The function.
            atoms: What it is called with.
            like: An equation to take the place of.
            name: What tells it from other functions: such a one is traced once for each types.
        """
        avals = [jax.ShapeDtypeStruct(atom.aval.shape, atom.aval.dtype) for atom in atoms]
        key = (name, *((aval.shape, str(aval.dtype)) for aval in avals))
        closed = None if name is None else self.traced.get(key)
        if closed is None:
            with mesh_context(self.mesh):
                closed = self.traced[key] = jax.make_jaxpr(fn)(*avals)
        assert not closed.consts
        atom_of: dict[Any, Any] = dict(zip(closed.jaxpr.invars, atoms, strict=True))

        def read(atom: Any) -> Any:
            return atom if isinstance(atom, Literal) else atom_of.get(atom, atom)

        flat, outvars = inline_calls(closed.jaxpr)
        for eqn, _ in flat:
            source = eqn.source_info if like is None else like.source_info
            self.eqns.append(eqn.replace(invars=list(map(read, eqn.invars)), source_info=source))
        return [read(atom) for atom in outvars]


class Microbatch(Equations):
    """The equations of a level over one microbatch.

    Args:
        level: The equations over the whole batch.
        index: The number of the microbatch.
        around: The equations that the level stands among.
    """

    def __init__(self, level: Level, index: Var, around: Equations) -> None:
        super().__init__(around.mesh, around.traced)
        self.level, self.index = level, index
        self.atom_of: dict[Var, Any] = {}
        self._pieces: dict[tuple[Var, Rows], Any] = {}

    @property
    def batch(self) -> Batch:
        return self.level.batch

    def write(self, positions: Iterable[int]) -> None:
        """Write these equations."""
        for position in positions:
            eqn = self.level.eqns[position]
            self.atom_of.update(
                zip(eqn.outvars, self._local(eqn, self.level.ops[position]), strict=True)
            )

    def read(self, atom: Any, wanted: Held) -> Any:
        """A value as an equation over one microbatch reads it."""
        if isinstance(atom, Literal):
            return atom
        if isinstance(wanted, Rows) and not isinstance(self.level.held[atom], Rows):
            return self.piece(atom, wanted)
        return self.whole(atom)

    def whole(self, var: Var) -> Any:
        return self.atom_of[var]

    def sliced(self, var: Var, rows: Rows) -> Any:
        """One microbatch's piece of a value that is there whole."""
        shape, places = split_shape(self.batch, var.aval.shape, rows)
        local = self.batch.piece(var.aval.shape, rows)

        def take(whole: Any, index: Any) -> Any:
            one = lax.dynamic_index_in_dim(whole.reshape(shape), index, places, keepdims=False)
            return one.reshape(local)

        return self.call(take, self.whole(var), self.index, like=self.level.made_by.get(var))[0]

    def piece(self, var: Var, rows: Rows) -> Any:
        """One microbatch's piece of a value that all examples share."""
        found = self._pieces.get((var, rows))
        if found is not None:
            return found
        eqn = self.level.made_by.get(var)
        op = None if eqn is None else piece_of_result(eqn, rows, self.batch)
        if eqn is None:
            found = self.sliced(var, rows)
        elif op is not None:
            results = self._local(eqn, op)
            self._pieces.update(((v, rows), a) for v, a in zip(eqn.outvars, results, strict=True))
            return self._pieces[var, rows]
        elif eqn.primitive.name == "iota":
            found = self._iota(eqn, rows)
        elif _has_counters(eqn):
            found = self._random_bits(eqn, rows)
        else:
            found = self.sliced(var, rows)
        self._pieces[var, rows] = found
        return found

    def _local(self, eqn: JaxprEqn, op: LocalOp | OpWithBodies) -> list[Any]:
        """Append an equation over one microbatch; returns its results."""
        operands = [self.read(a, h) for a, h in zip(eqn.invars, op.operands, strict=True)]
        if isinstance(op, OpWithBodies):
            params = op.params([self._body(level, results) for level, results in op.bodies])
            for count, place in enumerate(op.index_places):
                operands.insert(place + count, self.index)
        else:
            params = op.params
        results = [
            Var(local_aval(var.aval, held, self.batch))
            for var, held in zip(eqn.outvars, op.results, strict=True)
        ]
        self.eqns.append(
            eqn.replace(invars=operands, outvars=results, params={**eqn.params, **params})
        )
        if eqn.primitive.name == "scatter-add" and isinstance(op.results[0], Total):
            # XLA miscompiles a sum of scatters over devices that it moves out of a loop
            # (while-loop-all-reduce-code-motion); behind a barrier it stays where it is.
            results = self.call(lax.optimization_barrier, results[0], like=eqn)
        return results

    def _body(self, level: Level, results: Sequence[Held]) -> Jaxpr:
        """A body over one microbatch, whose number is its first argument."""
        old = level.jaxpr
        inner = Microbatch(level, Var(self.index.aval), self)
        arguments = [Var(local_aval(v.aval, level.held[v], self.batch)) for v in old.invars]
        inner.atom_of.update(zip(old.constvars, old.constvars, strict=True))
        inner.atom_of.update(zip(old.invars, arguments, strict=True))
        inner.write(range(len(level.eqns)))
        ends = [inner.read(a, h) for a, h in zip(level.outvars, results, strict=True)]
        return Jaxpr(
            old.constvars,
            [inner.index, *arguments],
            ends,
            inner.eqns,
            old.effects,
            old.debug_info.with_unknown_names(),
            old.is_high,
        )

    def _iota(self, eqn: JaxprEqn, rows: Rows) -> Any:
        shape = self.batch.piece(eqn.params["shape"], rows)
        dimension, dtype = eqn.params["dimension"], eqn.params["dtype"]

        def places(index: Any) -> Any:
            if dimension != rows.dim:
                return lax.broadcasted_iota(dtype, shape, dimension)
            return elements(self.batch, shape, rows, index).astype(dtype)

        return self.call(places, self.index, like=eqn)[0]

    def _random_bits(self, eqn: JaxprEqn, rows: Rows) -> Any:
        """The bits that the whole batch would have there: they follow from key and place alone."""
        full = eqn.params["shape"]
        shape = self.batch.piece(full, rows)
        dtype = jnp.dtype(f"uint{eqn.params['bit_width']}")

        def bits(key: Any, index: Any) -> Any:
            words = jax.random.key_data(key)
            place = jnp.zeros(shape, jnp.uint32)
            for dim in range(len(shape)):
                if dim == rows.dim:
                    at = elements(self.batch, shape, rows, index).astype(jnp.uint32)
                else:
                    at = lax.broadcasted_iota(jnp.uint32, shape, dim)
                place = place + at * jnp.uint32(prod(full[dim + 1 :]))
            high, low = threefry2x32_p.bind(words[0], words[1], jnp.zeros_like(place), place)
            if dtype.itemsize == 8:
                return (high.astype(dtype) << 32) | low.astype(dtype)
            return (high ^ low).astype(dtype)

        return self.call(
            bits, self.read(eqn.invars[0], self.level.held_of(eqn.invars[0])), self.index, like=eqn
        )[0]


def _has_counters(eqn: JaxprEqn) -> bool:
    """True where each random number follows from the key and its place."""
    if eqn.primitive.name != "random_bits" or eqn.invars[0].aval.shape:
        return False
    counted = eqn.ctx.threefry_partitionable and prod(eqn.params["shape"]) < _COUNTER_LIMIT
    return bool(counted and str(eqn.invars[0].aval.dtype) == "key<fry>")


def elements(batch: Batch, shape: Shape, rows: Rows, index: Any) -> Any:
    """int32[shape]: where each element of a piece is along its dimension in the whole value."""
    local = lax.broadcasted_iota(jnp.int32, shape, rows.dim)
    if rows.outer == rows.inner == 1:
        return local * batch.count + index
    inside, example = local % rows.inner, local // rows.inner
    own = batch.size // batch.count
    outer, example = example // own, example % own
    return (outer * batch.size + example * batch.count + index) * rows.inner + inside


def split_shape(batch: Batch, shape: Sequence[int], rows: Rows) -> tuple[Shape, int]:
    """A shape with a dimension of microbatches, and which one that is."""
    middle = (rows.outer, batch.size // batch.count, batch.count, rows.inner)
    return (*shape[: rows.dim], *middle, *shape[rows.dim + 1 :]), rows.dim + 2


def local_aval(aval: Any, held: Held, batch: Batch) -> Any:
    return aval.update(shape=batch.piece(aval.shape, held)) if isinstance(held, Rows) else aval
