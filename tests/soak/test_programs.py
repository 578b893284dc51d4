"""A minute of the soak of whole programs, and that it holds what it should."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import jax
import numpy as np
import pytest

from tests.soak.__main__ import module_text, run
from tests.soak.generate import program_of
from tests.soak.judge import Outcome, _alone, _differing, _of_stage, judge
from tests.soak.minimise import minimal
from tests.soak.program import Asked, Body, Program, Step, Type
from tests.soak.worker import Worker

VECTOR = Type((8,), "float32")
ROOT = Path(__file__).resolve().parents[2]


def chain(*texts: str) -> Program:
    """A program of steps that each read the one before."""
    steps = tuple(
        Step(f"v{place}", text.format(x=f"v{place - 1}"), (f"v{place - 1}",), VECTOR)
        for place, text in enumerate(texts, start=1)
    )
    main = Body("main", (("v0", VECTOR),), steps, (f"v{len(texts)}",))
    return Program(main, Asked(mesh=(8,)))


def test_a_number_makes_one_program_and_its_text_is_read_back() -> None:
    for number in range(20):
        program = program_of(number)
        assert program == program_of(number)
        assert Program.from_json(program.to_json()) == program


@pytest.mark.parametrize("number", range(8))
def test_a_plan_of_a_generated_program_keeps_what_it_says(number: int) -> None:
    outcome = judge(program_of(number))
    assert outcome.is_good, outcome.detail


def test_a_program_that_xla_miscompiles_for_one_device_is_no_fault_of_its_plan() -> None:
    """jaxlib 0.10.2: numbers of the program alone were 18 off."""
    kind = Type((8, 32, 16), "float32")
    summed = "lambda p: lax.psum(p, 'b') @ jnp.ones((16, 16), p.dtype)"
    step = Step("v1", f"mapped({summed}, P('b'), P('b'), ('b',))(v0)", ("v0",), kind)
    program = Program(Body("main", (("v0", kind),), (step,), ("v1",)), Asked(mesh=(4, 2)))
    assert judge(program).verdict == "rounding"


def test_a_loop_that_xla_miscompiles_for_one_device_is_no_fault_of_its_plan() -> None:
    """jaxlib 0.10.2: sums of 4,096 floats leave out that they were rounded to int8."""
    kind = Type((1024, 4), "float32")
    summed = "jnp.sum(({x} * 3).astype(t.int8).astype(t.float32)) / 64"
    held = summed.format(x="held(s, ('a',), None)")
    step = Step("v1", f"lax.fori_loop(0, 2, lambda i, s: s + {held}, v0)", ("v0",), kind)
    program = Program(Body("main", (("v0", kind),), (step,), ("v1",)), Asked(mesh=(8,)))
    assert judge(program).verdict == "rounding"


@pytest.mark.parametrize(("most_bytes", "verdict"), [(4, "rounding"), (8, "export")])
def test_a_stage_that_is_right_in_float64_differs_by_rounding(
    most_bytes: int, verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def off(*arguments: Any) -> list[Any]:
        made = _of_stage(*arguments)
        return [one + 1 if one.dtype.itemsize <= most_bytes else one for one in made]

    monkeypatch.setattr("tests.soak.judge._of_stage", off)
    assert judge(chain("jnp.sin({x})")).verdict == verdict


def test_an_empty_result_that_jax_cannot_read_is_no_fault_of_its_plan() -> None:
    """jaxlib 0.10.2 returns it whole, whatever its sharding says."""
    kind = Type((0, 8), "float32")
    step = Step("v1", "v0 * 2.0", ("v0",), kind)
    asked = Asked(mesh=(2, 4), arguments=(((), ("a",)),), results=(None,), donated=(0,))
    program = Program(Body("main", (("v0", kind),), (step,), ("v1",)), asked)
    assert judge(program).verdict == "invalid"


def test_a_function_runs_op_by_op_on_arrays_that_it_updates() -> None:
    program = chain("{x}.at[0].set(1.0)")
    with jax.enable_x64(True):
        (made,) = _alone(program, is_wide=True, is_compiled=False)
    assert made.dtype == np.float64
    assert made[0] == 1.0


def test_numbers_are_compared_to_the_precision_of_their_type() -> None:
    exact = np.ones(4, np.float32)
    assert _differing([exact + np.float32(1e-5)], [exact]) == ""
    assert _differing([exact + np.float32(1e-2)], [exact]) == "4 of 4"
    assert _differing([exact.astype(np.float64) + 1e-5], [exact.astype(np.float64)]) == "4 of 4"
    assert _differing([exact[:2]], [exact]) == "shapes [(2,)] for [(4,)]"


def test_a_program_is_made_as_small_as_it_stays_bad() -> None:
    program = chain("jnp.sin({x})", "jnp.sort({x})", "jnp.cos({x})", "jnp.tanh({x})")
    small = minimal(program, lambda one: "sort" in one.source, 40)
    assert small.source == "def main(v1):\n    v2 = jnp.sort(v1)\n    return v2"


def test_a_process_that_ends_costs_one_program() -> None:
    with Worker() as worker:
        ended = worker.judge(chain("__import__('os').abort()"))
        assert (ended.verdict, ended.key) == ("crashed", "exit code -6")
        assert worker.judge(chain("jnp.sin({x})")).verdict == "equal"


def test_a_process_that_does_not_answer_is_told_as_hung() -> None:
    with Worker(seconds=20.0) as worker:
        found = worker.judge(chain("__import__('time').sleep(60) or {x}"))
    assert found.verdict == "hung"


def test_a_run_goes_on_where_its_record_ends(tmp_path: Path) -> None:
    record, failures = tmp_path / "soak.jsonl", tmp_path / "failures"
    deadline = time.monotonic() + 600
    assert run(range(1), 0, deadline, record, failures).total() == 1
    assert run(range(1), 0, deadline, record, failures).total() == 0
    (line,) = map(json.loads, record.read_text().splitlines())
    assert (line["seed"], line["number"]) == (0, 0)


def test_what_ended_badly_at_another_commit_is_run_again_first(tmp_path: Path) -> None:
    record = tmp_path / "soak.jsonl"
    ended = {"seed": 0, "key": "", "detail": "", "facts": {}}
    bad = {"commit": "another", "number": 3, "verdict": "wrong", **ended}
    good = {"commit": "another", "number": 2, "verdict": "equal", **ended}
    record.write_text(f"{json.dumps(bad)}\n{json.dumps(good)}\n")
    deadline = time.monotonic() + 600
    counts = run((2, 0), 0, deadline, record, tmp_path, num_workers=2, is_again=True)
    assert counts == {"equal": 2}
    numbers = [json.loads(line)["number"] for line in record.read_text().splitlines()]
    assert numbers[:2] == [3, 2]
    assert sorted(numbers[2:]) == [0, 3]


def test_a_failure_is_written_as_a_test_that_fails(tmp_path: Path) -> None:
    program = chain("jnp.sin({x}) + undefined")
    found = Outcome("crashed", "NameError: undefined")
    path = tmp_path / "test_it.py"
    path.write_text(module_text(program, found, 3, 1).replace("is_good", 'verdict == "equal"'))
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", str(path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 1, done.stdout
    assert "undefined" in done.stdout


DIGESTS = """
from tests.soak.generate import program_of
from tests.soak.judge import _Trial, planned
for number in (0, 3):
    trial = _Trial(program_of(number))
    trial._save(planned(trial.program))
    print(trial.facts["digest"])
"""


def test_plans_are_the_same_under_another_hash_seed() -> None:
    found = set()
    for seed in ("1", "2"):
        settings = {
            **os.environ,
            "PYTHONHASHSEED": seed,
            "JAX_PLATFORMS": "cpu",
        }
        command = [sys.executable, "-W", "ignore", "-c", DIGESTS]
        done = subprocess.run(
            command, cwd=ROOT, env=settings, capture_output=True, text=True, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        found.add(done.stdout)
    assert len(found) == 1
