"""Signals, deadlines and plans made twice: `python -m tests.soak.stops --kind signal --count 200`.

Each case is a command of its own, of a model or a problem instance in turn (those in the folder of
`--instances` too), and a line of the record; what is on record is not run again.

* `signal`: SIGINT or SIGTERM after a random time of a processor; the command ends within 2 s.
* `deadline`: a limit of 1, 3, 10 or 30 s, of a command and of a call of `optimize` in turn; it ends
  within a second more, or 5 %, where what every plan needs ends by then, and has an answer.
* `twice`: a plan made under two hash seeds, the second time beside processes that take every core;
  the two are equal but for the seconds they took, or say by what a clock cut them.

How late a command is after a deadline can be told on a machine of which nothing else takes the
processors: the record has how many processes wanted one. After a signal, the lesser counts of the
seconds of the clock and those that the command had a processor.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from itertools import product
from pathlib import Path
from random import Random
from typing import Any

from autoshard.plans.plan_json import load_plan_data
from experiments.results_table import provenance
from solvers.formats import write_problem
from tests.cli.started import RUN, started
from tests.cli.test_solve import hard_problem

KINDS = ("signal", "deadline", "twice")
LIMITS = (1, 3, 10, 30)
Instances = Sequence[Path]
"""Files of problems."""
MODELS = ("mlp", "gpt_scan", "moe", "unet", "embedding", "gnn")
MOST_AFTER_SIGNAL = 2.0
SECONDS = 600.0
MODEL = """from experiments.workloads import get_workload

WORKLOAD = get_workload({name!r})
step = WORKLOAD.step

def autoshard_args():
    return WORKLOAD.state, WORKLOAD.batch
