"""A net of numbers over single ops: random shardings of what they read and make, run on 8 devices.

`python -m tests.soak.op_net --minutes 60` compares each op under random constraints with itself on
one device, which tests XLA's partitioner; with `--kind planned` it plans the op under random pins,
which tests that no plan walks into what the partitioner gets wrong. Trials are numbered: the number
and the seed say all there is to know about one. The record is a file of one line a trial, and a run
goes on where the record ends.
"""

from __future__ import annotations

import os

os.environ.setdefault("JAX_PLATFORMS", "cpu")
os.environ.setdefault("XLA_FLAGS", "--xla_force_host_platform_device_count=8")

import argparse
import json
import multiprocessing
import sys
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import cache
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import AxisType, NamedSharding, PartitionSpec

import autoshard
from autoshard.backends import get_backend
from autoshard.candidates.op_candidates import OpCandidates, has_choice
from autoshard.candidates.partitioner_limits import misread, misreads_slices
from autoshard.graph.program import Graph, OpKind
from autoshard.layouts import Layout, MeshParts
from autoshard.sharding import Mesh, MeshAxis
from autoshard.wishes.wishes import Wishes
from experiments.results_table import provenance
from tests.planner.traced import exported
from tests.soak.op_cases import CASES, OpCase

Spec = tuple[tuple[str, ...], ...]
"""Axis names by dimension."""

MESHES: tuple[tuple[int, ...], ...] = ((8,), (2, 4), (4, 2), (2, 2, 2))
AXES = ("a", "b", "c")
RELATIVE_ERROR = {2: 5e-2, 1: 0.2}  # by bytes of an element
SECONDS_A_TRIAL = 120


@dataclass(frozen=True, slots=True)
class Layouts:
    """Shardings of one trial; None asks nothing.

    Args:
        mesh: Sizes of the axes `a`, `b`, `c`.
        arguments: Of the function.
        operands: Constraints between the arguments and the op.
        constraints: Constraints on what the op makes.
        results: Of the function.
        is_between: Whether an element-wise op stands before each operand, and after each result.
    """

    mesh: tuple[int, ...]
    arguments: tuple[Spec | None, ...]
    operands: tuple[Spec | None, ...]
    constraints: tuple[Spec | None, ...]
    results: tuple[Spec | None, ...]
    is_between: bool

    def having(self, field: str, specs: tuple[Spec | None, ...]) -> Layouts:
        """The same with other shardings in one place."""
        changed: dict[str, Any] = {field: specs}
        return replace(self, **changed)

    def simpler(self) -> Iterator[Layouts]:
        """The same with one sharding less."""
        if self.is_between:
            yield replace(self, is_between=False)
        for field in ("constraints", "operands", "results", "arguments"):
            specs: tuple[Spec | None, ...] = getattr(self, field)
            for place, spec in enumerate(specs):
                if spec is not None:
                    yield self.having(field, (*specs[:place], None, *specs[place + 1 :]))
                if spec is not None and any(spec):
                    whole = ((),) * len(spec)
                    yield self.having(field, (*specs[:place], whole, *specs[place + 1 :]))


@dataclass(frozen=True, slots=True)
class Outcome:
    """How one trial ended: `equal`, `wrong` numbers, `refused`, `crashed`, or `hung`."""

    trial: int
    case: str
    verdict: str
    detail: str = ""
    layouts: Mapping[str, Any] | None = None
    program: str = ""


def random_spec(rng: np.random.Generator, shape: Sequence[int], mesh: Sequence[int]) -> Spec:
    """Axes dealt to dimensions that they divide."""
    dims: list[list[str]] = [[] for _ in shape]
    pieces = [1] * len(shape)
    for axis in rng.permutation(len(mesh)):
        fitting = [d for d, size in enumerate(shape) if size % (pieces[d] * mesh[axis]) == 0]
        if fitting and rng.random() < 0.7:
            dim = int(rng.choice(fitting))
            dims[dim].append(AXES[axis])
            pieces[dim] *= mesh[axis]
    return tuple(map(tuple, dims))


