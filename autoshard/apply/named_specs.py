"""Shardings of a plan by name, for the tools that want them so."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from autoshard.constraints import ModuleSelector, Program
from autoshard.constraints.select import Chooser
from autoshard.constraints.selector import AttributeStep, name_steps
from autoshard.errors import ConstraintError
from autoshard.plans.plan import PlannedTensor
from autoshard.report.alike import numbers_of
from autoshard.report.partition_rules import NamedSpec, Spec
from autoshard.sharding import Sharding


def argument_specs(tensors: Sequence[PlannedTensor]) -> list[NamedSpec]:
    """Tensors by the segments of their names: the keys and attributes on the way to them.

    The name of the argument itself is left out, as rules are for trees; an argument that is an
    array has nothing else.

    Raises:
        ShardingError: A sharding that no `PartitionSpec` on the mesh says.
    """
    found = []
    for tensor in tensors:
        root, steps = name_steps(tensor.name)
        words = [step.name if isinstance(step, AttributeStep) else str(step.key) for step in steps]
        found.append(NamedSpec(segments=tuple(words) or (root,), spec=_short(tensor.sharding)))
    return found


def module_rules(program: Program, values: Mapping[str, Sharding]) -> Iterator[tuple[str, Spec]]:
    """Rules for what modules hand on, by the path of the module.

    Modules that differ only in numbers are one rule where they are sharded alike, else one each.
    Those that hand on several tensors of different shardings have none.

    Args:
        program: What selectors pick from.
        values: Planned shardings by path.
    """
    chooser = Chooser(program)
    modules = dict.fromkeys(e.place.module for e in program.equations.values() if e.place.module)
    groups: dict[tuple[str, ...], list[str]] = {}
    for module in modules:
        groups.setdefault(numbers_of(module)[0], []).append(module)
    for words, alike in groups.items():
        pattern = "[0-9]+".join(words)
        spec = _spec_of(chooser, pattern, values)
        if spec is not None:
            yield pattern, spec
            continue
        for module in alike if len(alike) > 1 else ():
            if (spec := _spec_of(chooser, module, values)) is not None:
                yield module, spec


def _spec_of(chooser: Chooser, pattern: str, values: Mapping[str, Sharding]) -> Spec | None:
    """The one sharding of what the modules of a pattern hand on; None where there is none."""
    try:
        made = chooser.tensors(ModuleSelector(pattern, pattern), "a rule")
    except ConstraintError:
        return None
    found = {values[one.path] for one in made if one.path in values}
    specs = {_short(sharding) for sharding in found}
    return specs.pop() if len(specs) == 1 and len({one.rank for one in found}) == 1 else None


def _short(sharding: Sharding) -> Spec:
    """The entries of a sharding, uncut dimensions at its end left out."""
    entries = list(sharding.closed().spec)
    while entries and entries[-1] is None:
        entries.pop()
    return tuple(entries)
