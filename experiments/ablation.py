"""Which rules of the compiler models and which cost terms change plans.

    python -m experiments.ablation [--programs t5 clip] [--chips v5e h100]
        [--rules ImageCopies fusion.fuses_into_matmuls]

Plans the evaluation list, or the workloads that are named, on 2 by 4 devices, then again
without one rule at a time: a cost term is left out, a policy that is on is switched off. The plan
made without a rule is priced by the whole model. A rule without which problem and local program of
the plan are what they were is not planned without; one that changed a program before is not left
out of the next. A rule whose absence costs less than 1 % of the step on every program, and changes
no prediction of the step or the peak by as much, earns no line. Writes
`experiments/results/ablation.md`, anew after each program.
"""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any

import numpy as np

from autoshard.backends import Backend, backend_for
from autoshard.costing.cost_term import OpTermKind
from autoshard.costing.op_terms import OP_TERMS
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import decode
from autoshard.frontend.trace import trace
from autoshard.lowering.local_program import LocalProgram
from autoshard.lowering.lower import lower
from autoshard.planning.planner import plan_graph, prepared
from autoshard.planning.pricing import price_layouts
from autoshard.planning.searches import SolveOptions
from autoshard.planning.solution import Solution
from autoshard.planning.stages import Stages
from autoshard.planning.traced_program import TracedProgram, read_traced
from autoshard.sharding import parse_mesh_sizes
from cost_models import Hardware, get_hardware
from experiments.evaluation import HARDWARE, SIZES
from experiments.results_table import markdown_table, write_page
from experiments.workloads import get_workload
from solvers import Problem

LEAST_CHANGE = 0.01
"""Of the step or the peak: rules that change less on every program are named as idle."""
OFF: Mapping[str, object] = {
    "fusion.materialized_ops": frozenset(),
    "fusion.softmax_rows": (0,) * 6,
    "fusion.narrow_score_rows": (0, 0),
    "fusion.recomputed_ops": 0,
    "fusion.quantized_bits": 0,
    "fusion.op_costs": (),
    "fusion.kernels_per_window": 0,
    "fusion.min_concatenated_part": 0,
    "fusion.split_k": (),
    "layout.widened_bits": (),
    "layout.multiplied_bits": (),
    "layout.mxu_min_rows": 1,
    "layout.mxu_fill_cycles": 0,
    "layout.mxu_window_cycles": 0,
    "layout.hbm_window": 0,
    "layout.hbm_window_share": 1.0,
    "layout.ragged_cycles": (0.0, 0.0),
    "layout.ragged_tile_rows": 0,
    "layout.turn_cycles": 0.0,
    "layout.row_slice_cycles": (0.0, 0.0),
    "layout.depthwise_macs": (),
    "layout.dilated_rows": 1,
    "layout.min_conv_batch": 1,
    "layout.fast_convert_bytes": 0,
    "layout.relayout_copies": 0,
    "collectives.unpartitioned_ops": frozenset(),
    "collectives.gather_by_sum_max_bytes": 0.0,
    "memory.tight_fragmentation_factor": 1.0,
    "memory.combined_sum_bytes": 0.0,
    "memory.vmem_bytes": 0,
    "memory.most_unread_bytes": 1 << 60,
    "memory.unsorted_scatter_bytes": 0,
    "memory.tuple_index_tables_by_argument": (),
    "memory.lookup_slowdowns": (0.0, 0.0),
    "memory.element_scatter_slowdown": 0.0,
    "memory.tuple_index_table_bytes": 0,
    "schedule.deferred_past_matmuls": 0,
    "schedule.assumed_microseconds": (0.0, 0.0),
    "schedule.collective_microseconds": 0.0,
    "schedule.async_collectives": frozenset(),
}
"""Policies that are no booleans, with the value that switches each off."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A part of the model that can be left out.

    Attributes:
        name: `KernelTime` or `fusion.fuses_into_matmuls`.
        backend: The compiler model without it.
        terms: The cost terms without it.
    """

    name: str
    backend: Backend
    terms: tuple[OpTermKind, ...]


def rules_of(backend: Backend) -> Iterator[Rule]:
    """Every cost term, and every policy that is on."""
    for left_out in OP_TERMS:
        terms = tuple(term for term in OP_TERMS if term is not left_out)
        yield Rule(getattr(left_out, "__name__", str(left_out)), backend, terms)
    for section in ("fusion", "layout", "collectives", "memory", "schedule"):
        policy = getattr(backend, section)
        for field in dataclasses.fields(policy):
            name, value = f"{section}.{field.name}", getattr(policy, field.name)
            off = False if value is True else OFF.get(name, value)
            if off != value:
                without = dataclasses.replace(policy, **{field.name: off})
                changed = dataclasses.replace(backend, **{section: without})
                yield Rule(name, changed, OP_TERMS)


@dataclass(frozen=True, slots=True)
class Change:
    """What leaving a rule out does to one program.

    Attributes:
        rule: Name of the rule.
        program: Name and chip.
        loss: Step of the plan made without it, priced with it, over that of the plan made with it,
            less one; None where that plan cannot be said in the whole problem.
        seconds: Predicted step of the plan made without it, over the other, less one.
        peak: Likewise of the predicted peak.
    """

    rule: str
    program: str
    loss: float | None
    seconds: float
    peak: float

    @property
    def is_idle(self) -> bool:
        """True where neither the plan nor what is predicted of it changes."""
        changes = (self.loss or 0.0, self.seconds, self.peak)
        return all(abs(change) < LEAST_CHANGE for change in changes)


