"""Differences between a plan and its compiled program, laid to the choices that caused them.

Names of compiled ops hold the path of their equation (`E[7.jaxpr/38]`) or of the constraint they
stand for (`autoshard[38<1]`). Seconds of a kernel go to the ops whose equations it fuses, in the
ratio of their prices; of one without a name to all ops. An op that no kernel names shares in the
kernels around it. Collectives are compared over each set of
mesh axes: what is compiled beyond what is planned there goes to the equations that communicate more
than planned, to the reshard of an operand where the plan has one, else to the candidate. Bytes at
the compiled peak go to the values of the equations that hold more than planned.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from autoshard.candidates.candidate import Candidate
from autoshard.encoding.corrections import (
    ChoiceCorrection,
    MemoryCorrection,
    ReshardCorrection,
    op_keys,
)
from autoshard.graph.dataflow import trace_back, trace_forward
from autoshard.graph.program import Op, OpKind
from autoshard.hlo.compiled import read_module_collectives
from autoshard.hlo.local_program import DeviceSpeed, compiled_program
from autoshard.hlo.text import HloModule, Instruction
from autoshard.lowering.local_program import Space
from autoshard.planning.solution import Solution
from autoshard.refine.compiled_plan import CompiledPlan
from autoshard.refine.live_at_peak import live_at_peak
from autoshard.report.quantities import format_bytes, format_seconds
from autoshard.sharding import Mesh, Sharding
from autoshard.source_place import format_source, parse_source
from autoshard.use_paths import split_uses
from autoshard.verification.collective_comparison import ASYNC, CompiledCollective

_EQUATION = re.compile(r"(?<!\w)E\[([^\[\]]*(?:\[\d+\][^\[\]]*)*)\]")
_CONSTRAINT = re.compile(r"autoshard\[([^\[\]]*(?:\[\d+\][^\[\]]*)*)\]")
_SMALLEST = 1e-4
"""Of the compiled step, or of the compiled peak: smaller differences are left alone. A choice: a
thousand of them are a tenth of a percent each way."""


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
        choices: Of ops in the way they were cut, what they take more.
        reshards: Of reshards, likewise.
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
        self.smallest = _SMALLEST * (compiled.seconds or 0.0)
        self.ops_of: dict[str, list[Op]] = defaultdict(list)
        for index in encoded.ops:
            self.ops_of[self.graph.ops[index].equation].append(self.graph.ops[index])
        self.priced = {op.index: op.compute_seconds for op in solution.account.ops}
        self.more: dict[int, float] = defaultdict(float)
        self.reshards: list[ReshardCorrection] = []
        self.faults: list[_Fault] = []

    def observation(self) -> Observation:
        classes = self._compare_kernels()
        self._compare_collectives()
        choices = [
            self._choice(index, seconds)
            for index, seconds in sorted(self.more.items())
            if max(abs(seconds), self.priced.get(index, 0.0)) >= self.smallest
        ]
        memory = tuple(self._compare_memory())
        faults = sorted(self.faults, key=lambda fault: -fault.seconds)
        return Observation(
            choices=tuple(choices),
            reshards=tuple(self.reshards),
            memory=memory,
            classes=classes,
            faults=tuple(fault.text for fault in faults),
        )

    # -- seconds of kernels ---------------------------------------------------------------------

    def _compare_kernels(self) -> tuple[Priced, ...]:
        """Enter what ops take more; totals by class. Nothing without the compiler's estimates."""
        prices = self.compiled.prices
        if prices is None or prices.clock_hz is None or self.compiled.time is None:
            return ()
        speed = DeviceSpeed(
            clock_hz=prices.clock_hz,
            bytes_per_second=prices.model.hardware.memory.bytes_per_second,
            moved_seconds=prices.moved_seconds,
        )
        program = compiled_program(self.module, self.mesh, prices.link_seconds, speed)
        runs = program.runs()
        found = [
            (self._ops_in(self.instructions[kernel.name]), kernel.seconds * runs[kernel.body])
            for kernel in program.kernels
        ]
        spent: dict[int, float] = dict.fromkeys(self.priced, 0.0)
        for weights, (_, seconds) in zip(
            self._weights([ops for ops, _ in found]), found, strict=True
        ):
            for index, weight in weights.items():
                spent[index] = spent.get(index, 0.0) + seconds * weight / sum(weights.values())
        totals: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0])
        for index, seconds in spent.items():
            op, priced = self.graph.ops[index], self.priced.get(index, 0.0)
            self.more[index] += seconds - priced
            if priced and op.kind is OpKind.COMPUTE:
                totals[op.op_class.value][0] += priced
                totals[op.op_class.value][1] += seconds
            if seconds - priced >= self.smallest:
                text = f"{_said(op)} takes {format_seconds(seconds)}, not {format_seconds(priced)}"
                self.faults.append(_Fault(seconds - priced, text))
        return tuple(
            Priced(op_class=name, priced=priced, compiled=compiled)
            for name, (priced, compiled) in sorted(totals.items())
        )

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

    def _ops_in(self, instruction: Instruction) -> list[Op]:
        """The ops of the plan that an instruction computes, those in its fusion included."""
        paths = dict.fromkeys(filter(None, map(equation_of, self._names(instruction))))
        return [op for path in paths for op in self._ops_at(path)]

    def _names(self, instruction: Instruction) -> Iterator[str]:
        yield instruction.string("op_name")
        if instruction.opcode == "fusion":
            for _, called in instruction.called():
                for inner in self.module.computations.get(called, {}).values():
                    yield from self._names(inner)

    def _ops_at(self, path: str) -> list[Op]:
        """Ops of an equation; of one that the planner has not, those of the equation around it."""
        while path and path not in self.ops_of:
            path = path.rpartition("/")[0].rpartition(".")[0]
        return self.ops_of.get(path, []) if path else []

    # -- collectives ----------------------------------------------------------------------------

    def _compare_collectives(self) -> None:
        """Enter the seconds of collectives that nobody planned."""
        program = self.solution.local_program
        runs = program.runs()
        exposed = self._exposed_share()
        by_axes: dict[tuple[str, ...] | None, list[CompiledCollective]] = defaultdict(list)
        for one in read_module_collectives(self.module, self.mesh):
            by_axes[one.axes].append(one)
        for axes, found in by_axes.items():
            predicted: dict[int, float] = defaultdict(float)
            for planned in program.collectives:
                if planned.axes == axes:
                    predicted[planned.op] += planned.seconds * planned.count * runs[planned.body]
            self._charge(found, predicted, exposed)

    def _charge(
        self,
        found: Iterable[CompiledCollective],
        predicted: Mapping[int, float],
        exposed: float,
    ) -> None:
        """Lay what is sent over one set of axes beyond what is planned to ops that send more."""
        sent: dict[int, float] = defaultdict(float)
        one_of: dict[int, CompiledCollective] = {}
        operand_of: dict[int, int] = {}
        unknown = 0.0
        for one in found:
            seconds = self._link_seconds(one) * one.count
            op, operand = self._sender(one.op_name)
            if op is None:
                unknown += seconds
                continue
            sent[op.index] += seconds
            one_of.setdefault(op.index, one)
            if operand is not None:
                operand_of.setdefault(op.index, operand)
        excess = sum(sent.values()) + unknown - sum(predicted.values())
        beyond = {op: max(s - self._planned_at(op, predicted), 0.0) for op, s in sent.items()}
        total = sum(beyond.values()) + unknown
        if excess < self.smallest or not total:
            return
        for index, seconds in beyond.items():
            charged = seconds * min(excess / total, 1.0)
            if charged < self.smallest:
                continue
            one, op = one_of[index], self.graph.ops[index]
            share = exposed if one.form == ASYNC else 1.0
            axes = "no axes of the mesh" if one.axes is None else ", ".join(one.axes)
            self.faults.append(
                _Fault(
                    charged * share,
                    f"{one.kind} over {axes} that nobody planned, {format_seconds(charged)} for"
                    f" {_said(op)}",
                )
            )
            self._lay(op, operand_of.get(index), charged * share)

    def _planned_at(self, index: int, predicted: Mapping[int, float]) -> float:
        """Seconds planned for all ops of the same equation."""
        equation = self.graph.ops[index].equation
        if not equation:
            return predicted.get(index, 0.0)
        return sum(predicted.get(op.index, 0.0) for op in self.ops_of[equation])

    def _lay(self, op: Op, operand: int | None, seconds: float) -> None:
        """Lay seconds to the reshard of an operand, where there is one, else to the candidate."""
        decoded = self.solution.decoded
        candidate = decoded.candidates[op.index]
        places = range(len(op.operands)) if operand is None else (operand,)
        for place in places:
            if place >= len(op.operands) or place >= len(candidate.operands):
                continue
            before, after = decoded.layouts[op.operands[place]], candidate.operands[place]
            if before != after:
                self.reshards.append(
                    ReshardCorrection(
                        reader=self.keys[op.index],
                        operand=place,
                        before=self.parts.to_sharding(before),
                        after=self.parts.to_sharding(after),
                        seconds=seconds,
                    )
                )
                return
        self.more[op.index] += seconds

    def _sender(self, name: str) -> tuple[Op | None, int | None]:
        """The op that a collective serves, and which operand, where its name tells."""
        constraint = _CONSTRAINT.findall(name)
        if constraint:
            path, _, use = split_uses(constraint[-1])[0].partition("<")
            operand = int(use.partition("~")[0]) if use else None
            equation = path if use else path.rpartition(".")[0]
        else:
            equation, operand = equation_of(name), None
        ops = self._ops_at(equation)
        if not ops:
            return None, None
        largest = max(ops, key=lambda op: self.priced.get(op.index, 0.0))
        return largest, operand

    def _link_seconds(self, one: CompiledCollective) -> float:
        assert self.compiled.prices is not None
        return self.compiled.prices.link_seconds(one)

    def _exposed_share(self) -> float:
        """Of the seconds of asynchronous collectives, the share that the step waits for."""
        time = self.compiled.time
        if time is None or not time.link_seconds:
            return 1.0
        exposed = time.overlapped_seconds - time.compute_seconds
        return min(max(exposed / time.link_seconds, 0.0), 1.0)

    # -- bytes ----------------------------------------------------------------------------------

    def _compare_memory(self) -> Iterator[MemoryCorrection]:
        """What values hold at the compiled peak beyond what the plan has live at its own."""
        solution, whole = self.solution, self.compiled.peak_bytes or 0
        excess = whole - solution.peak_bytes
        if excess < _SMALLEST * whole:
            return
        found: dict[str, int] = defaultdict(int)
        for name, num_bytes in live_at_peak(self.module):
            found[equation_of(name)] += num_bytes
        planned = self._planned_at_peak()
        beyond = {
            equation: num_bytes - planned.get(equation, 0)
            for equation, num_bytes in found.items()
            if self._largest_value(equation) is not None
            and num_bytes - planned.get(equation, 0) > _SMALLEST * whole
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
            for op in self._ops_at(equation)
            for place, value in enumerate(op.results)
            if values[value].shape
        ]
        if not ranked:
            return None
        _, op, place = max(ranked, key=lambda one: one[0])
        return op, place

    def _choice(self, index: int, seconds: float) -> ChoiceCorrection:
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
            seconds=seconds,
        )


def equation_of(name: str) -> str:
    """The innermost equation path in the name of a compiled op; "" where there is none."""
    found = _EQUATION.findall(name)
    if found:
        return str(found[-1])
    constraint = _CONSTRAINT.findall(name)
    if not constraint:
        return ""
    path, _, use = split_uses(str(constraint[-1]))[0].partition("<")
    return path if use else path.rpartition(".")[0]


def _said(op: Op) -> str:
    place = parse_source(op.source)
    short = format_source(replace(place, line=place.line.rpartition("/")[2]))
    return f"{op.name} at {short}" if short else op.name