def random_layouts(
    rng: np.random.Generator, case: OpCase, results: Sequence[tuple[int, ...]]
) -> Layouts:
    """Shardings of everything, a third of them left open."""
    mesh = MESHES[rng.integers(len(MESHES))]
    is_plain = rng.random() < 0.5  # arguments whole: only the constraints matter

    def some(shapes: Sequence[tuple[int, ...]], share: float) -> tuple[Spec | None, ...]:
        return tuple(
            random_spec(rng, shape, mesh) if rng.random() < share else None for shape in shapes
        )

    operands = [spec.shape for spec in case.operands]
    whole = tuple(((),) * len(shape) for shape in operands)
    return Layouts(
        mesh=mesh,
        arguments=whole if is_plain else some(operands, 0.7),
        operands=some(operands, 0.7),
        constraints=some(results, 0.7),
        results=some(results, 0.5),
        is_between=bool(rng.integers(2)),
    )


def candidate_layouts(rng: np.random.Generator, case: OpCase) -> Layouts:
    """Shardings of one of the ways to cut an op that a plan may choose.

    The op is one that reads arguments, or makes results; other ops of a case are left open.
    """
    mesh = MESHES[rng.integers(len(MESHES))]
    graph, wishes = _graph_of(case, mesh)
    parts = MeshParts.of(Mesh(tuple(MeshAxis(n, s) for n, s in zip(AXES, mesh, strict=False))))
    offers = OpCandidates(graph, parts, wishes, get_backend("cpu").collectives, 400)
    of_argument = {op.results[0]: place for place, op in enumerate(graph.arguments)}
    of_result = {op.operands[0]: place for place, op in enumerate(graph.results)}
    ops = [
        op
        for op in graph.ops
        if op.kind is OpKind.COMPUTE
        and has_choice(graph, op)
        and (of_argument.keys() & op.operands or of_result.keys() & op.results)
    ]
    operands: list[Spec | None] = [None] * len(graph.arguments)
    constraints: list[Spec | None] = [None] * len(graph.results)
    whole: list[Spec | None] = [((),) * len(spec.shape) for spec in case.operands]
    arguments = [None if rng.random() < 0.3 else spec for spec in whole]
    if ops:
        op = ops[rng.integers(len(ops))]
        candidates = offers.of(op)
        candidate = candidates[rng.integers(len(candidates))]
        for value, layout in zip(op.operands, candidate.operands, strict=True):
            if value in of_argument:
                operands[of_argument[value]] = _spec_of(parts, layout)
        if misreads_slices(op) and op.rule is not None and op.operands[0] in of_argument:
            place = of_argument[op.operands[0]]
            if misread(parts, op.rule, candidate, ((),) * len(case.operands[place].shape)):
                arguments[place] = operands[place]
        for value, layout in zip(op.results, candidate.results, strict=True):
            if value in of_result:
                constraints[of_result[value]] = _spec_of(parts, layout)
    results = (None,) * len(graph.results)
    return Layouts(
        mesh, tuple(arguments), tuple(operands), tuple(constraints), results, bool(rng.integers(2))
    )


def _spec_of(parts: MeshParts, layout: Layout) -> Spec:
    return tuple(tuple(parts.axes[part] for part in dim) for dim in layout)


@cache
def _graph_of(case: OpCase, mesh: tuple[int, ...]) -> tuple[Graph, Wishes]:
    text = ",".join(f"{name}={size}" for name, size in zip(AXES, mesh, strict=False))
    operands = [jax.ShapeDtypeStruct(spec.shape, jnp.dtype(spec.dtype)) for spec in case.operands]
    return exported(case.fn, *operands, mesh=text)


def named(spec: Spec | None, mesh: jax.sharding.Mesh) -> NamedSharding | None:
    """As JAX takes it."""
    if spec is None:
        return None
    return NamedSharding(mesh, PartitionSpec(*(dim or None for dim in spec)))


@cache
def devices_as(sizes: tuple[int, ...]) -> jax.sharding.Mesh:
    """A mesh over all devices."""
    return jax.make_mesh(sizes, AXES[: len(sizes)], axis_types=(AxisType.Auto,) * len(sizes))


def _passed_on(value: Any, zero: jax.Array) -> Any:
    """The value, after an op that the compiler cannot drop."""
    if value.dtype == jnp.bool_:
        return value ^ (zero != 0)
    if jnp.issubdtype(value.dtype, jnp.integer):
        return value ^ zero.astype(value.dtype)
    return jnp.where(zero == 0, value, 0)


