"""Mesh axes cut into the parts that some shardings speak of, or into the smallest there are."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import islice, pairwise, product

from autoshard.errors import ShardingError
from autoshard.layouts import MeshParts
from autoshard.sharding import AxisRef, Mesh

_MAX_SPLITTINGS = 6


def parts_at(refs: Iterable[AxisRef], mesh: Mesh) -> MeshParts:
    """The mesh cut where the given sub-axes begin and end, and nowhere else.

    Raises:
        ShardingError: Sub-axes of one axis cannot be parts of one splitting of it.
    """
    return MeshParts.of(mesh, _segments(list(refs), mesh))


def finest_parts(refs: Iterable[AxisRef], mesh: Mesh) -> Iterator[MeshParts]:
    """The mesh cut where the given sub-axes begin and end, and between prime factors.

    An axis of size 6 can be cut as 2 by 3 or as 3 by 2, and a part of it only belongs to one of
    them; the first few such ways are given, the most ascending first.

    Raises:
        ShardingError: Sub-axes of one axis cannot be parts of one splitting of it.
    """
    segments = _segments(list(refs), mesh)
    ways_by_axis = []
    for name, sizes in segments.items():
        ways = product(*(tuple(_orders(prime_factors(size))) for size in sizes))
        ways_by_axis.append(
            [
                (name, tuple(prime for segment in way for prime in segment))
                for way in islice(ways, _MAX_SPLITTINGS)
            ]
        )
    for chosen in islice(product(*ways_by_axis), _MAX_SPLITTINGS):
        yield MeshParts.of(mesh, dict(chosen))


def prime_factors(number: int) -> tuple[int, ...]:
    """Prime factors, ascending, as often as they divide."""
    found = []
    divisor = 2
    while divisor * divisor <= number:
        while number % divisor == 0:
            found.append(divisor)
            number //= divisor
        divisor += 1
    return (*found, number) if number > 1 else tuple(found)


def _orders(primes: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """The different orders of some numbers, the given one first."""
    if not primes:
        yield ()
    for first in dict.fromkeys(primes):
        place = primes.index(first)
        for rest in _orders((*primes[:place], *primes[place + 1 :])):
            yield (first, *rest)


def _segments(refs: list[AxisRef], mesh: Mesh) -> dict[str, tuple[int, ...]]:
    """By axis, the sizes of its parts, major to minor."""
    found = {}
    for axis in mesh.axes:
        own = [ref for ref in refs if ref.name == axis.name and ref.size is not None]
        ends = {end for ref in own for end in (ref.pre_size, ref.next_pre_size or axis.size)}
        places = sorted({1, axis.size} | ends)
        if any(after % before for before, after in pairwise(places)):
            shown = " and ".join(map(str, dict.fromkeys(own)))
            raise ShardingError(
                f'{shown} cannot be parts of one splitting of axis "{axis.name}" of size'
                f" {axis.size}",
                where=str(mesh),
                fix="use sub-axes that begin and end at places which divide one another",
            )
        found[axis.name] = tuple(after // before for before, after in pairwise(places))
    return found
