"""A program planned, run on 8 devices, and compared with itself on one."""

from __future__ import annotations

import tempfile
import time
import traceback
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from hashlib import sha256
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

import autoshard
from autoshard.build_plan import SMALL_BUFFERS, budget_notes
from autoshard.errors import AutoshardError, ConstraintError
from autoshard.export import stage_names, verify_module
from autoshard.hlo.compiled import read_module_collectives
from autoshard.hlo.text import parse_hlo
from autoshard.plan import Plan
from autoshard.sharding import Mesh, format_sharding
from autoshard.verification.collective_comparison import compare_collectives
from tests.export.compile_module import compiles
from tests.soak.program import (
    Program,
    Type,
    arguments_of,
    function_of,
    jax_mesh,
    scope_of,
    sharding_of,
)

VERDICTS = (
    "wrong",
    "crashed",
    "hung",
    "refused",
    "export",
    "save",
    "budget",
    "bytes",
    "rounding",
    "asked too much",
    "invalid",
    "equal",
)
"""Ways a program may end, the worst first."""

GOOD = ("rounding", "asked too much", "invalid", "equal")

_OF_JAX = (jax.errors.JaxRuntimeError, ValueError)
"""Errors of JAX: the second where it reads an array without elements that is cut."""
_NO_LIBRARY = {"xla_cpu_experimental_ynn_fusion_type": ""}
_EPSILON = {"float16": 2e-2, "bfloat16": 6e-2}
_WIDE_TOLERANCE = 1e-7
_MORE = 1.05
"""Bytes and memory may be off by a twentieth."""
_DOUBTED = 1.15
"""Memory where the plan says that it may pass the budget."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What came of one program.

    Args:
        verdict: The worst that was found, of `VERDICTS`.
        detail: In words.
        key: Of a crash: the exception and where it was raised.
        facts: Figures: bytes and peaks, planned and compiled; seconds; a digest of the plan.
    """

    verdict: str
    detail: str = ""
    key: str = ""
    facts: dict[str, Any] = field(default_factory=dict)

    @property
    def is_good(self) -> bool:
        return self.verdict in GOOD