def held(values: Sequence[Any], specs: Sequence[Spec | None], mesh: jax.sharding.Mesh) -> list[Any]:
    """Values under constraints."""
    return [
        value if spec is None else jax.lax.with_sharding_constraint(value, named(spec, mesh))
        for value, spec in zip(values, specs, strict=True)
    ]


def sharded(case: OpCase, layouts: Layouts) -> Any:
    """The op as a compiled function of its operands and a zero, to a tuple."""
    mesh = devices_as(layouts.mesh)

    def run(zero: jax.Array, *operands: jax.Array) -> tuple[Any, ...]:
        read = [_passed_on(x, zero) for x in operands] if layouts.is_between else operands
        made = jax.tree.leaves(case.fn(*held(read, layouts.operands, mesh)))
        ended = held(made, layouts.constraints, mesh)
        return tuple(_passed_on(x, zero) if layouts.is_between else x for x in ended)

    arguments = (named((), mesh), *(named(spec, mesh) for spec in layouts.arguments))
    results = tuple(named(spec, mesh) for spec in layouts.results)
    return jax.jit(run, in_shardings=arguments, out_shardings=results)


def _as_numbers(array: Any) -> np.ndarray[Any, Any]:
    wide = np.complex128 if jnp.issubdtype(array.dtype, jnp.complexfloating) else np.float64
    return np.asarray(array).astype(wide)


def num_wrong(found: Any, expected: Any) -> int:
    """Elements that differ by more than rounding."""
    tolerance = RELATIVE_ERROR.get(expected.dtype.itemsize, 2e-3)
    a, b = _as_numbers(found), _as_numbers(expected)
    if not b.size:
        return 0
    finite = np.abs(b[np.isfinite(b)])
    scale = max(1e-6, float(finite.max())) if finite.size else 1.0
    return int((~np.isclose(a, b, rtol=tolerance, atol=tolerance * scale, equal_nan=True)).sum())


@cache
def expected_of(case: OpCase, seed: int) -> tuple[tuple[jax.Array, ...], tuple[Any, ...]]:
    """Operands, and what the op makes of them on one device."""
    rng = np.random.default_rng([seed, CASES.index(case)])
    operands = tuple(spec.make(rng) for spec in case.operands)
    return operands, tuple(map(np.asarray, jax.tree.leaves(jax.jit(case.fn)(*operands))))


def compare(case: OpCase, layouts: Layouts, seed: int) -> str:
    """Empty where numbers agree, else how many do not."""
    operands, expected = expected_of(case, seed)
    step = sharded(case, layouts)
    return told(step(jnp.int32(0), *operands), expected)


def told(found: Sequence[Any], expected: Sequence[Any]) -> str:
    """How many elements of each result are wrong; empty for none."""
    counts = [num_wrong(a, b) for a, b in zip(found, expected, strict=True)]
    if not any(counts):
        return ""
    sizes = [b.size for b in expected]
    return ", ".join(f"{n} of {size}" for n, size in zip(counts, sizes, strict=True))


def minimal(case: OpCase, layouts: Layouts, seed: int) -> Layouts:
    """The fewest shardings under which numbers are still wrong."""
    for simpler in layouts.simpler():
        try:
            is_wrong = bool(compare(case, simpler, seed))
        except Exception:
            is_wrong = False
        if is_wrong:
            return minimal(case, simpler, seed)
    return layouts


def plan_and_compare(case: OpCase, layouts: Layouts, seed: int) -> str:
    """The same of a plan of a function that is constrained and pinned like the trial."""
    operands, expected = expected_of(case, seed)
    mesh = devices_as(layouts.mesh)

    def fn(*read: Any) -> tuple[Any, ...]:
        zero = jnp.int32(0) if not layouts.is_between else read[0].ravel()[0].astype(jnp.int32) * 0
        between = [_passed_on(x, zero) for x in read]
        made = jax.tree.leaves(case.fn(*held(between, layouts.operands, mesh)))
        ended = held(made, layouts.constraints, mesh)
        return tuple(jnp.tanh(x) if x.dtype == jnp.float32 else x for x in ended)

    expected = tuple(np.tanh(b) if b.dtype == np.float32 else b for b in expected)
    plan = autoshard.optimize(
        fn,
        *operands,
        mesh=mesh,
        in_shardings=tuple(named(spec, mesh) for spec in layouts.arguments),
        out_shardings=tuple(named(spec, mesh) for spec in layouts.results),
        baselines=False,
    )
    return told(plan.jit()(*operands), expected)


