"""Propagation of shardings given on the border of a program: over few of its equal layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property

from autoshard.apply.propagation.few_layers import FewLayers, Shardings, few_layers_of
from autoshard.apply.propagation.propagator import PlannedProgram, Propagator, propagator_for
from autoshard.sharding import Mesh, Sharding


@dataclass(frozen=True, eq=False)
class PropagationByLayer:
    """Propagates shardings of arguments and results, as often as asked.

    Args:
        program: Tagged.
        mesh: Of all shardings.
    """

    program: PlannedProgram
    mesh: Mesh

    def propagate(
        self, paths: Iterable[str], in_shardings: Shardings, out_shardings: Shardings = ()
    ) -> Mapping[str, Sharding]:
        """Where values end up, but for those of which every reader has a copy.

        Equal layers are propagated once where they are given equal shardings.
        """
        few = self._few
        if few is None or not self._gives_alike(in_shardings):
            return self._whole.propagate(in_shardings, out_shardings)
        found = self._of_few.propagate(in_shardings, out_shardings)
        copies = ((path, self._arguments.get(path) or few.with_copy(path)) for path in paths)
        return {path: found[copy] for path, copy in copies if copy in found}

    def _gives_alike(self, in_shardings: Shardings) -> bool:
        given = {f"in.{index}": sharding for index, sharding in enumerate(in_shardings)}
        return all(given.get(one) == given.get(kept) for one, kept in self._arguments.items())

    @cached_property
    def _few(self) -> FewLayers | None:
        return few_layers_of(self.program, {}, ())

    @cached_property
    def _arguments(self) -> Mapping[str, str]:
        """By argument that layers left out read, the one in its place."""
        assert self._few is not None
        return dict(self._few.argument_copies(self.program.operand_paths))

    @cached_property
    def _of_few(self) -> Propagator:
        assert self._few is not None
        return propagator_for(self._few, self.mesh)

    @cached_property
    def _whole(self) -> Propagator:
        return propagator_for(self.program, self.mesh)
