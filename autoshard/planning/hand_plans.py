"""Plans someone would write by hand, priced like ours: what the report compares with.

Each is a sharding for every argument; what it means for the rest of the program is what Shardy's
propagation makes of it.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from autoshard.candidates.op_candidates import read_pins
from autoshard.encoding.encode import Encoder
from autoshard.encoding.encoded import Encoded
from autoshard.errors import ShardingError
from autoshard.graph.dimension_classes import DimClasses, dimension_classes
from autoshard.graph.program import Graph
from autoshard.layouts import Layout, MeshParts, Parts
from autoshard.planning.pricing import PricedLayouts, nearest_choices, price_layouts
from autoshard.planning.searches import LONG, SolveOptions
from autoshard.planning.solution import Solution, as_answer
from autoshard.planning.stages import Stages
from autoshard.planning.tensor_parallel import examples_class, shared_arguments, tensor_parallel
from autoshard.plans.plan import Baseline
from autoshard.sharding import Sharding
from autoshard.wishes.ties import constrained_arguments
from solvers import evaluate

_LOGGER = logging.getLogger("autoshard")

Propagate = Callable[[Sequence[Sharding | None], Sequence[Sharding | None]], Mapping[str, Sharding]]

BATCH_DIM = 0
_KEY_WORDS = 4  # at most, of a random key: an argument of no examples
HAND_PLANS = ("replicated", "data parallel", "fsdp", "megatron")
MODEL_AXES = ("model", "tensor", "tp")
"""Names of the mesh axis that a Megatron plan cuts weights by; it is the last one where none is."""
_GAP = 0.001
"""Of a hand plan, for what it leaves open: copies of a layer choose alike first then. A choice."""
_FLOOR_MARGIN = 1.25
"""Times our cost: a hand plan that costs more by the problem is not lowered to see whether it is
faster. Of 173 hand plans of 13 programs on four machines, none was faster as lowered by more than
1.16 times what the problem says, over our plan (2026-11-27)."""
_AT_ONCE = ("data parallel", "replicated")
"""Plans that dimension classes carry from arguments to all values about as propagation does."""
_LEAST_SECONDS = 5.0
"""For all hand plans of a program, however short the limit: without them there may be no plan."""


def hand_plans(
    graph: Graph,
    parts: MeshParts,
    carried: Sequence[tuple[int, int]],
    annotated: Sequence[Sharding | None] = (),
) -> dict[str, tuple[Layout, ...]]:
    """Argument layouts of replicated, data-parallel, fully sharded and Megatron plans.

    The arguments that a step gives back (its state) count as parameters, all others as a batch
    that is cut along its examples, or its first dimension. What is given back and has a dimension
    of examples (a cache of decoding, environments of a rollout) is part of the batch. Where nothing
    else is given back, those are parameters that the examples share, if any are; where everything
    is given back and there are no products, everything is a batch.

    Args:
        graph: The program.
        parts: The mesh parts of the plan compared with.
        carried: Pairs of an argument and the result that replaces it.
        annotated: Shardings that arguments carry; the others are as in data parallel.

    Returns:
        By name; without Megatron where the program has nothing to cut so, and without the user's
        own (`yours`) where no argument carries a sharding.
    """
    classes = dimension_classes(graph)
    given_back = {argument for argument, _ in carried}
    state, examples = _parameters(graph, classes, given_back)
    shapes = [graph.values[op.results[0]].shape for op in graph.arguments]
    everything = tuple(range(len(parts.axes)))
    whole = [((),) * len(shape) for shape in shapes]
    batch = [
        layout if i in state else _cut(parts, shape, everything, examples[i])
        for i, (layout, shape) in enumerate(zip(whole, shapes, strict=True))
    ]
    sharded = [
        _cut(parts, shape, everything, _largest_divisible(parts, shape))
        if i in (state or given_back)
        else layout
        for i, (layout, shape) in enumerate(zip(batch, shapes, strict=True))
    ]
    plans: dict[str, Sequence[Layout]] = {
        "replicated": whole,
        "data parallel": batch,
        "fsdp": sharded,
    }
    columns_then_rows = _megatron(graph, classes, parts, state)
    if columns_then_rows is not None:
        plans["megatron"] = columns_then_rows
    if any(annotated):
        plans["yours"] = [
            _annotated_layout(parts, given) or layout
            for given, layout in zip(annotated, batch, strict=True)
        ]
    return {name: tuple(layouts) for name, layouts in plans.items()}


def _annotated_layout(parts: MeshParts, given: Sharding | None) -> Layout | None:
    if given is None or not given.is_fully_closed:
        return None
    try:
        return parts.to_layout(given)
    except ShardingError:  # a part of an axis that this plan keeps in one piece
        return None


def _parameters(
    graph: Graph, classes: DimClasses, given_back: set[int]
) -> tuple[set[int], list[int]]:
    """Positions of the parameters, and for each argument the dimension along which examples are."""
    arguments = [classes[op.results[0]] for op in graph.arguments]
    others = [position for position in range(len(arguments)) if position not in given_back]
    sizes = (math.prod(graph.values[graph.arguments[i].results[0]].shape) for i in others)
    holds_examples = any(size > _KEY_WORDS for size in sizes)
    if not holds_examples:  # all is given back, as by a simulation: parameters and examples
        others = list(range(len(arguments)))
    examples = examples_class(graph, classes, others)
    if examples is None and not holds_examples:
        return set(), [BATCH_DIM] * len(arguments)
    dims = [own.index(examples) if examples in own else BATCH_DIM for own in arguments]
    shared = {position for position in given_back if examples not in arguments[position]}
    return shared or shared_arguments(graph, classes) or given_back, dims


def _megatron(
    graph: Graph, classes: DimClasses, parts: MeshParts, state: set[int]
) -> list[Layout] | None:
    """Weights cut by columns, then rows over the model axis; the batch over all others."""
    if not parts.axes:
        return None
    axis = next((name for name in MODEL_AXES if name in parts.axes), parts.axes[-1])
    model = parts.parts_by_axis[axis]
    found = tensor_parallel(graph, classes, state, parts.num_shards(model))
    if found is None:
        return None
    others = tuple(part for part in range(len(parts.axes)) if part not in model)
    layouts = []
    for op in graph.arguments:
        value = op.results[0]
        shape, dims = graph.values[value].shape, found.classes[value]
        layout: Layout = ((),) * len(shape)
        for axes, wanted in ((others, found.batch), (model, found.cut)):
            dim = next((d for d, own in enumerate(dims) if own in wanted), None)
            if dim is not None:
                cut = _cut(parts, shape, axes, dim)
                layout = tuple(a or b for a, b in zip(layout, cut, strict=True))
        layouts.append(layout)
    return layouts


@dataclass(frozen=True, slots=True, eq=False)
class HandPrices:
    """Hand plans of a program, priced in its own planning problem.

    Args:
        priced: By name, those that some choice allows.
        refused: Names of those that no choice allows.
        late: Names of those that time was up for.
    """

    priced: Mapping[str, PricedLayouts]
    refused: tuple[str, ...] = ()
    late: tuple[str, ...] = ()

    @property
    def solutions(self) -> Mapping[str, Solution]:
        """All of them, lowered."""
        return {name: priced.solution for name, priced in self.priced.items()}


def price_hand_plans(
    solution: Solution,
    propagate: Propagate,
    options: SolveOptions,
    annotated: Sequence[Sharding | None] = (),
    stages: Stages | None = None,
) -> HandPrices:
    """Price the hand plans of a program.

    Args:
        solution: Our plan. Arguments whose sharding the user fixed, or that must be sharded like
            what the user fixed, keep theirs.
        propagate: Shardings of all values from those of arguments and results.
        options: For the small solves; together they keep to a part of its time limit.
        annotated: Shardings that arguments carry, captured arrays included.
        stages: Plans take half of the time that is left for planning together.
    """
    encoder, encoded = solution.encoder, solution.encoded
    clock = _Clock(options, stages or Stages())
    fixed = _fixed_ops(encoder, encoded)
    priced: dict[str, PricedLayouts] = {}
    refused: list[str] = []
    late: list[str] = []
    for name, arguments in _plans_for(encoder, encoded, annotated).items():
        if clock.is_short:
            late.append(name)
            continue
        own = _with_fixed(encoder, fixed, arguments, solution.decoded.layouts)
        layouts = _spread(encoder, encoded, own, propagate)
        found = price_layouts(solution, layouts, clock.options(), relative_gap=_GAP)
        if found is not None:
            priced[name] = found
        else:
            (late if clock.is_over else refused).append(name)
    return HandPrices(priced, tuple(refused), tuple(late))


def solution_with(
    solution: Solution, arguments: Sequence[Layout], propagate: Propagate, options: SolveOptions
) -> Solution | None:
    """What propagation makes of argument layouts; None where that contradicts what was asked.

    Args:
        solution: A plan of the same problem.
        arguments: By argument of the program, captured arrays included.
        propagate: Shardings of all values from those of arguments and results.
        options: For the small solve.
    """
    layouts = _spread(solution.encoder, solution.encoded, arguments, propagate)
    found = price_layouts(solution, layouts, options)
    return None if found is None else found.solution


def best_by_hand(
    encoder: Encoder,
    encoded: Encoded,
    propagate: Propagate,
    options: SolveOptions,
    stages: Stages | None = None,
) -> tuple[str, tuple[int, ...]] | None:
    """Name and choices of the cheapest hand plan that a problem allows, its memory limit included.

    Once time is over, of those seen so far, if there is one; the replicated plan comes last.

    Args:
        encoder: The problem's.
        encoded: The problem. Arguments whose sharding the user fixed are left free.
        propagate: Shardings of all values from those of arguments and results.
        options: For the small solves; together they keep to a part of its time limit.
        stages: As for `price_hand_plans`.
    """
    clock = _Clock(options, stages or Stages())
    free, fixed = (None,) * len(encoder.graph.values), _fixed_ops(encoder, encoded)
    best: tuple[int, str, tuple[int, ...]] | None = None
    plans = _plans_for(encoder, encoded)
    for name, at_once in _tried(plans, clock):
        if clock.is_short and best is not None and not at_once:
            break
        own = _with_fixed(encoder, fixed, plans[name], free)
        layouts = (
            _spread_by_class(encoder, encoded.parts, own)
            if at_once
            else _spread(encoder, encoded, own, propagate)
        )
        choices = nearest_choices(encoded, layouts, clock.options(), relative_gap=_GAP).choices
        if choices is None:
            continue
        found = evaluate(encoded.problem, choices)
        if found.is_allowed and (best is None or found.cost < best[0]):
            best = (found.cost, name, choices)
    return None if best is None else best[1:]


def _tried(plans: Collection[str], clock: _Clock) -> list[tuple[str, bool]]:
    """Hand plans in order, each with whether nothing is propagated: no time is left for that."""
    at_once = [(name, True) for name in _AT_ONCE if clock.is_short]
    return at_once + [(name, False) for name in sorted(plans, key=lambda one: one == "replicated")]


def with_floor(
    solution: Solution, prices: HandPrices, budget: int | None, relative_gap: float
) -> Solution:
    """A plan, or the fastest hand plan that fits where that is faster: within the gap it may be."""
    if not solution.is_feasible or solution.rounds:
        return solution
    problem, best = solution.encoded.problem, solution
    most = _FLOOR_MARGIN * evaluate(problem, solution.choices).cost
    for name, by_hand in prices.priced.items():
        choices = by_hand.result.choices
        assert choices is not None
        found = evaluate(problem, choices)
        if not found.is_allowed or found.cost > most:
            continue
        if by_hand.least_seconds >= best.step_seconds:
            continue
        priced = by_hand.solution
        fits = budget is None or priced.peak_bytes <= budget
        if fits and priced.step_seconds < best.step_seconds:
            best = replace(priced, encoded=solution.encoded, hand_plan=name)
    if best is solution:
        return solution
    answer = as_answer(solution, solution.result, best.choices, relative_gap)
    return replace(best, result=answer)


class HandBaselines(Sequence[Baseline]):
    """Rows of the report for the hand plans that were priced, which are lowered on first use.

    An interrupt while they are lowered ends that, and so does the end of the time for planning:
    rows that are not there yet are left out.
    Once the rows are there, the planning problem is let go.

    Args:
        prices: The hand plans.
        budget: Bytes per device allowed, or None.
        stages: Where to count the time.
    """

    def __init__(self, prices: HandPrices, budget: int | None, stages: Stages) -> None:
        self._priced, self._budget, self._stages = dict(prices.priced), budget, stages
        self._num_rows = len(self._priced)

    @cached_property
    def _rows(self) -> tuple[Baseline, ...]:
        rows = []
        try:
            with self._stages.time("baselines"):
                for name, one in self._priced.items():
                    if self._stages.is_over:
                        break
                    rows.append(self._row(name, one.solution))
        except KeyboardInterrupt:
            pass
        if left_out := ", ".join(list(self._priced)[len(rows) :]):
            _LOGGER.warning("planning is over: rows of plans by hand left out: %s", left_out)
        self._num_rows = len(rows)
        self._priced.clear()
        return tuple(rows)

    def _row(self, name: str, solution: Solution) -> Baseline:
        peak = solution.peak_bytes
        return Baseline(
            name=name,
            seconds=solution.estimate.blocking_seconds,
            collective_bytes=solution.estimate.collective_bytes,
            peak_bytes=peak,
            fits=self._budget is None or peak <= self._budget,
            overlapped_seconds=solution.overlapped_seconds,
        )

    def __len__(self) -> int:
        return self._num_rows

    def __getitem__(self, index: Any) -> Any:
        return self._rows[index]

    def __eq__(self, other: object) -> bool:
        return self._rows == tuple(other) if isinstance(other, Sequence) else NotImplemented

    def __hash__(self) -> int:
        return hash(self._rows)

    def __repr__(self) -> str:
        return repr(self._rows)

    def __reduce__(self) -> tuple[Any, ...]:
        """Copies and pickles hold the rows alone."""
        return tuple, (self._rows,)


def hand_plan_notes(solution: Solution, prices: HandPrices) -> tuple[str, ...]:
    """What to tell of the hand plans that were not priced; nothing where all were."""
    notes = []
    if prices.refused:
        names = ", ".join(prices.refused)
        reason = "under what was asked" if _is_asked(solution) else "in this program"
        notes.append(f"not possible {reason}, and so not compared with: {names}")
    if prices.late:
        notes.append(
            f"not compared with {', '.join(prices.late)}: the time for plans written by hand was"
            " up; raise time_limit_seconds"
        )
    if "megatron" not in {*prices.priced, *prices.refused, *prices.late}:
        notes.append(
            "not compared with megatron: the program has no pair of weights to shard by columns and"
            " then by rows, in a size that the model axis divides"
        )
    return tuple(notes)


def _is_asked(solution: Solution) -> bool:
    """Whether the user fixed the sharding of anything, or asked for any to be alike."""
    graph, wishes = solution.graph, solution.encoder.wishes
    return bool(read_pins(graph, solution.encoded.parts, wishes) or wishes.groups or graph.groups)


class _Clock:
    """Processor time that plans written by hand may take together: a part of a search's limit.

    Half of the time that is left for planning is for what follows.
    """

    def __init__(self, options: SolveOptions, stages: Stages) -> None:
        self._options, self._stages = options, stages
        left = stages.seconds_left
        self._kept = left / 2 if math.isfinite(left) else 0.0
        seconds = LONG * min(options.time_limit_seconds, left)
        self._ends = time.process_time() + max(seconds, _LEAST_SECONDS)

    @property
    def is_over(self) -> bool:
        return self._seconds_left <= 0 or time.process_time() >= self._ends

    @property
    def is_short(self) -> bool:
        """True where it is over before shardings are propagated."""
        return self.is_over or self._seconds_left < self._stages.propagation_seconds

    @property
    def _seconds_left(self) -> float:
        return 0.0 if self._stages.is_over else self._stages.seconds_left - self._kept

    def options(self) -> SolveOptions:
        """For the next solve."""
        left = max(self._ends - time.process_time(), _LEAST_SECONDS)
        return replace(self._options, engine="auto", time_limit_seconds=left)


def _plans_for(
    encoder: Encoder, encoded: Encoded, annotated: Sequence[Sharding | None] = ()
) -> dict[str, tuple[Layout, ...]]:
    return hand_plans(encoder.graph, encoded.parts, encoder.wishes.alike, annotated)


def _with_fixed(
    encoder: Encoder,
    fixed: set[int],
    arguments: Sequence[Layout],
    layouts: Sequence[Layout | None],
) -> list[Layout | None]:
    """Layouts of arguments; those whose ops the user fixed as they are in `layouts`."""
    return [
        layouts[op.results[0]] if op.index in fixed else layout
        for layout, op in zip(arguments, encoder.graph.arguments, strict=True)
    ]


def _fixed_ops(encoder: Encoder, encoded: Encoded) -> set[int]:
    """Ops whose tensors the user fixed, and those that must end like one of them."""
    graph, wishes = encoder.graph, encoder.wishes
    alike = [
        *({graph.arguments[a].index, graph.results[r].index} for a, r in wishes.alike),
        *({op for op, _ in wish.members} for wish in wishes.groups),
        *({graph.values[value].op for value in group} for group in graph.groups),
        *(
            {argument.index, asked.index}
            for argument, asked in constrained_arguments(graph, wishes)
        ),
    ]
    fixed = set(read_pins(graph, encoded.parts, wishes))
    while any(not fixed.isdisjoint(ops) and not ops <= fixed for ops in alike):
        fixed.update(*(ops for ops in alike if not fixed.isdisjoint(ops)))
    return fixed


def _spread(
    encoder: Encoder,
    encoded: Encoded,
    arguments: Sequence[Layout | None],
    propagate: Propagate,
) -> list[Layout | None]:
    """Layouts of all values under argument layouts."""
    graph, parts = encoder.graph, encoded.parts
    given = [None if layout is None else parts.to_sharding(layout) for layout in arguments]
    outputs: list[Sharding | None] = [None] * len(graph.results)
    for argument, result in encoder.wishes.alike:
        outputs[result] = given[argument]
    shardings = propagate(given, outputs)
    layouts: list[Layout | None] = [None] * len(graph.values)
    for op, layout in zip(graph.arguments, arguments, strict=True):
        layouts[op.results[0]] = layout
    for path, sharding in shardings.items():
        value = graph.value_by_path.get(path)
        if value is None or layouts[value] is not None:
            continue
        try:
            layouts[value] = parts.to_layout(sharding)
        except ShardingError:  # a part of an axis that this plan keeps in one piece
            continue
    return layouts


def _spread_by_class(
    encoder: Encoder, parts: MeshParts, arguments: Sequence[Layout | None]
) -> list[Layout | None]:
    """Layouts of all values: dimensions of one class are cut as in the first argument cut there."""
    graph = encoder.graph
    classes = dimension_classes(graph)
    cut: dict[int, Parts] = {}
    for op, layout in zip(graph.arguments, arguments, strict=True):
        for dim, own in enumerate(layout or ()):
            if own:
                cut.setdefault(classes[op.results[0]][dim], own)
    given = {op.results[0]: one for op, one in zip(graph.arguments, arguments, strict=True)}
    for argument, result in encoder.wishes.alike:
        given.setdefault(graph.results[result].operands[0], arguments[argument])

    def spread(value: int) -> Layout | None:
        if value in given:
            return given[value]
        shape, dims = graph.values[value].shape, classes[value]
        dim = next((dim for dim, own in enumerate(dims) if own in cut), None)
        return ((),) * len(shape) if dim is None else _cut(parts, shape, cut[dims[dim]], dim)

    return list(map(spread, range(len(graph.values))))


def _cut(parts: MeshParts, shape: tuple[int, ...], axes: Parts, dim: int) -> Layout:
    """A tensor cut along one dimension by as many parts as divide it."""
    layout: list[Parts] = [()] * len(shape)
    if dim < len(shape):
        for part in axes:
            if shape[dim] % parts.num_shards((*layout[dim], part)) == 0:
                layout[dim] = (*layout[dim], part)
    return tuple(layout)


def _largest_divisible(parts: MeshParts, shape: tuple[int, ...]) -> int:
    """The dimension that the whole mesh divides and that is largest; else simply the largest."""
    total = parts.mesh.num_devices
    ranked = sorted(range(len(shape)), key=lambda d: (shape[d] % total != 0, -shape[d]))
    return ranked[0] if ranked else 0
