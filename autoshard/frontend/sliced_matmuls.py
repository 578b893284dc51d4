"""Matmuls of which a part is taken, written as matmuls of parts.

`logits[:, :-1]` takes a part of what a matmul makes, and the gradient of that pads what two matmuls
read. XLA slices what the matmuls multiply instead, which is smaller than logits are.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeAlias

import jax
from jax.extend.core import Jaxpr, JaxprEqn, Literal, Var

from autoshard.frontend.jaxpr_paths import is_constrainable
from autoshard.frontend.rewritable_equations import is_free_matmul
from autoshard.frontend.spliced import spliced, with_replaced

_TRANSPARENT = frozenset({"convert_element_type", "transpose", "reshape", "copy"})

Part: TypeAlias = tuple[int, int, int]
"""Start, limit and stride along a dimension."""


def with_sliced_matmuls(jaxpr: Jaxpr) -> Jaxpr:
    """The same, slices of matmuls as matmuls of slices, and matmuls of padded operands likewise.

    Arguments are not sliced, nor is what is made of one of them alone: weights stay whole. Matmuls
    whose results have a sharding in their types stay.
    """
    return with_replaced(jaxpr, lambda body: _Equations.of(body).replaced())


@dataclass(frozen=True, slots=True)
class _Equations:
    """Equations of one body.

    Args:
        eqns: In order.
        maker: The place of the equation that makes a variable.
        readers: Places of those that read it, once a read; -1 for a result of the body.
    """

    eqns: Sequence[JaxprEqn]
    maker: Mapping[Var, int]
    readers: Mapping[Var, Sequence[int]]

    @staticmethod
    def of(jaxpr: Jaxpr) -> _Equations:
        maker = {var: place for place, eqn in enumerate(jaxpr.eqns) for var in eqn.outvars}
        readers: dict[Var, list[int]] = {}
        reads = [(place, atom) for place, eqn in enumerate(jaxpr.eqns) for atom in eqn.invars]
        for place, atom in [*reads, *((-1, atom) for atom in jaxpr.outvars)]:
            if not isinstance(atom, Literal):
                readers.setdefault(atom, []).append(place)
        return _Equations(jaxpr.eqns, maker, readers)

    def replaced(self) -> dict[int, list[JaxprEqn]]:
        """By the place of an equation those that stand there instead; none where it is left out."""
        found: dict[int, list[JaxprEqn]] = {}
        for place, eqn in enumerate(self.eqns):
            if eqn.primitive.name == "slice":
                made = self._of_slice(place, eqn)
            elif eqn.primitive.name == "pad":
                made = self._of_pad(place, eqn)
            else:
                continue
            if found.keys().isdisjoint(made):
                found |= made
        return found

    def _of_slice(self, place: int, eqn: JaxprEqn) -> dict[int, list[JaxprEqn]]:
        """The matmul of slices in the place of a slice, without the matmul and what is between."""
        way: list[int] = []
        value = eqn.invars[0]
        while self._only_reader(value) is not None:
            way.append(self.maker.get(value, -1))
            maker = self.eqns[way[-1]] if way[-1] >= 0 else None
            if maker is None or not _is_convert(maker):
                break
            value = maker.invars[0]
        if not way or way[-1] < 0 or not _is_plain_matmul(self.eqns[way[-1]]):
            return {}
        matmul, converts = self.eqns[way[-1]], [self.eqns[one] for one in reversed(way[:-1])]
        parts = _parts_of_slice(eqn)
        sides = _sides_of_result(matmul)
        if any(self._is_given(matmul.invars[side]) for dim in parts for side in sides[dim]):
            return {}

        def run(*operands: Any) -> Any:
            for dim, part in parts.items():
                operands = tuple(
                    _sliced(one, sides[dim][side], part) if side in sides[dim] else one
                    for side, one in enumerate(operands)
                )
            return _converted(_bound(matmul, *operands), converts)

        left_out: dict[int, list[JaxprEqn]] = {index: [] for index in way}
        return {place: spliced(run, matmul, matmul.invars, eqn.outvars), **left_out}

    def _of_pad(self, place: int, eqn: JaxprEqn) -> dict[int, list[JaxprEqn]]:
        """Matmuls of parts in the place of those that read what zeros are put around."""
        parts = _parts_of_pad(eqn)
        if not parts:
            return {}
        matmuls: list[tuple[int, int, list[JaxprEqn]]] = []  # with the operand, and what is between
        found: dict[int, list[JaxprEqn]] = {place: []}
        todo: list[tuple[Var, list[JaxprEqn]]] = [(eqn.outvars[0], [])]
        while todo:
            value, converts = todo.pop()
            for index in self.readers.get(value, [-1]):
                reader = self.eqns[index]
                if index < 0 or not (_is_plain_matmul(reader) or _is_convert(reader)):
                    return {}
                if _is_convert(reader):
                    found[index] = []
                    todo.append((reader.outvars[0], [*converts, reader]))
                    continue
                side = reader.invars.index(value)
                if reader.invars[0] is reader.invars[1]:
                    return {}
                matmuls.append((index, side, converts))
        for index, side, converts in matmuls:
            made = self._of_padded(eqn, parts, self.eqns[index], side, converts)
            if made is None:
                return {}
            found[index] = made
        return found if matmuls else {}

    def _of_padded(
        self,
        pad: JaxprEqn,
        parts: Mapping[int, Part],
        matmul: JaxprEqn,
        side: int,
        converts: Sequence[JaxprEqn],
    ) -> list[JaxprEqn] | None:
        """One matmul of what is padded: of a slice of the other operand, or padded after it."""
        summed, batch = matmul.params["dimension_numbers"]
        other = 1 - side
        shared = [*zip(*summed, strict=True), *zip(*batch, strict=True)]
        opposite = {dims[side]: dims[other] for dims in shared}
        sides = _sides_of_result(matmul)
        after = [
            (dim, parts[places[side]]) for dim, places in sides.items() if places.get(side) in parts
        ]
        sliced = {opposite[dim]: part for dim, part in parts.items() if dim in opposite}
        if sliced and self._is_given(matmul.invars[other]):
            return None
        size = matmul.outvars[0].aval.shape

        def run(padded: Any, beside: Any) -> Any:
            padded = _converted(padded, converts)
            for dim, part in sliced.items():
                beside = _sliced(beside, dim, part)
            made = _bound(matmul, *((padded, beside) if side == 0 else (beside, padded)))
            edges = [(0, 0, 0)] * made.ndim
            for dim, (start, limit, _) in after:
                edges[dim] = (start, size[dim] - limit, 0)
            return jax.lax.pad(made, made.dtype.type(0), edges) if after else made

        return spliced(run, matmul, [pad.invars[0], matmul.invars[other]], matmul.outvars)

    def _only_reader(self, value: Any) -> int | None:
        readers = [] if isinstance(value, Literal) else self.readers.get(value, [])
        return readers[0] if len(readers) == 1 else None

    def _is_given(self, value: Any) -> bool:
        """True for an argument of the body, and for one in another shape, order or type."""
        while not isinstance(value, Literal) and value in self.maker:
            eqn = self.eqns[self.maker[value]]
            if eqn.primitive.name not in _TRANSPARENT:
                return False
            value = eqn.invars[0]
        return True


def _is_plain_matmul(eqn: JaxprEqn) -> bool:
    """True where neither the op nor the type of its result says a sharding."""
    return is_free_matmul(eqn) and is_constrainable(eqn.outvars[0].aval)


def _is_convert(eqn: JaxprEqn) -> bool:
    return bool(eqn.primitive.name == "convert_element_type")


def _parts_of_slice(eqn: JaxprEqn) -> dict[int, Part]:
    """Start, limit and stride along each dimension that is not taken whole."""
    params, shape = eqn.params, eqn.invars[0].aval.shape
    strides = params["strides"] or (1,) * len(shape)
    given = zip(params["start_indices"], params["limit_indices"], strides, strict=True)
    whole = [(0, size, 1) for size in shape]
    return {dim: part for dim, part in enumerate(given) if part != whole[dim]}


def _parts_of_pad(eqn: JaxprEqn) -> dict[int, Part]:
    """Where what is padded lies, along each dimension that grows; nothing where it is not zeros."""
    (padded, filling), edges = eqn.invars, eqn.params["padding_config"]
    is_zero = isinstance(filling, Literal) and filling.val == 0
    if not is_zero or any(low < 0 or high < 0 or between for low, high, between in edges):
        return {}
    return {
        dim: (low, low + size, 1)
        for dim, ((low, high, _), size) in enumerate(zip(edges, padded.aval.shape, strict=True))
        if low or high
    }


def _sides_of_result(matmul: JaxprEqn) -> dict[int, dict[int, int]]:
    """By dimension of the result, the dimension of the left (0) and right (1) operand it is of."""
    summed, batch = matmul.params["dimension_numbers"]
    found = [{0: left, 1: right} for left, right in zip(*batch, strict=True)]
    for side in range(2):
        held = {*summed[side], *batch[side]}
        found += [{side: d} for d in range(matmul.invars[side].aval.ndim) if d not in held]
    return dict(enumerate(found))


def _sliced(value: Any, dim: int, part: Part) -> Any:
    start, limit, stride = part
    return jax.lax.slice_in_dim(value, start, limit, stride, dim)


def _converted(value: Any, converts: Sequence[JaxprEqn]) -> Any:
    for convert in converts:
        value = _bound(convert, value)
    return value


def _bound(eqn: JaxprEqn, *operands: Any) -> Any:
    return eqn.primitive.bind(*operands, **eqn.params)
