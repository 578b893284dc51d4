"""A plan as compiled: seconds, peak memory, and the program for what there is to learn of it."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from importlib import metadata

from autoshard.aot.compile_process import CompiledAhead, Underway
from autoshard.aot.program import ShardedProgram
from autoshard.aot.targets import Target
from autoshard.aot.verify import (
    PlanCompile,
    VerifyOptions,
    compare_plan,
    compiling_plan,
    prices_for,
)
from autoshard.frontend.trace import Traced
from autoshard.hlo.compiled import read_module_collectives
from autoshard.hlo.text import HloModule, parse_hlo
from autoshard.plans.plan import PlanData
from autoshard.sharding import Mesh, Sharding
from autoshard.verification.compiled_prices import CompiledPrices
from autoshard.verification.verification import COMPILED, PARTLY, TimeCheck

_PACKAGES = {"tpu": ("libtpu",), "cuda": ("jax-cuda13-plugin", "jax-cuda12-plugin")}

CYCLES = "compiler's cycles and links"
COLLECTIVES = "planned computing and compiled collectives"
MEASURED = "measured"


@dataclass(frozen=True, slots=True, kw_only=True)
class CompiledPlan:
    """The outcome of compiling a plan.

    Args:
        status: As of `Verification`.
        constraints: Those in the program; fewer than planned where the compiler crashed on some.
        seconds: Of one step; None where nothing compiled.
        spread_seconds: Of a measured step.
        peak_bytes: On one device; None where nothing compiled.
        measure: What the seconds are.
        compiler: Version of what compiled, as it says it.
        reason: Where nothing compiled, why.
        module: The compiled program, where its text names equations.
        prices: Of its collectives and kernels.
        time: Its seconds apart, where the compiler estimates cycles.
    """

    status: str
    constraints: Mapping[str, Sharding]
    seconds: float | None = None
    spread_seconds: float = 0.0
    peak_bytes: int | None = None
    measure: str = CYCLES
    compiler: str = ""
    reason: str = ""
    module: HloModule | None = field(default=None, repr=False)
    prices: CompiledPrices | None = field(default=None, repr=False)
    time: TimeCheck | None = None

    @property
    def is_compiled(self) -> bool:
        return self.status in (COMPILED, PARTLY)


Compile = Callable[[PlanData, float], Underway[CompiledPlan]]
"""Compiles a plan that has its constraints, within so many seconds; begun once it yields."""


def compiler_for(traced: Traced, options: VerifyOptions, prices: CompiledPrices | None) -> Compile:
    """Compiles plans of a program ahead of time.

    Args:
        traced: The program.
        options: How to compile.
        prices: Of the machine planned for.
    """

    def compiling(data: PlanData, seconds: float) -> Underway[CompiledPlan]:
        limited = replace(options, until=min(options.until, time.monotonic() + seconds))
        program = ShardedProgram.of(data, traced)
        found = yield from compiling_plan(program, limited, names_equations=True)
        return _read(data, found, limited, prices)

    return compiling


def _read(
    data: PlanData, found: PlanCompile, options: VerifyOptions, prices: CompiledPrices | None
) -> CompiledPlan:
    assert data.constraints is not None
    left_out = {*found.culprits, *found.untried}
    kept = {path: s for path, s in data.constraints.items() if path not in left_out}
    if found.compiled is None:
        failure = found.failures[-1]
        reason = f"{failure.what.strip().partition(chr(10))[0][:200]}"
        return CompiledPlan(status=found.status, constraints=kept, reason=reason)
    checked = compare_plan(data, found, options, prices)
    assert checked.memory is not None
    machine = _prices(data, found.target, prices)
    module = parse_hlo(found.compiled.text)
    seconds, measure = compiled_seconds(data, module, machine, checked.time)
    return CompiledPlan(
        status=found.status,
        constraints=kept,
        seconds=seconds,
        peak_bytes=checked.memory.compiled_bytes,
        measure=measure,
        compiler=_compiler(found.compiled, found.target.platform),
        reason="; ".join(
            [*(f.what.partition("\n")[0][:120] for f in found.failures), *found.notes]
        ),
        module=module,
        prices=machine,
        time=checked.time,
    )


def _prices(data: PlanData, target: Target, prices: CompiledPrices | None) -> CompiledPrices | None:
    return prices_for(data.hardware, Mesh(data.mesh.axes), target, prices)


def compiled_seconds(
    data: PlanData, module: HloModule, prices: CompiledPrices | None, time: TimeCheck | None
) -> tuple[float, str]:
    """Seconds of a step; where the compiler estimates none, of the plan with these collectives.

    As much of the collectives runs beside the computing as in the plan; what is compiled beyond the
    planned ones is waited for.
    """
    if time is not None:
        return time.overlapped_seconds, CYCLES
    if prices is None:
        return data.priced_seconds, COLLECTIVES
    found = read_module_collectives(module, Mesh(data.mesh.axes))
    links = sum(prices.link_seconds(one) * one.count for one in found)
    planned = data.communication_seconds
    share = exposed_share(planned, planned - (data.seconds - data.priced_seconds), links)
    return data.priced_seconds + share * (links - planned), COLLECTIVES


def exposed_share(planned: float, exposed: float, compiled: float) -> float:
    """The share of what is compiled beyond the planned collectives that the step waits for.

    Args:
        planned: Seconds of the planned collectives.
        exposed: Of these, those that the step waits for.
        compiled: Seconds of the compiled collectives. Of what is short of the planned ones, as much
            was waited for as of all.
    """
    return exposed / planned if planned > 0 and compiled < planned else 1.0


def _compiler(compiled: CompiledAhead, platform: str) -> str:
    """`libtpu 0.0.52, jaxlib 0.10.2`."""
    jaxlib = f"jaxlib {compiled.versions.get('jaxlib', '')}"
    for package in _PACKAGES.get(platform, ()):
        with suppress(metadata.PackageNotFoundError):
            return f"{package} {metadata.version(package)}, {jaxlib}"
    return jaxlib
