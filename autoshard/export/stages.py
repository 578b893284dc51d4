"""The export steps: each a change of a module, and all of them in order.

The steps of Shardy's export documentation. Those that decide nothing are the passes registered in
jaxlib; the two that choose (which operand moves, and by which collectives) are ours.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from jaxlib.mlir import ir

from autoshard.apply.nested_ops import operations_of
from autoshard.collectives import ModulePrices
from autoshard.errors import ExportError, InputError
from autoshard.export.cheaper_reshards import insert_cheaper_reshards
from autoshard.export.reshards_to_collectives import reshards_to_collectives
from autoshard.export.value_shardings import ValueShardings
from autoshard.mlir_modules import (
    MlirValue,
    Module,
    module_context,
    module_text,
    parse_module,
    place_of,
    run_passes,
    sinking_edges,
)
from autoshard.sharding import format_sharding


@dataclass(frozen=True, slots=True)
class Stage:
    """One export step.

    Args:
        name: As `--stage` takes it.
        summary: What it does, in a sentence.
        change: Does it to a module, in place.
    """

    name: str
    summary: str
    change: Callable[[Module, ModulePrices | None], None]


def constraints_to_reshards(module: Module, prices: ModulePrices | None = None) -> None:
    """Every `sdy.sharding_constraint` becomes an `sdy.reshard`."""
    del prices
    run_passes(
        module,
        "func.func(sdy-sharding-constraint-to-reshard)",
        step="turning sharding constraints into reshards",
    )


def remove_sharding_groups(module: Module, prices: ModulePrices | None = None) -> None:
    """Every `sdy.sharding_group` goes; its members have their shardings by now.

    Raises:
        ExportError: Members of a group do not lie alike: it has not done its work.
    """
    del prices
    values = ValueShardings(module, "mesh")
    seen: dict[int, MlirValue] = {}
    for op in operations_of(module.operation):
        if op.name != "sdy.sharding_group":
            continue
        group, value = ir.IntegerAttr(op.attributes["group_id"]).value, op.operands[0]
        first = seen.setdefault(group, value)
        mine, theirs = (_cuts(values, member) for member in (value, first))
        if mine is not None and theirs is not None and mine != theirs:
            raise ExportError(
                f"members of sharding group {group} lie otherwise:"
                f" {format_sharding(values.of(first))} and {format_sharding(values.of(value))}",
                where=f"sdy.sharding_group at {place_of(op)}",
                fix="propagate shardings (or plan) before the groups are removed",
            )
    run_passes(module, "sdy-remove-sharding-groups", step="removing sharding groups")


def _cuts(values: ValueShardings, value: MlirValue) -> object | None:
    written = values.written(value)
    return None if written is None else tuple(dim.axes for dim in written.dims)


def sink_data_flow_edges(module: Module, prices: ModulePrices | None = None) -> None:
    """Every data-flow edge gives its sharding to the op it stands for, and goes."""
    del prices
    run_passes(module, sinking_edges(), step="sinking data-flow edges")


def divide_boundary_shardings(module: Module, prices: ModulePrices | None = None) -> None:
    """Function arguments and results keep the largest prefix of axes that divides them evenly."""
    del prices
    run_passes(
        module,
        "sdy-update-non-divisible-input-output-shardings",
        step="making shardings of arguments and results divide evenly",
    )


def close_shardings(module: Module, prices: ModulePrices | None = None) -> None:
    """Every dimension is final, and replicated axes are no longer written."""
    del prices
    run_passes(module, "sdy-close-shardings", step="closing shardings")


def drop_sharding_rules(module: Module, prices: ModulePrices | None = None) -> None:
    """No op carries a sharding rule any more."""
    del prices
    run_passes(module, "func.func(sdy-drop-sharding-rules)", step="dropping sharding rules")


STAGES: tuple[Stage, ...] = (
    Stage(
        "reshards",
        "sharding constraints are reshards",
        constraints_to_reshards,
    ),
    Stage(
        "no-groups",
        "sharding groups have done their work and are gone",
        remove_sharding_groups,
    ),
    Stage(
        "no-edges",
        "data-flow edges are sunk into their loops and branches",
        sink_data_flow_edges,
    ),
    Stage(
        "divisible",
        "arguments and results are cut evenly",
        divide_boundary_shardings,
    ),
    Stage(
        "closed",
        "every dimension is closed, replicated axes are dropped",
        close_shardings,
    ),
    Stage(
        "explicit",
        "reshards are explicit: every op's operands and results agree",
        insert_cheaper_reshards,
    ),
    Stage(
        "no-rules",
        "sharding rules are dropped",
        drop_sharding_rules,
    ),
    Stage(
        "collectives",
        "reshards are collectives",
        reshards_to_collectives,
    ),
)
"""All export steps, in order."""

ANNOTATED = "annotated"
"""The module before the first step: what propagation leaves of the plan's constraints."""


def stage_names() -> tuple[str, ...]:
    """What a module can be asked for: before the first step, and after each."""
    return (ANNOTATED, *(stage.name for stage in STAGES))


def stages_until(name: str) -> tuple[Stage, ...]:
    """The steps that lead to a stage.

    Raises:
        InputError: There is no such stage.
    """
    names = stage_names()
    if name not in names:
        raise InputError(
            f"there is no export stage called {name!r}",
            where=f"stage={name!r}",
            fix=f"use one of planned, {', '.join(names)}",
        )
    return STAGES[: names.index(name)]


def run_stage(module: str | bytes, stage: str, *, prices: ModulePrices | None = None) -> str:
    """One export step alone, from text or bytecode to text.

    Args:
        module: Text or bytecode.
        stage: Name of the step.
        prices: For the steps that choose; the bytes a device receives if not given.

    Raises:
        InputError: There is no such step.
        ExportError: The module does not parse, or a step refuses it.
    """
    steps = stages_until(stage)
    with module_context():
        parsed = parse_module(module)
        for step in steps[-1:]:
            step.change(parsed, prices)
        return module_text(parsed)


def run_stages(
    module: str | bytes, until: str = STAGES[-1].name, *, prices: ModulePrices | None = None
) -> str:
    """All export steps up to and including one, from text or bytecode to text.

    Args:
        module: Text or bytecode.
        until: Name of the last step.
        prices: As for `run_stage`.

    Raises:
        InputError: There is no such step.
        ExportError: The module does not parse, or a step refuses it.
    """
    steps = stages_until(until)
    with module_context():
        parsed = parse_module(module)
        for step in steps:
            step.change(parsed, prices)
        return module_text(parsed)
