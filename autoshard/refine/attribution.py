"""Differences between a plan and its compiled program, laid to the choices that caused them.

Seconds of a kernel go to the ops whose equations it fuses, in the ratio of their prices; of one
without a name to all ops; those of a step that was run likewise. An op that no kernel names shares
in the kernels around it. Collectives are compared over each set of mesh axes, by the seconds that
the step waits for them: what is compiled beyond what is planned there goes to the equations that
communicate more than planned, what is short of it to those that communicate less; to the reshard of
an operand where the plan has one, else to the candidate. Bytes at the compiled peak go to the
values of the equations that hold more than planned. So the corrected problem prices a compiled plan
as it was compiled.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import NamedTuple, TypeAlias

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.corrections import (
    ChoiceCorrection,
    MemoryCorrection,
    ReshardCorrection,
    op_keys,
)
from autoshard.encoding.picoseconds import PICOSECONDS
from autoshard.graph.dataflow import trace_back, trace_forward
from autoshard.graph.program import Op, OpKind
from autoshard.hlo.live_buffers import compiled_buffers, live_at_peak
from autoshard.hlo.local_program import DeviceSpeed, compiled_program
from autoshard.hlo.text import HloModule
from autoshard.layouts import Layout
from autoshard.lowering.estimate import estimate
from autoshard.lowering.local_program import Collective, LocalProgram, Space
from autoshard.planning.solution import Solution
from autoshard.refine.compiled_plan import MEASURED, CompiledPlan, exposed_share
from autoshard.refine.named_ops import NamedOps, equation_of
from autoshard.report.quantities import format_bytes, format_seconds
from autoshard.sharding import Mesh, Sharding
from autoshard.source_place import format_source, parse_source

Axes: TypeAlias = tuple[str, ...] | None
"""Mesh axes of a collective; None where its groups follow none."""

SMALLEST = 1e-4
"""Of the compiled step, or of the compiled peak: smaller differences are left alone. A choice: a
thousand of them are a tenth of a percent each way."""
_NOBODY = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Priced:
    """Seconds of ops of one class, by the model and as compiled."""

    op_class: str
    priced: float
    compiled: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Observation:
    """What one compiled plan shows.

    Args:
        choices: Of every op in the way it was cut, what it takes more.
        reshards: Of every reshard, likewise.
        memory: Of values, what they hold more at the peak.
        classes: Totals by class of op.
        faults: What the compiler did that the model did not know, in words, the largest first.
    """

    choices: tuple[ChoiceCorrection, ...] = ()
    reshards: tuple[ReshardCorrection, ...] = ()
    memory: tuple[MemoryCorrection, ...] = ()
    classes: tuple[Priced, ...] = ()
    faults: tuple[str, ...] = ()


def observe(solution: Solution, compiled: CompiledPlan) -> Observation:
    """What a compiled plan shows beside the plan.

    Args:
        solution: The plan, in the planner's terms.
        compiled: Nothing is learnt where it holds no program.
    """
    if compiled.module is None or compiled.prices is None or compiled.seconds is None:
        return Observation()
    return _Attribution(solution, compiled, compiled.module).observation()


class _Wait(NamedTuple):
    """A collective, and the seconds of a step that wait for it."""

    collective: Collective
    seconds: float


@dataclass(frozen=True, slots=True)
class _Fault:
    seconds: float
    text: str


class _Attribution:
    def __init__(self, solution: Solution, compiled: CompiledPlan, module: HloModule) -> None:
        self.solution, self.compiled, self.module = solution, compiled, module
        encoded = solution.encoded
        self.graph, self.parts = encoded.graph, encoded.parts
        self.mesh = Mesh(self.parts.mesh.axes)
        self.keys = op_keys(self.graph)
        self.instructions = {
            name: one for body in module.computations.values() for name, one in body.items()
        }
        self.smallest = SMALLEST * (compiled.seconds or 0.0)
        self.program = self._program(compiled)
        self.priced = {op.index: op.compute_seconds for op in solution.account.ops}
        ops = [self.graph.ops[index] for index in encoded.ops]
        self.named = NamedOps.of(ops, module, self.priced)
        self.more: dict[int, float] = defaultdict(float)
        self.reshards: dict[tuple[int, int], float] = defaultdict(float)
        self.faults: list[_Fault] = []

    def _program(self, compiled: CompiledPlan) -> LocalProgram:
        """The compiled one; without kernels where the compiler estimates none."""
        prices, speed = compiled.prices, None
        assert prices is not None
        if prices.clock_hz is not None and compiled.time is not None:
            speed = DeviceSpeed(
                clock_hz=prices.clock_hz,
                bytes_per_second=prices.model.hardware.memory.bytes_per_second,
                moved_seconds=prices.moved_seconds,
            )
        return compiled_program(self.module, self.mesh, prices.link_seconds, speed)

    def observation(self) -> Observation:
        classes = self._compare_kernels()
        self._compare_collectives()
        self._compare_prices()
        choices = [self._choice(index) for index in self.solution.encoded.ops]
        memory = tuple(self._compare_memory())
        faults = sorted(self.faults, key=lambda fault: -fault.seconds)
        return Observation(
            choices=tuple(choices),
            reshards=tuple(self._moves()),
            memory=memory,
            classes=classes,
            faults=tuple(fault.text for fault in faults),
        )

    # -- seconds of kernels ---------------------------------------------------------------------

    def _compare_kernels(self) -> tuple[Priced, ...]:
        """Enter what ops take more; totals by class. Nothing where nobody says what they take."""
        if self.compiled.measure == MEASURED:
            spent = self._spent_in_run()
        elif self.program.kernels:
            spent = self._spent_in_kernels()
        else:
            return ()
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for index, seconds in spent.items():
            op, priced = self.graph.ops[index], self.priced.get(index, 0.0)
            self.more[index] += seconds - priced
            if priced and op.kind is OpKind.COMPUTE:
                totals[op.op_class.value][0] += priced
                totals[op.op_class.value][1] += seconds
            if seconds - priced >= self.smallest and self.program.kernels:
                text = f"{_said(op)} takes {format_seconds(seconds)}, not {format_seconds(priced)}"
                self.faults.append(_Fault(seconds - priced, text))
        return tuple(
            Priced(op_class=name, priced=priced, compiled=compiled)
            for name, (priced, compiled) in sorted(totals.items())
        )

    def _spent_in_run(self) -> dict[int, float]:
        """A run tells the seconds of the step alone: ops take those of it by their prices."""
        planned, compiled = map(_seconds, self._comparable_waits())
        waits = _seconds(self._planned_waits()) + compiled - planned
        left = max((self.compiled.seconds or 0.0) - waits, 0.0)
        whole = sum(self.priced.values())
        return {op: priced * left / whole for op, priced in self.priced.items()} if whole else {}

    def _spent_in_kernels(self) -> dict[int, float]:
        runs = self.program.runs()
        found = [
            (
                self.named.computed_by(self.instructions[kernel.name]),
                kernel.seconds * runs[kernel.body],
            )
            for kernel in self.program.kernels
        ]
        spent: dict[int, float] = dict.fromkeys(self.priced, 0.0)
        for weights, (_, seconds) in zip(
            self._weights([ops for ops, _ in found]), found, strict=True
        ):
            for index, weight in weights.items():
                spent[index] = spent.get(index, 0.0) + seconds * weight / sum(weights.values())
        return spent

    def _weights(self, kernels: Sequence[Sequence[Op]]) -> list[dict[int, float]]:
        """By kernel, its ops and the share of its seconds that goes to each, by their prices.

        An op that no kernel names was fused into those that read its results, or where nothing
        reads them in a kernel, into those that make its operands. A kernel without ops is shared
        by all.
        """
        kernels_of: dict[int, list[int]] = defaultdict(list)
        for number, ops in enumerate(kernels):
            for op in ops:
                kernels_of[op.index].append(number)
        found: list[dict[int, float]] = [
            {op.index: self.priced.get(op.index, 0.0) for op in ops} for ops in kernels
        ]
        for index, price in self.priced.items():
            if index in kernels_of or not price:
                continue
            around = dict.fromkeys(
                number for near in self._near(index, kernels_of) for number in kernels_of[near]
            )
            for number in around:
                found[number][index] = price / len(around)
        for weights in found:
            if not weights:
                weights.update(self.priced)
            if not sum(weights.values()):
                weights.update(dict.fromkeys(weights, 1.0))
        return found

    def _near(self, index: int, kernels_of: Mapping[int, list[int]]) -> list[int]:
        """The next ops with kernels that read what an op makes, else those before it."""
        results = self.graph.ops[index].results
        ahead = [
            op.index
            for value in results
            for op in trace_forward(self.graph, value, lambda op: op.index not in kernels_of)
        ]
        if ahead:
            return ahead
        behind = trace_back(self.graph, results, lambda op, _: op.index not in kernels_of).frontier
        return [self.graph.maker(value).index for value in behind]

    # -- collectives ----------------------------------------------------------------------------

    def _compare_collectives(self) -> None:
        """Enter the seconds that the step waits for collectives beside those planned."""
        planned: dict[Axes, dict[int, list[_Wait]]] = defaultdict(lambda: defaultdict(list))
        waits, compiled = self._comparable_waits()
        for wait in waits:
            one = wait.collective
            planned[one.axes][self.named.heaviest_beside(self.graph.ops[one.op]).index].append(wait)
        sent: dict[Axes, list[_Wait]] = defaultdict(list)
        for wait in compiled:
            sent[wait.collective.axes].append(wait)
        for axes in sorted({*planned, *sent}, key=lambda axes: axes or ()):
            self._charge(sent[axes], planned[axes])

    def _comparable_waits(self) -> tuple[list[_Wait], list[_Wait]]:
        """The planned and the compiled collectives; the step waits for their difference.

        Where the compiler tells nothing of the computing beside them, `exposed_share` says it.
        """
        planned, uses = list(self._planned_waits()), estimate(self.program).collectives
        compiled = [
            _Wait(one, use.exposed_seconds)
            for one, use in zip(self.program.collectives, uses, strict=True)
        ]
        if self.program.kernels:
            return planned, compiled
        whole = [
            _Wait(wait.collective, use.seconds)
            for wait, use in zip(planned, self.solution.estimate.collectives, strict=True)
        ]
        share = exposed_share(_seconds(whole), _seconds(planned), _seconds(compiled))
        if share == 1.0:
            return whole, compiled
        return planned, [one._replace(seconds=share * one.seconds) for one in compiled]

    def _planned_waits(self) -> Iterator[_Wait]:
        program, estimated = self.solution.local_program, self.solution.estimate
        overlaps = self.solution.encoder.costing.overlaps
        for one, use in zip(program.collectives, estimated.collectives, strict=True):
            yield _Wait(one, use.exposed_seconds if overlaps else use.seconds)

    def _charge(self, sent: Sequence[_Wait], planned: Mapping[int, Sequence[_Wait]]) -> None:
        """Lay what the step waits for one set of axes beside the plan to the ops that differ."""
        by_op: dict[int, list[_Wait]] = defaultdict(list)
        operand_of: dict[int, int] = {}
        for wait in sent:
            op, operand = self.named.sending(wait.collective.name)
            by_op[_NOBODY if op is None else op.index].append(wait)
            if op is not None and operand is not None:
                operand_of.setdefault(op.index, operand)
        unknown = _seconds(by_op.pop(_NOBODY, ()))
        differences = {
            index: _seconds(by_op.get(index, ())) - _seconds(planned.get(index, ()))
            for index in sorted({*by_op, *planned})
        }
        excess = sum(differences.values()) + unknown
        if abs(excess) < self.smallest:
            return
        alike = {op: more for op, more in differences.items() if more * excess > 0}
        total = sum(alike.values()) + (unknown if excess > 0 else 0.0)
        for index, more in alike.items():
            charged = more * min(excess / total, 1.0)
            if abs(charged) < self.smallest:
                continue
            if charged > 0:
                self._blame(by_op[index][0].collective, self.graph.ops[index], charged)
                self._lay(self.graph.ops[index], operand_of.get(index), charged)
            else:
                self._spare(planned[index], charged)

    def _blame(self, one: Collective, op: Op, seconds: float) -> None:
        axes = "no axes of the mesh" if one.axes is None else ", ".join(one.axes)
        text = f"{one.kind} over {axes} that nobody planned, {format_seconds(seconds)}"
        self.faults.append(_Fault(seconds, f"{text} for {_said(op)}"))

    def _spare(self, planned: Sequence[_Wait], seconds: float) -> None:
        """Take seconds that the step does not wait off what they were planned for."""
        total = _seconds(planned)
        for wait in planned:
            one = wait.collective
            op = self.graph.ops[one.op]
            place = op.operands.index(one.value) if one.value in op.operands else None
            share = seconds * wait.seconds / total
            if place is None:
                self.more[op.index] += share
            else:
                self._lay(op, place, share)

    def _compare_prices(self) -> None:
        """Enter by how much the problem prices choices otherwise than the estimate of the plan."""
        encoded, choices = self.solution.encoded, self.solution.choices
        problem = encoded.uncorrected or encoded.problem
        waits: dict[tuple[int, int], float] = defaultdict(float)
        for wait in self._planned_waits():
            waits[wait.collective.op, wait.collective.value] += wait.seconds
        for node, index in enumerate(encoded.ops):
            priced = problem.node_costs[node][choices[node]] / PICOSECONDS
            self.more[index] += self.priced.get(index, 0.0) + waits[index, -1] - priced
        read_by: dict[int, list[tuple[int, int]]] = defaultdict(list)
        for read, number in (*encoded.edge_by_shared_read.items(), *encoded.edge_by_read.items()):
            read_by[number].append(read)
        for number, edge in enumerate(problem.edges):
            more = -int(edge.costs[choices[edge.u], choices[edge.v]]) / PICOSECONDS
            reads = read_by.get(number, ())
            for index, place in reads:
                more += waits.pop((index, self.graph.ops[index].operands[place]), 0.0)
            if more and reads:
                self.reshards[reads[0]] += more
            elif more and edge.v < len(encoded.ops):
                self.more[encoded.ops[edge.v]] += more

    def _lay(self, op: Op, operand: int | None, seconds: float) -> None:
        """Lay seconds to the reshard of an operand, where there is one, else to the candidate."""
        candidate = self.solution.decoded.candidates.get(op.index)
        if candidate is None:
            return
        every = range(len(candidate.operands))
        for place in every if operand is None else {operand}.intersection(every):
            before, after = self._move(op, place)
            if before != after:
                self.reshards[op.index, place] += seconds
                return
        self.more[op.index] += seconds

    def _move(self, op: Op, place: int) -> tuple[Layout, Layout]:
        """From where to where an operand is resharded; the same twice where it is not."""
        decoded = self.solution.decoded
        before = decoded.layouts[op.operands[place]]
        shared = decoded.shared.get((op.index, place), before)
        if shared != before:
            return before, shared
        return before, decoded.candidates[op.index].operands[place]

    def _moves(self) -> Iterator[ReshardCorrection]:
        """Every reshard of the plan, with what it takes more."""
        for index in self.solution.encoded.ops:
            op = self.graph.ops[index]
            for place in range(len(op.operands)):
                before, after = self._move(op, place)
                if before != after or (index, place) in self.reshards:
                    yield ReshardCorrection(
                        reader=self.keys[index],
                        operand=place,
                        before=self.parts.to_sharding(before),
                        after=self.parts.to_sharding(after),
                        seconds=self.reshards.get((index, place), 0.0),
                    )

    # -- bytes ----------------------------------------------------------------------------------

    def _compare_memory(self) -> Iterator[MemoryCorrection]:
        """What values hold at the compiled peak beyond what the plan has live at its own."""
        solution, whole = self.solution, self.compiled.peak_bytes or 0
        excess = whole - solution.peak_bytes
        if excess < SMALLEST * whole:
            return
        found: dict[str, int] = defaultdict(int)
        for one in live_at_peak([b for b in compiled_buffers(self.module) if b.in_hbm]):
            found[equation_of(one.instruction.string("op_name"))] += one.num_bytes
        planned = self._planned_at_peak()
        beyond = {
            equation: num_bytes - planned.get(equation, 0)
            for equation, num_bytes in found.items()
            if self._largest_value(equation) is not None
            and num_bytes - planned.get(equation, 0) > SMALLEST * whole
        }
        total = sum(beyond.values())
        held = {  # by corrections that the plan was made with: those that are told replace them
            (one.op, one.result, one.sharding): one.num_bytes
            for one in solution.encoder.corrections.memory
        }
        for equation, num_bytes in beyond.items():
            named = self._largest_value(equation)
            assert named is not None
            op, place = named
            charged = int(num_bytes * min(excess / total, 1.0))
            sharding = self.parts.to_sharding(solution.decoded.layouts[op.results[place]])
            key = self.keys[op.index]
            yield MemoryCorrection(
                op=key,
                result=place,
                sharding=sharding,
                num_bytes=held.get((key, place, sharding), 0) + charged,
            )
            text = f"{_said(op)} holds {format_bytes(num_bytes)} more at the peak"
            self.faults.append(_Fault(0.0, text))

    def _planned_at_peak(self) -> dict[str, int]:
        """Bytes that the plan has live at its peak, by the equation of what makes them."""
        held: dict[str, int] = defaultdict(int)
        peak = self.solution.estimate.memory.peak_time
        for buffer in self.solution.local_program.buffers:
            if buffer.space is Space.HBM and buffer.start <= peak < buffer.stop:
                held[self.graph.ops[buffer.op].equation] += buffer.num_bytes
        return held

    def _largest_value(self, equation: str) -> tuple[Op, int] | None:
        """The op of an equation with the largest result, and which of its results that is."""
        values = self.graph.values
        ranked = [
            (values[value].num_bytes, op, place)
            for op in self.named.at(equation)
            for place, value in enumerate(op.results)
            if values[value].shape
        ]
        if not ranked:
            return None
        _, op, place = max(ranked, key=lambda one: one[0])
        return op, place

    def _choice(self, index: int) -> ChoiceCorrection:
        encoded = self.solution.encoded
        node = encoded.node_by_op[index]
        candidate: Candidate = encoded.candidates[node][self.solution.choices[node]]

        def said(layouts: Iterable[tuple[tuple[int, ...], ...]]) -> tuple[Sharding, ...]:
            return tuple(map(self.parts.to_sharding, layouts))

        return ChoiceCorrection(
            op=self.keys[index],
            operands=said(candidate.operands),
            results=said(candidate.results),
            in_chunks=candidate.streamed is not None,
            seconds=self.more.get(index, 0.0),
            priced=self.priced.get(index, 0.0),
        )


def _seconds(waits: Iterable[_Wait]) -> float:
    return sum(wait.seconds for wait in waits)


def _said(op: Op) -> str:
    place = parse_source(op.source)
    short = format_source(replace(place, line=place.line.rpartition("/")[2]))
    return f"{op.name} at {short}" if short else op.name