def judge(program: Program) -> Outcome:
    """Plan, run and compare."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return _Trial(program).outcome()


def planned(program: Program, *, is_wide: bool = False, budget: Any = None) -> Plan:
    """The plan that a program asks for."""
    asked = program.asked
    mesh = jax_mesh(asked.mesh)
    fn = function_of(program.source, scope_of(mesh, is_wide=is_wide))
    types = [kind for _, kind in program.main.parameters]
    names = [name for name, _ in program.main.parameters]
    constraints: list[Any] = [
        autoshard.Pin(names[place], sharding_of(spec, mesh).spec) for place, spec in asked.pinned
    ]
    if asked.alike is not None:
        constraints.append(autoshard.Group(*(names[place] for place in asked.alike)))
    results = tuple(None if spec is None else sharding_of(spec, mesh) for spec in asked.results)
    return autoshard.optimize(
        fn,
        *arguments_of(types, is_wide=is_wide),
        mesh=mesh,
        hardware=asked.hardware,
        memory_budget=budget,
        in_shardings=tuple(
            None if spec is None else sharding_of(spec, mesh) for spec in asked.arguments
        )
        or None,
        out_shardings=(results if len(results) != 1 else results[0]) or None,
        constraints=constraints or None,
        donate_argnums=asked.donated,
        time_limit_seconds=20.0,
        default_trip_count=1.0,  # as the text of a compiled loop counts, where nothing tells more
        baselines=False,
    )


@dataclass
class _Trial:
    program: Program
    found: dict[str, str] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    key: str = ""

    def outcome(self) -> Outcome:
        started = time.monotonic()
        self._run()
        self.facts["seconds"] = round(time.monotonic() - started, 2)
        verdict = next((word for word in VERDICTS if word in self.found), "equal")
        return Outcome(verdict, self.found.get(verdict, ""), self.key, self.facts)

    def _run(self) -> None:
        program = self.program
        types = [kind for _, kind in program.main.parameters]
        try:
            expected = _alone(program)
        except Exception as error:
            self.found["invalid"] = _in_short(error)
            return
        try:
            plan = planned(program)
            if program.asked.budget is not None:
                whole = plan.data.memory.peak_bytes
                self.facts["budget"] = budget = max(1, int(whole * program.asked.budget))
                plan = planned(program, budget=budget)
            if not plan.data.is_feasible:
                word = "asked too much" if program.asked.budget is not None else "refused"
                self.found[word] = f"{plan.data.solver.status}: {plan.data.solver.advice}"
                return
            placed = [
                jax.device_put(array, sharding)
                for array, sharding in zip(arguments_of(types), plan.in_shardings, strict=True)
            ]
            step = plan.jit()
            compiled = step.lower(*placed).compile()
            made = [np.asarray(leaf) for leaf in jax.tree.leaves(step(*placed))]  # as users call it
            self._compare(made, expected)
            self._account(plan, compiled)
            self._save(plan)
            self._export(plan, expected)
        except ConstraintError as error:
            self.found["asked too much" if _asks(program) else "refused"] = _in_short(error)
        except Exception as error:
            word = "refused" if isinstance(error, AutoshardError) else "crashed"
            if isinstance(error, _OF_JAX) and _fails_by_hand(program):
                word = "invalid"
            self.found[word] = "".join(traceback.format_exception(error))[-2500:]
            self.key = _place(error)

    def _compare(self, made: Sequence[Any], expected: Sequence[Any], stage: str = "") -> None:
        """Numbers, where they differ by more than rounding those of float64."""
        off = _differing(made, expected)
        if not off:
            return
        if wide := self._in_float64(stage):
            self.found["export" if stage else "wrong"] = f"{stage} {off}; in float64: {wide}"
        else:
            self.found["rounding"] = off

    def _in_float64(self, stage: str) -> str:
        """The difference of the numbers where all floats are float64; empty where there is none.

        The function alone runs op by op, and where that differs compiled without host CPUs' library
        of sums and matmuls: compiled for one device it may be wrong itself (a matmul of a `psum`
        under `vmap` and ones, sums of 4,096 floats that were rounded to int8, jaxlib 0.10.2).
        """
        program = self.program
        with jax.enable_x64(True):
            types = [kind for _, kind in program.main.parameters]
            arguments = arguments_of(types, is_wide=True)
            plan = planned(program, is_wide=True)
            found = _of_stage(plan, stage, arguments) if stage else plan.jit()(*arguments)
            made = [np.asarray(leaf) for leaf in jax.tree.leaves(found)]
            off = _differing(made, _alone(program, is_wide=True, is_compiled=False))
            if off and not _differing(made, _alone(program, is_wide=True, options=_NO_LIBRARY)):
                return ""
            return off

    def _account(self, plan: Plan, compiled: Any) -> None:
        """Collective bytes and memory, planned and compiled, where it was planned for CPUs."""
        if self.program.asked.hardware != "cpu-host":
            return
        collectives = read_module_collectives(
            parse_hlo(compiled.as_text()), Mesh(plan.data.mesh.axes)
        )
        both = compare_collectives(plan.data.collectives, collectives)
        sizes = compiled.memory_analysis()
        peak = (
            sizes.argument_size_in_bytes
            + sizes.output_size_in_bytes
            - sizes.alias_size_in_bytes
            + sizes.temp_size_in_bytes
        )
        self.facts |= {
            "planned_bytes": both.predicted_bytes,
            "compiled_bytes": both.compiled_bytes,
            "planned_peak": plan.data.memory.peak_bytes,
            "compiled_peak": peak,
        }
        low, high = sorted((both.predicted_bytes, both.compiled_bytes))
        if high > _MORE * low:
            rows = [row for row in both.rows if row.predicted_bytes != row.compiled_bytes]
            self.found["bytes"] = f"planned {both.predicted_bytes:.0f}, compiled" + (
                f" {both.compiled_bytes:.0f}: {rows[0].kind} over {rows[0].axes},"
                f" {rows[0].predicted_bytes:.0f} against {rows[0].compiled_bytes:.0f}"
            )
        budget = self.facts.get("budget")
        if budget is None:
            return
        doubts = budget_notes(budget, plan.data.memory.peak_bytes)
        self.facts["is_doubted"] = is_doubted = any(note in plan.data.notes for note in doubts)
        most = _DOUBTED * budget + SMALL_BUFFERS if is_doubted else _MORE * budget
        if peak > most:
            self.found["budget"] = f"compiled {peak} of {budget} bytes"

    def _save(self, plan: Plan) -> None:
        """A plan read back is the one that was written."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "plan.json"
            plan.save(path)
            read = autoshard.load_plan(path).data
        if read != plan.data:
            self.found["save"] = "the plan read back is another"
        told = [tensor.sharding for tensor in (*plan.data.arguments, *plan.data.results)]
        texts = [*map(format_sharding, told), *sorted(map(str, plan.constraints.items()))]
        self.facts["digest"] = sha256("\n".join(texts).encode()).hexdigest()[:16]

    def _export(self, plan: Plan, expected: Sequence[Any]) -> None:
        """Every stage of the export is sound, and the last one computes the same."""
        for stage in ("explicit", "collectives"):
            for told in verify_module(plan.stablehlo(stage))[:1]:
                self.found["export"] = f"{stage}: {told}"
        assert set(stage_names()) >= {"explicit", "collectives"}
        types = [kind for _, kind in self.program.main.parameters]
        made = _of_stage(plan, "collectives", arguments_of(types))
        if "rounding" not in self.found:
            self._compare([np.asarray(one) for one in made], expected, "collectives")