def layouts_of(trial: int, seed: int, case: OpCase, kind: str) -> Layouts:
    """The shardings of a trial."""
    rng = np.random.default_rng([seed, trial])
    if kind == "candidates":
        return candidate_layouts(rng, case)
    _, expected = expected_of(case, seed)
    return random_layouts(rng, case, [b.shape for b in expected])


def run_trial(trial: int, seed: int, case: OpCase, layouts: Layouts, kind: str) -> Outcome:
    """Compare, and where numbers differ find the fewest shardings under which they do."""
    is_planned = kind == "planned"
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            detail = (plan_and_compare if is_planned else compare)(case, layouts, seed)
    except Exception as error:
        text = f"{type(error).__name__}: {error}".splitlines()[0][:300]
        if is_planned:
            text = traceback.format_exc(limit=-4)
        return Outcome(trial, case.name, "refused", text, asdict(layouts))
    if not detail:
        return Outcome(trial, case.name, "equal")
    if is_planned:
        return Outcome(trial, case.name, "wrong", detail, asdict(layouts))
    least = minimal(case, layouts, seed)
    operands, _ = expected_of(case, seed)
    text = sharded(case, least).lower(jnp.int32(0), *operands).as_text()
    return Outcome(trial, case.name, "wrong", compare(case, least, seed), asdict(least), text)


def _work(pipe: Connection, first: int, seed: int, names: Sequence[str], kind: str) -> None:
    cases = [case for case in CASES if case.name in names]
    for trial in range(first, sys.maxsize):
        case = cases[trial % len(cases)]
        layouts = layouts_of(trial, seed, case, kind)
        pipe.send(Outcome(trial, case.name, "crashed", layouts=asdict(layouts)))
        pipe.send(run_trial(trial, seed, case, layouts, kind))


def trials(
    first: int, seed: int, names: Sequence[str], deadline: float, kind: str
) -> Generator[Outcome, None, None]:
    """Outcomes from a trial on, made in a process of its own, until the deadline.

    A compiler that ends its process, or does not end, costs that one trial.
    """
    context = multiprocessing.get_context("spawn")
    while time.monotonic() < deadline:
        ours, theirs = context.Pipe()
        worker = context.Process(
            target=_work,
            args=(theirs, first, seed, names, kind),
            daemon=True,
        )
        worker.start()
        theirs.close()
        begun = Outcome(first, names[first % len(names)], "crashed")
        try:
            while time.monotonic() < deadline:
                begun = ours.recv()
                if not ours.poll(SECONDS_A_TRIAL):
                    yield replace(begun, verdict="hung")
                    break
                yield ours.recv()
        except EOFError:
            worker.join()
            yield replace(begun, detail=f"exit code {worker.exitcode}")
        finally:
            worker.kill()
            worker.join()
            ours.close()
        first = begun.trial + 1


def main() -> None:
    """Run the net."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--record", type=Path, default=Path("op_net.jsonl"))
    parser.add_argument("--only", nargs="*", default=[], help="ops whose names have these words")
    parser.add_argument("--kind", choices=("random", "candidates", "planned"), default="random")
    chosen = parser.parse_args()
    names = [c.name for c in CASES if not chosen.only or any(w in c.name for w in chosen.only)]
    first = 0
    if chosen.record.exists():
        first = 1 + max(json.loads(line)["trial"] for line in chosen.record.open())
    counts: Counter[str] = Counter()
    deadline = time.monotonic() + chosen.minutes * 60
    run = {"commit": provenance()["commit"], "kind": chosen.kind}
    with chosen.record.open("a") as record:
        for outcome in trials(first, chosen.seed, names, deadline, chosen.kind):
            counts[outcome.verdict] += 1
            record.write(json.dumps(run | asdict(outcome)) + "\n")
            record.flush()
            if outcome.verdict != "equal":
                print(f"{outcome.trial} {outcome.case}: {outcome.verdict}, {outcome.detail}")
                print(f"    {outcome.layouts}", flush=True)
    print(f"{len(names)} ops, " + ", ".join(f"{n} {verdict}" for verdict, n in counts.items()))


if __name__ == "__main__":
    main()
