"""Arguments and results of a plan in JAX's terms: their shardings, and arrays put where they go."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import jax
from jax.sharding import NamedSharding

from autoshard.apply.boundary_shardings import as_written
from autoshard.apply.named_shardings import JaxMesh, flat_named_shardings
from autoshard.apply.placing import check_like, init, shard, without_static
from autoshard.argument_types import check_types
from autoshard.errors import PlanError
from autoshard.frontend.meshes import concrete_mesh
from autoshard.frontend.trace import Traced
from autoshard.plans.plan import PlanData
from autoshard.sharding import Sharding


@dataclass(frozen=True)
class PlanBoundary:
    """Arguments and results of a planned function.

    Args:
        data: The plan.
        traced: The trace of its function; None for a plan read from a file.
        mesh: The JAX mesh to run on; None to take the devices of this machine when needed.
        static_argnums: As given when planning.
    """

    data: PlanData
    traced: Traced | None
    mesh: jax.sharding.Mesh | None
    static_argnums: tuple[int, ...]

    @cached_property
    def devices(self) -> JaxMesh:
        """The mesh to run on.

        Raises:
            InputError: This machine has too few devices for it.
        """
        return JaxMesh(self.mesh or concrete_mesh(self.data.mesh))

    @property
    def program(self) -> Traced:
        """The trace.

        Raises:
            PlanError: The plan was read from a file.
        """
        if self.traced is None:
            raise PlanError(
                "a plan read from a file does not know the trees of the function's arguments",
                where=f"plan for {self.data.function}",
                fix="use plan.jit(fn), which finds them on the first call",
            )
        return self.traced

    @property
    def arguments(self) -> list[Sharding]:
        """Of flat arguments, as users wrote them where they did."""
        asked = None if self.traced is None else self.traced.user_in
        return as_written(self.data.arguments, asked, self.data.mesh)

    @property
    def results(self) -> list[Sharding]:
        """Likewise of flat results."""
        asked = None if self.traced is None else self.traced.user_out
        return as_written(self.data.results, asked, self.data.mesh)

    @property
    def named_arguments(self) -> tuple[NamedSharding | None, ...]:
        """The same on the devices."""
        self.data.require_feasible()
        names = [f"argument `{tensor.name}`" for tensor in self.data.arguments]
        return flat_named_shardings(self.arguments, self.devices, names)

    @property
    def named_results(self) -> tuple[NamedSharding | None, ...]:
        """Likewise of results."""
        self.data.require_feasible()
        names = [f"result `{tensor.name}`" for tensor in self.data.results]
        return flat_named_shardings(self.results, self.devices, names)

    def in_shardings(self) -> Any:
        """In the trees of the positional arguments."""
        flat = self.named_arguments
        positional, _ = jax.tree.unflatten(self.program.in_tree, flat)
        return positional

    def out_shardings(self) -> Any:
        """In the tree of the result."""
        flat = self.named_results
        return jax.tree.unflatten(self.program.out_tree, flat)

    def shard(self, tree: Any, argument: int | tuple[int, ...]) -> Any:
        """Put arrays where one argument, or a tuple of them, is wanted."""
        shapes, _ = jax.tree.unflatten(self.program.in_tree, self.program.in_avals)
        wanted = self._of_arguments(shapes, argument)
        check_like(tree, wanted, f"plan for {self.data.function}")
        return shard(tree, self._of_arguments(self.in_shardings(), argument), self.devices)

    def init(self, fn: Callable[..., Any], argument: int | tuple[int, ...]) -> Callable[..., Any]:
        """An initialiser whose arrays are born as one argument, or a tuple of them, is wanted."""
        return init(fn, self._of_arguments(self.in_shardings(), argument), self.devices)

    def _of_arguments(self, trees: Sequence[Any], argument: int | tuple[int, ...]) -> Any:
        """Those of positional arguments, counted with the static ones, as users do."""
        check_types(argument=argument)
        if isinstance(argument, tuple):
            return tuple(self._of_arguments(trees, one) for one in argument)
        where = f"plan for {self.data.function}"
        return trees[without_static(argument, len(trees), self.static_argnums, where)]