def changes_of(
    name: str, sizes: Mapping[str, Any], chip: str, is_left_out: Callable[[str], bool]
) -> list[Change]:
    """The rules, of those that are left out, without which the plan of one program changes."""
    machine = get_hardware(HARDWARE[chip])
    program = traced(name, sizes)
    options = SolveOptions(time_limit_seconds=30.0)
    base = _planned(program, machine, options)
    model = Rule("", backend_for(machine), OP_TERMS)
    known = _lowered(program, machine, options, model, base)
    whole = _priced(base, base, options)  # by its layouts alone, as every other is
    found = []
    for rule in filter(lambda rule: is_left_out(rule.name), rules_of(model.backend)):
        change = Change(rule.name, f"{name} {chip}", 0.0, 0.0, 0.0)
        lowered = _lowered(program, machine, options, rule, base)
        if lowered is None or known is None or not _is_same(lowered, known):
            other = _planned(program, machine, options, rule)
            priced = _priced(base, other, options)
            change = dataclasses.replace(
                change,
                loss=None if priced is None or whole is None else priced / whole - 1,
                seconds=other.step_seconds / base.step_seconds - 1,
                peak=other.peak_bytes / base.peak_bytes - 1,
            )
        found.append(change)
    return found


def _lowered(
    program: TracedProgram, machine: Hardware, options: SolveOptions, rule: Rule, base: Solution
) -> tuple[Problem, LocalProgram] | None:
    """The problem without a rule, and the local program of a plan; None where it has it not."""
    graph, buffers, wishes, costing = prepared(
        program.graph, program.mesh, machine, program.wishes, options, rule.backend, Stages()
    )
    encoder = Encoder(graph, buffers, costing, wishes, None, op_terms=rule.terms)
    encoded = encoder.encode()
    if not encoded.has_choices_of(base.encoded):
        return None
    plan = decode(encoded, base.choices)
    return encoded.problem, lower(encoder, encoded, plan, base.choices)


def _is_same(one: tuple[Problem, LocalProgram], other: tuple[Problem, LocalProgram]) -> bool:
    """True where costs, memory and the local program are equal."""
    (problem, program), (before, lowered) = one, other
    return program == lowered and all(
        np.array_equal(left, right)
        for left, right in zip_longest(_numbers(problem), _numbers(before), fillvalue=())
    )


def _numbers(problem: Problem) -> Iterator[Any]:
    """All that a solver decides by."""
    yield from problem.node_costs
    for edge in problem.edges:
        yield from ((edge.u, edge.v), edge.costs)
    for term in problem.node_memory:
        yield from ((term.node, term.start, term.stop), term.usage)
    for copy in problem.edge_memory:
        yield from ((copy.edge, copy.start, copy.stop), copy.usage)


def traced(name: str, sizes: Mapping[str, Any]) -> TracedProgram:
    """A workload on a mesh of 2 by 4 devices."""
    workload, mesh = get_workload(name, **sizes), parse_mesh_sizes("data=2,model=4")
    arguments = (workload.state, workload.batch)
    found = trace(workload.step, arguments, {}, mesh=mesh, donate_argnums=workload.donate_argnums)
    return read_traced(found, mesh, (), None, 1.0)


def _planned(
    program: TracedProgram, machine: Hardware, options: SolveOptions, rule: Rule | None = None
) -> Solution:
    return plan_graph(
        program.graph,
        program.mesh,
        machine,
        program.wishes,
        None,
        options,
        compiler=None if rule is None else rule.backend,
        op_terms=OP_TERMS if rule is None else rule.terms,
    )


def _priced(base: Solution, other: Solution, options: SolveOptions) -> float | None:
    """Seconds of a step with the layouts of another plan; None where they are not allowed."""
    priced = price_layouts(base, other.decoded.layouts, options, in_steps=True)
    return None if priced is None else priced.solution.step_seconds


def page_rows(changes: Sequence[Change]) -> list[dict[str, str]]:
    """One row a rule, those that change least first."""
    by_rule: dict[str, list[Change]] = {}
    for change in changes:
        by_rule.setdefault(change.rule, []).append(change)
    rows = []
    for name, found in sorted(by_rule.items(), key=lambda item: _most(item[1])):
        losses = [one.loss for one in found if one.loss is not None]
        rows.append(
            {
                "left out": f"`{name}`",
                "plan loses": f"{max(losses, default=0.0):+.1%}",
                "predicted step": f"{max((one.seconds for one in found), key=abs):+.1%}",
                "predicted peak": f"{max((one.peak for one in found), key=abs):+.1%}",
                "changes": ", ".join(one.program for one in found if not one.is_idle) or "nothing",
            }
        )
    return rows


def _most(changes: Sequence[Change]) -> float:
    return max(max(abs(one.loss or 0.0), abs(one.seconds), abs(one.peak)) for one in changes)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--programs", nargs="*", default=list(SIZES))
    parser.add_argument("--chips", nargs="*", default=["v5e"], choices=list(HARDWARE))
    parser.add_argument("--rules", nargs="*", default=[])
    options = parser.parse_args()
    changes: list[Change] = []

    def is_left_out(rule: str) -> bool:
        has_changed = any(one.rule == rule and not one.is_idle for one in changes)
        return not has_changed and (not options.rules or rule in options.rules)

    for name in options.programs:
        for chip in options.chips:
            found = changes_of(name, SIZES.get(name, {}), chip, is_left_out)
            changes += found
            print(name, chip, ", ".join(one.rule for one in found if not one.is_idle), flush=True)
            _write(changes)


def _write(changes: Sequence[Change]) -> None:
    planned = ", ".join(dict.fromkeys(change.program for change in changes))
    text = f"Programs: {planned}.\n\n{markdown_table(page_rows(changes))}"
    write_page("ablation", "Rules of the model left out, one at a time", text)


if __name__ == "__main__":
    main()
