"""Explicit reshards as the step inserts them: ours, or those of jaxlib's own pass.

Jaxlib's are taken where all collectives and the work of the module cost less with them, and where
its shardings are on meshes in several device orders, or sums are left through ops that add nothing
up: what our search has no words for.
"""

from __future__ import annotations

from jaxlib.mlir import ir

from autoshard.collectives import ModulePrices
from autoshard.errors import ExportError, ShardingError
from autoshard.export.explicit_reshards import insert_explicit_reshards
from autoshard.export.module_cost import cost_of
from autoshard.export.module_mesh import OtherMeshError
from autoshard.export.reshards_to_collectives import reshards_to_collectives
from autoshard.export.verify_module import violations_in
from autoshard.mlir_modules import Module, meshes_of, run_passes

_PASS = "func.func(sdy-insert-explicit-reshards{enable-full-version=true})"
_STEP = "inserting explicit reshards"


def insert_cheaper_reshards(module: Module, prices: ModulePrices | None = None) -> None:
    """Insert reshards and all-reduces into a module, in place; the cheaper of two ways.

    Args:
        module: Its shardings are taken as closed. One whose meshes are all of one device stays.
        prices: What moving and working costs; the bytes received if not given.

    Raises:
        ExportError: The module has no mesh.
    """
    meshes = meshes_of(module).values()
    if meshes and all(mesh.is_maximal for mesh in meshes):
        return
    ours = _copy(module)
    try:
        insert_explicit_reshards(ours, prices)
    except (OtherMeshError, ShardingError):
        run_passes(module, _PASS, step=_STEP)
        return
    theirs = _cheaper_of_jaxlib(module, _cost(ours, prices), prices)
    _put(ours if theirs is None else theirs, module)


def _cheaper_of_jaxlib(module: Module, cost: float, prices: ModulePrices | None) -> Module | None:
    """The module as jaxlib's pass makes it, where that is sound and costs less."""
    theirs = _copy(module)
    try:
        run_passes(theirs, _PASS, step=_STEP)
        is_cheaper = _cost(theirs, prices) < cost and not any(violations_in(_copy(theirs)))
    except (ExportError, ShardingError):
        return None
    return theirs if is_cheaper else None


def _copy(module: Module) -> Module:
    return module.operation.clone()


def _cost(module: Module, prices: ModulePrices | None) -> float:
    module = _copy(module)
    reshards_to_collectives(module, prices)
    return cost_of(module, prices).total


def _put(found: Module, module: Module) -> None:
    """Make a module what its changed copy is."""
    for op in list(module.body.operations):
        op.operation.erase()
    for op in list(found.body.operations):
        op.operation.clone(ip=ir.InsertionPoint(module.body))
