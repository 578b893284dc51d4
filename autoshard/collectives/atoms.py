"""Mesh parts that move together, taken as one where a mesh has many."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from math import prod

from autoshard.layouts import MeshParts, Parts
from autoshard.sharding import AxisRef


@dataclass(frozen=True)
class Atoms:
    """Groups of mesh parts, numbered; each is always whole, its parts in one order.

    Args:
        parts: The mesh in parts.
        groups: Per atom, its parts, major to minor.
    """

    parts: MeshParts
    groups: tuple[Parts, ...]

    @staticmethod
    def of(parts: MeshParts, sequences: Iterable[Parts], most: int) -> Atoms:
        """Single parts, or where there are more than `most`, the stretches that sequences share.

        Args:
            parts: The mesh in parts.
            sequences: Cuts that must be spelled by whole atoms.
            most: Parts that are few enough to stay single.
        """
        count = len(parts.sizes)
        if count <= most:
            return Atoms(parts, tuple((part,) for part in range(count)))
        given = [sequence for sequence in sequences if sequence]
        used = list(dict.fromkeys(part for sequence in given for part in sequence))
        groups: list[list[int]] = []
        for part in used:
            if groups and _always_follows(part, groups[-1][-1], given):
                groups[-1].append(part)
            else:
                groups.append([part])
        rest = [part for part in range(count) if part not in used]
        return Atoms(parts, tuple(map(tuple, [*groups, *([rest] if rest else [])])))

    @cached_property
    def sizes(self) -> tuple[int, ...]:
        """Devices along every atom."""
        return tuple(self.parts.num_shards(group) for group in self.groups)

    def num_shards(self, atoms: Iterable[int]) -> int:
        """Pieces that a dimension cut by atoms falls into."""
        return prod(self.sizes[atom] for atom in atoms)

    def expand(self, atoms: Iterable[int]) -> Parts:
        """The parts of some atoms, in order."""
        return tuple(part for atom in atoms for part in self.groups[atom])

    def spell(self, sequence: Parts) -> Parts:
        """A cut in atoms."""
        atom_by_first = {group[0]: atom for atom, group in enumerate(self.groups)}
        return tuple(atom_by_first[part] for part in sequence if part in atom_by_first)

    def refs(self, atoms: Sequence[int]) -> tuple[AxisRef, ...]:
        """Atoms as axis references."""
        return self.parts.refs(self.expand(atoms))


def _always_follows(part: int, before: int, sequences: Sequence[Parts]) -> bool:
    """Whether one part comes right after another in every sequence that has either."""
    for sequence in sequences:
        if part not in sequence and before not in sequence:
            continue
        if part not in sequence or before not in sequence:
            return False
        if sequence.index(part) != sequence.index(before) + 1:
            return False
    return True
