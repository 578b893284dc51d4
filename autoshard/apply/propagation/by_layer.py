"""Propagation of shardings given on the border of a program: over few of its equal layers."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property

from autoshard.apply.propagation.few_layers import EqualLayers, FewLayers, Shardings
from autoshard.apply.propagation.propagator import Propagator, propagator_for
from autoshard.frontend.trace import Traced
from autoshard.sharding import Mesh, Sharding


@dataclass(frozen=True, eq=False)
class PropagationByLayer:
    """Propagates shardings of arguments and results, as often as asked.

    Args:
        program: Traced.
        mesh: Of all shardings.
        paths: Of the values whose shardings are asked for.
    """

    program: Traced
    mesh: Mesh
    paths: Collection[str]

    def propagate(
        self, in_shardings: Shardings, out_shardings: Shardings = ()
    ) -> Mapping[str, Sharding]:
        """Where values end up, but for those of which every reader has a copy.

        Equal layers are propagated once where they are given equal shardings.
        """
        if self._few is None or not self._few.admits({}, in_shardings):
            return self._whole.propagate(in_shardings, out_shardings)
        found = self._of_few.propagate(in_shardings, out_shardings)
        return {path: found[copy] for path, copy in self._copies if copy in found}

    @cached_property
    def layers(self) -> EqualLayers:
        """Those of the program."""
        return EqualLayers(self.program)

    @cached_property
    def _few(self) -> FewLayers | None:
        return self.layers.few({}, ())

    @cached_property
    def _copies(self) -> Sequence[tuple[str, str | None]]:
        """Paths, each with that of the value in its place in the smaller program."""
        few = self._few
        assert few is not None
        return [(path, few.argument_copies.get(path) or few.with_copy(path)) for path in self.paths]

    @cached_property
    def _of_few(self) -> Propagator:
        assert self._few is not None
        return propagator_for(self._few, self.mesh)

    @cached_property
    def _whole(self) -> Propagator:
        return propagator_for(self.program, self.mesh)
