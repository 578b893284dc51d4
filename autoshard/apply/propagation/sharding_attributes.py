"""Shardings as attributes of a module, written and read."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from jaxlib.mlir import ir
from jaxlib.mlir.dialects import sdy

from autoshard.apply.flat_module import MlirOp
from autoshard.apply.module_meshes import ModuleMeshes
from autoshard.errors import ShardingError
from autoshard.identity_cache import IdentityCache
from autoshard.sharding import Mesh, Sharding, check_sharding


class ShardingAttributes:
    """Turns shardings into Shardy's attributes and back; each is turned once.

    Args:
        module: Parsed; meshes that it lacks are added to it.
        mesh: Of all shardings that carry no other one.
    """

    def __init__(self, module: Any, mesh: Mesh) -> None:
        self._mesh = mesh
        self._meshes = ModuleMeshes(module, mesh)
        self._attribute_by_sharding: dict[tuple[Sharding, int], Any] = {}
        self._sharding_by_attribute: dict[Any, Sharding] = {}
        self._open_by_rank: dict[int, Sharding] = {}
        self._boundaries: IdentityCache[Any] = IdentityCache()

    def of(self, sharding: Sharding, shape: tuple[int, ...], where: str) -> Any:
        """A sharding as Shardy has it, checked here because the passes run unchecked.

        Raises:
            ShardingError: The shape or the mesh does not admit it.
        """
        found = self._attribute_by_sharding.get((sharding, len(shape)))
        if found is None:
            try:
                check_sharding(sharding, sharding.inlined_mesh or self._mesh, shape)
            except ShardingError as error:
                raise ShardingError(error.what, where=where, fix=error.fix) from error
            found = self._meshes.attribute(sharding)
            self._attribute_by_sharding[sharding, len(shape)] = found
        return found

    def on_boundary(
        self,
        main: MlirOp,
        name: str,
        shapes: Sequence[tuple[int, ...]],
        shardings: Sequence[Sharding | None],
    ) -> Any:
        """All attributes of arguments or results, shardings added; shorter ones are free.

        Args:
            main: The function, always with the attributes that it had at the first call.
            name: `arg_attrs` or `res_attrs`.
            shapes: Of the arguments or results.
            shardings: Likewise; None is free.
        """

        def made() -> Any:
            given = ir.ArrayAttr(main.attributes[name]) if name in main.attributes else None
            dictionaries = []
            for index, shape in enumerate(shapes):
                entries = {}
                if given is not None:
                    entries = {item.name: item.attr for item in ir.DictAttr(given[index])}
                sharding = shardings[index] if index < len(shardings) else None
                if sharding is not None:
                    where = f"{'argument' if name == 'arg_attrs' else 'result'} {index}"
                    entries["sdy.sharding"] = self.of(sharding, shape, where)
                dictionaries.append(ir.DictAttr.get(entries))
            return ir.ArrayAttr.get(dictionaries)

        return self._boundaries.get(made, *shardings, key=name)

    def read_boundary(self, main: MlirOp, name: str, ranks: Iterable[int]) -> list[Sharding]:
        """The shardings of all arguments or results of a function, `open` where none is said."""
        if name not in main.attributes:
            return [self.open(rank) for rank in ranks]
        entries = map(ir.DictAttr, ir.ArrayAttr(main.attributes[name]))
        return [
            self._read(one["sdy.sharding"]) if "sdy.sharding" in one else self.open(rank)
            for one, rank in zip(entries, ranks, strict=True)
        ]

    def open(self, rank: int) -> Sharding:
        """A sharding that nothing reached."""
        found = self._open_by_rank.get(rank)
        if found is None:
            found = self._open_by_rank[rank] = Sharding.fully_open(rank)
        return found

    def read(self, op: MlirOp, index: int, *, is_argument: bool) -> Sharding | None:
        """The sharding of a result of an op, or of an argument of its body, if it has one."""
        if op.name in {"sdy.sharding_constraint", "sdy.reshard"}:
            return self._read(op.attributes["sharding"])
        if op.name == "sdy.manual_computation":
            side = "in_shardings" if is_argument else "out_shardings"
            attribute = sdy.TensorShardingPerValueAttr(op.attributes[side]).shardings[index]
            if is_argument:
                axes = sdy.ManualAxesAttr(op.attributes["manual_axes"])
                return self._meshes.sharding(attribute, without=frozenset(axes))
            return self._read(attribute)
        if "sdy.sharding" not in op.attributes:
            return None
        per_value = sdy.TensorShardingPerValueAttr(op.attributes["sdy.sharding"])
        return self._read(per_value.shardings[index])

    def _read(self, attribute: Any) -> Sharding:
        found = self._sharding_by_attribute.get(attribute)
        if found is None:
            found = self._sharding_by_attribute[attribute] = self._meshes.sharding(attribute)
        return found
