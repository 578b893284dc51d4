"""The record of a plan that was refined: what was compiled, and what came of it."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedPlan:
    """One plan that was compiled.

    Args:
        round: In which it was, counted from 1.
        name: `optimized`, `fsdp as written`, `candidate 1`.
        also: Names of the other plans that are the same program.
        status: As of a verification: `compiled`, `crashed`, ...
        why: What it is a plan for, or what the compiler did that made it differ from the last one;
            of a compile that came to nothing, what the compiler said.
        predicted_seconds: Of one step, with the corrections known when it was planned.
        compiled_seconds: Of one step, as compiled or measured; None where nothing compiled.
        spread_seconds: Of a measured step, the median distance of its runs from their median.
        predicted_bytes: Peak memory by the model.
        compiled_bytes: Peak memory as compiled; None where nothing compiled.
        fits: The compiled peak is within the memory budget.
        num_constraints: Constraints in its program.
        best_before: Seconds of a step of the best plan before it; None where none compiled.
        compile_seconds: Wall time of its compile or measurement beside what was planned meanwhile.
        plan_seconds: Wall time of planning it.
    """

    round: int
    name: str
    also: tuple[str, ...] = ()
    status: str
    why: str
    predicted_seconds: float
    compiled_seconds: float | None
    spread_seconds: float = 0.0
    predicted_bytes: int
    compiled_bytes: int | None
    fits: bool
    num_constraints: int
    best_before: float | None
    compile_seconds: float
    plan_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Refinement:
    """How a plan was refined.

    Args:
        target: What was compiled for: `v5e:2x4`, `8xH100`; `local` for devices at hand.
        compiler: Its version, as it says it.
        measure: What compiled seconds are: `compiler's cycles and links`, `planned computing and
            compiled collectives`, `measured`.
        memory_budget: Bytes per device that a compiled plan may hold; None for no limit.
        tried: Every plan that was compiled, in order.
        chosen: Which of them the plan is; None where none compiled within the budget.
        ended: Why no further round followed.
        left: Of the step time, the share that is left to win at most by the corrected model; None
            where nothing is proven.
        missing_bytes: By how much the best plan misses the memory budget, where none fits.
        corrected: What was learnt, in words: `12 ops, 3 reshards, 1 value`.
    """

    target: str
    compiler: str
    measure: str
    memory_budget: int | None
    tried: tuple[TriedPlan, ...]
    chosen: int | None
    ended: str
    left: float | None
    missing_bytes: int = 0
    corrected: str = ""