def _of_stage(plan: Plan, stage: str, arguments: Sequence[Any]) -> list[Any]:
    """Results of the program as it is after a stage of the export."""
    return compiles(plan.stablehlo(stage, platform="cpu"), plan.export(), tuple(arguments), plan)


def _fails_by_hand(program: Program) -> bool:
    """True where JAX alone fails under the shardings asked for.

    A result in the place of a donated argument comes back as that is given.
    """
    asked = program.asked
    mesh = jax_mesh(asked.mesh)
    types = [kind for _, kind in program.main.parameters]
    given = [None if spec is None else sharding_of(spec, mesh) for spec in asked.arguments]
    again = {types[place]: given[place] for place in asked.donated if given}
    step = function_of(program.source, scope_of(mesh))
    made = jax.tree.leaves(jax.eval_shape(step, *arguments_of(types)))
    wanted = [
        again.get(Type.of(one)) if spec is None else sharding_of(spec, mesh)
        for one, spec in zip(made, asked.results or (None,) * len(made), strict=True)
    ]
    by_hand = jax.jit(
        step,
        in_shardings=tuple(given) or None,
        out_shardings=tuple(wanted) if len(wanted) > 1 else wanted[0],
    )
    try:
        jax.tree.map(np.asarray, by_hand(*arguments_of(types)))
    except _OF_JAX:
        return True
    return False


def _asks(program: Program) -> bool:
    """Whether a plan is asked what it may have to refuse."""
    asked = program.asked
    pins = (*asked.arguments, *asked.results)
    return "held(" in program.source or bool(asked.pinned) or any(pin is not None for pin in pins)


def _alone(
    program: Program,
    *,
    is_wide: bool = False,
    is_compiled: bool = True,
    options: Mapping[str, str] | None = None,
) -> list[Any]:
    """Of the program on one device."""
    mesh = jax_mesh(program.asked.mesh)
    scope = scope_of(mesh, is_partitioned=False, is_wide=is_wide)
    types = [kind for _, kind in program.main.parameters]
    function = function_of(program.source, scope)
    run = jax.jit(function, compiler_options=options) if is_compiled else function
    made = run(*map(jnp.asarray, arguments_of(types, is_wide=is_wide)))
    return [np.asarray(leaf) for leaf in jax.tree.leaves(made)]


def _differing(made: Sequence[Any], expected: Sequence[Any]) -> str:
    """How many elements of each array differ by more than rounding; empty for none."""
    if [a.shape for a in made] != [b.shape for b in expected]:
        return f"shapes {[a.shape for a in made]} for {[b.shape for b in expected]}"
    counts = [_num_off(a, b) for a, b in zip(made, expected, strict=True)]
    if not any(counts):
        return ""
    sizes = [b.size for b in expected]
    return ", ".join(f"{n} of {size}" for n, size in zip(counts, sizes, strict=True))


def _num_off(a: Any, b: Any) -> int:
    if not b.size:
        return 0
    tolerance = _EPSILON.get(str(b.dtype), _WIDE_TOLERANCE if b.dtype.itemsize == 8 else 1e-3)
    if str(b.dtype) == "complex64":
        tolerance = 1e-3
    kind = np.complex128 if jnp.issubdtype(b.dtype, jnp.complexfloating) else np.float64
    a, b = np.asarray(a).astype(kind), np.asarray(b).astype(kind)
    finite = np.abs(b[np.isfinite(b)])
    scale = max(1e-6, float(finite.max())) if finite.size else 1.0
    return int((~np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)).sum())


def _in_short(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"[:600]


def _place(error: BaseException) -> str:
    """The exception and the last line of ours that it went through."""
    frames = traceback.extract_tb(error.__traceback__)
    ours = [f for f in frames if "/autoshard/" in f.filename or "/solvers/" in f.filename]
    last = (ours or frames)[-1]
    return f"{type(error).__name__} in {Path(last.filename).name} {last.name}"