"""


CALL = """import sys, time
sys.path.insert(0, "")
from autoshard import optimize
import model
began = time.monotonic()
plan = optimize(
    model.step, *model.autoshard_args(), mesh="data=2,model=4", hardware="cpu-host",
    time_limit_seconds={limit}
)
plan.save("plan.json")
plan.report()
print(time.monotonic() - began)
"""
CAN_BE_CUT = ("solve", "baselines", "constraints")
"""Stages of planning that a limit cuts short."""


def plan_words(folder: Path, name: str, limit: float) -> list[str]:
    """Words of the command that plans a model."""
    (folder / "model.py").write_text(MODEL.format(name=name))
    mesh, out = ("--mesh", "data=2,model=4"), ("--out", "plan.json")
    return ["plan", "model:step", *mesh, "--time-limit", str(limit), *out]


def any_words(folder: Path, place: int, limit: float, instances: Instances) -> list[str]:
    """Words of a command: each model in turn, then an instance that no solver proves, then others.

    Args:
        folder: To run in.
        place: In that order, which goes round.
        limit: Seconds it may take.
        instances: Of problems.
    """
    place %= len(MODELS) + 1 + len(instances)
    if place < len(MODELS):
        return plan_words(folder, MODELS[place], limit)
    if place > len(MODELS):
        path = instances[place - len(MODELS) - 1]
        return ["solve", str(path), "--timeout", str(limit)]
    write_problem(hard_problem(), folder / "hard.json")
    return ["solve", "hard.json", "--timeout", str(limit)]


def signalled(number: int, folder: Path, instances: Instances = ()) -> dict[str, Any]:
    """The end of a command that gets a signal at a random moment."""
    rng = Random(number)
    sent = rng.choice([signal.SIGINT, signal.SIGTERM])
    moment = rng.uniform(0.2, 12.0)
    words = any_words(folder, number, 60, instances)
    with started(folder, *words, PYTHONHASHSEED="0") as process:
        _wait(process.pid, moment)
        process.send_signal(sent)
        began, busy = time.monotonic(), _busy_seconds(process.pid)
        _wait(process.pid)
        waited, busy = time.monotonic() - began, _busy_seconds(process.pid) - busy
        out, err = process.communicate(timeout=SECONDS)
    late = min(waited, busy)
    problems = list(_left(folder, out, err))
    codes = (0, 1, 128 + sent, -sent)  # by the signal itself: it came before anything was imported
    if process.returncode not in codes:
        problems.append(f"exit code {process.returncode}")
    if late > MOST_AFTER_SIGNAL:
        problems.append(f"ended {late:.1f} s after the signal")
    return {"words": words, "late": late, "waited": waited, "problems": problems}


def _wait(process: int, busy_seconds: float = math.inf) -> None:
    """Wait for the end of a process, or until it had a processor so long; it is not reaped."""
    ended = time.monotonic() + SECONDS
    while time.monotonic() < ended and _busy_seconds(process) < busy_seconds:
        try:
            ended_by = os.waitid(os.P_PID, process, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:  # whoever sent it a signal has seen that it was over
            return
        if ended_by is not None:
            return
        time.sleep(0.1)


def _busy_seconds(process: int) -> float:
    """Seconds that a process, those it started and those they waited for had a processor."""
    family, seconds = {process}, 0.0
    for path in sorted(Path("/proc").glob("[0-9]*/stat"), key=lambda one: int(one.parent.name)):
        try:
            fields = path.read_text().rpartition(")")[2].split()
        except OSError:  # it has ended
            continue
        if int(path.parent.name) == process or int(fields[1]) in family:
            family.add(int(path.parent.name))
            seconds += sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")
    return seconds


def _left(folder: Path, out: str, err: str) -> Iterator[str]:
    """Tracebacks, and files that are not whole."""
    if "Traceback" in out + err:
        yield f"a traceback: {err[-200:]}"
    for path in folder.iterdir():
        if path.name == "plan.json":
            load_plan_data(path)
        elif path.name not in ("model.py", "hard.json", "__pycache__"):
            yield f"left behind: {path.name}"


def limited(number: int, folder: Path, instances: Instances = ()) -> dict[str, Any]:
    """Seconds by which a command passes its limit."""
    round_ = number // (len(MODELS) + 1 + len(instances))
    limit = LIMITS[round_ % len(LIMITS)]
    words = any_words(folder, number, limit, instances)
    is_call = words[0] == "plan" and round_ // len(LIMITS) % 2 == 1
    code = CALL.format(limit=limit) if is_call else RUN
    began = time.monotonic()
    with started(folder, *words, code=code, PYTHONHASHSEED="0") as process:
        out, err = process.communicate(timeout=SECONDS)
    seconds = time.monotonic() - began
    problems = list(_left(folder, out, err))
    if process.returncode > (words[0] == "solve"):  # of which 1 says that there was no answer
        problems.append(f"exit code {process.returncode}: {err[-200:]}")
    if is_call and out:
        seconds = float(out)
    could_be_cut, plan = seconds, folder / "plan.json"
    if plan.exists():
        spent = load_plan_data(plan).stage_seconds
        could_be_cut = sum(spent.get(stage, 0.0) for stage in CAN_BE_CUT)
    late = max(0.0, seconds - limit)
    if min(late, could_be_cut) > max(1.0, 0.05 * limit):
        problems.append(f"{late:.1f} s over {limit} s")
    return {
        "words": words,
        "is_call": is_call,
        "late": late,
        "could_be_cut": could_be_cut,
        "problems": problems,
    }


def twice(number: int, folder: Path, _instances: Instances = ()) -> dict[str, Any]:
    """Differences of plans of one model that are made idle and under load."""
    words = plan_words(folder, MODELS[number % len(MODELS)], 300)
    answers = []
    for hash_seed in (1, 2):
        with ExitStack() as stack:
            if hash_seed == 2:
                for _ in range(os.cpu_count() or 1):
                    busy = subprocess.Popen([sys.executable, "-c", "while True: pass"])
                    stack.callback(busy.wait)
                    stack.callback(busy.kill)
            process = stack.enter_context(started(folder, *words, PYTHONHASHSEED=str(hash_seed)))
            process.communicate(timeout=SECONDS)
        answers.append(_decided(folder / "plan.json"))
    same = answers[0] == answers[1]
    return {"words": words, "problems": [] if same else ["the second plan is another"]}


def _decided(path: Path) -> object:
    """The decisions of a plan; None for a plan that a clock cut, which says so."""
    plan = load_plan_data(path)
    if plan.solver.status not in ("optimal", "within gap"):
        return None
    return plan.arguments, plan.results, plan.values, plan.seconds


RUNS = {"signal": signalled, "deadline": limited, "twice": twice}


def main() -> None:
    """Run the cases that are not on record."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.stops", description=__doc__)
    parser.add_argument("--kind", choices=KINDS, action="append")
    parser.add_argument("--count", type=int, default=200, help="cases of each kind")
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--workers", type=int, default=1, help="cases at a time")
    parser.add_argument("--record", type=Path, default=Path("soak-stops.jsonl"))
    parser.add_argument("--instances", type=Path, help="a folder of problem instances")
    given = parser.parse_args()
    lines = given.record.read_text().splitlines() if given.record.exists() else []
    known = {(line["stop"], line["case"]) for line in map(json.loads, lines)}
    instances = [] if given.instances is None else sorted(given.instances.resolve().glob("*.gz"))
    deadline = time.monotonic() + 3600 * given.hours
    commit = provenance()["commit"]
    cases = product(range(given.count), given.kind or KINDS)
    left = [(kind, number) for number, kind in cases if (kind, number) not in known]

    def run(kind: str, number: int) -> None:
        if time.monotonic() > deadline:
            return
        with tempfile.TemporaryDirectory() as folder:
            found = RUNS[kind](number, Path(folder), instances)
        load = os.getloadavg()[0]
        line = {"commit": commit, "stop": kind, "case": number, "load": load, **found}
        record.write(json.dumps(line) + "\n")
        record.flush()
        for problem in found["problems"]:
            print(f"{kind} {number}: {problem}", flush=True)

    with given.record.open("a") as record, ThreadPoolExecutor(given.workers) as pool:
        for done in [pool.submit(run, *case) for case in left]:
            done.result()


if __name__ == "__main__":
    main()
