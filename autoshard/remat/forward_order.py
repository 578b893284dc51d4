"""Forward equations in an order in which they can run, with those of rematerialised regions.

A value that only a rematerialised region computes stands right after what it is computed from,
where it would be computed if it was kept.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from jax.extend.core import JaxprEqn, Var

from autoshard.remat.joint_graph import variables

Place = tuple[int, int]


@dataclass(eq=False, slots=True)
class ForwardOrder:
    """Places of forward equations: that of the program, and a number behind it."""

    _eqns: list[tuple[Place, JaxprEqn]] = field(default_factory=list)
    _place_of: dict[Var, Place] = field(default_factory=dict)

    def add(self, eqn: JaxprEqn, position: int) -> None:
        """An equation at its own place in the program."""
        self._put(eqn, (position, 0))

    def add_early(self, eqn: JaxprEqn) -> None:
        """An equation behind the last one that it reads."""
        places = [self._place_of[v] for v in variables(eqn.invars) if v in self._place_of]
        last = max(places, default=(-1, 0))
        self._put(eqn, (last[0], last[1] + 1))

    def __contains__(self, var: Any) -> bool:
        return var in self._place_of

    def in_order(self) -> list[tuple[int, JaxprEqn]]:
        """The equations, each with its place in the program."""
        return [(place[0], eqn) for place, eqn in sorted(self._eqns, key=lambda entry: entry[0])]

    def _put(self, eqn: JaxprEqn, place: Place) -> None:
        self._eqns.append((place, eqn))
        self._place_of.update(dict.fromkeys(eqn.outvars, place))
