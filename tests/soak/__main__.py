"""The soak of whole programs: `python -m tests.soak --programs 5000 --hours 2`.

Every number is a program, planned and run in a process of its own. The record is a file of one line
a program, and a run goes on where the record ends; with `--again` it takes the programs first that
ended badly at another commit. What ends badly is made as small as it gets, and written as a test
that fails to the folder of `--failures`.
"""

from __future__ import annotations

import argparse
import json
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, replace
from functools import partial
from pathlib import Path
from typing import TextIO

from experiments.results_table import provenance
from tests.soak.generate import program_of
from tests.soak.judge import GOOD, Outcome
from tests.soak.minimise import minimal
from tests.soak.program import Program
from tests.soak.report import write_report
from tests.soak.worker import Worker

MINIMISED_A_KEY = 1
"""Failures of one kind that are made small; more of the same are on record alone."""

TEST = '''"""Found by the soak of programs, number {number} of seed {seed}: {verdict}."""

# ruff: noqa: E501

from __future__ import annotations

from tests.soak.judge import judge
from tests.soak.program import Program

# {told}
#
{source}
PROGRAM = """{record}"""


def test_program_{number}_of_seed_{seed}() -> None:
    outcome = judge(Program.from_json(PROGRAM))
    assert outcome.is_good, outcome.detail
'''


def main() -> None:
    """Run programs, or write the report of what was run."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak", description=__doc__)
    parser.add_argument("--programs", type=int, default=5000)
    parser.add_argument("--hours", type=float, default=2.0)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--first", type=int, default=0, help="number of the first program")
    parser.add_argument("--record", type=Path, default=Path("soak.jsonl"))
    parser.add_argument("--again", action="store_true", help="what ended badly, first")
    parser.add_argument("--workers", type=int, default=1, help="programs at a time")
    parser.add_argument("--tries", type=int, default=40, help="to make one failure small")
    parser.add_argument("--failures", type=Path, default=Path("soak_failures"))
    parser.add_argument(
        "--report",
        type=Path,
        nargs="+",
        metavar="RECORD",
        help="run nothing; write experiments/results/reliability.md from records of all soaks",
    )
    chosen = parser.parse_args()
    if chosen.report is not None:
        print(write_report(chosen.report))
        return
    counts = run(
        range(chosen.first, chosen.first + chosen.programs),
        chosen.seed,
        time.monotonic() + chosen.hours * 3600,
        chosen.record,
        chosen.failures,
        chosen.tries,
        num_workers=chosen.workers,
        is_again=chosen.again,
    )
    print(", ".join(f"{count} {verdict}" for verdict, count in sorted(counts.items())))


def run(
    numbers: Sequence[int],
    seed: int,
    deadline: float,
    record: Path,
    failures: Path,
    most_tries: int = 40,
    *,
    num_workers: int = 1,
    is_again: bool = False,
) -> Counter[str]:
    """Judge programs that are not on record until the deadline; how many ended how."""
    lines = list(map(json.loads, record.read_text().splitlines())) if record.exists() else []
    known = {line["number"]: line for line in lines if line["seed"] == seed}
    commit = provenance()["commit"]
    left = [number for number in numbers if number not in known]
    if is_again:
        bad = [line for line in known.values() if line["verdict"] not in GOOD]
        left[:0] = [line["number"] for line in bad if line["commit"] != commit]
    keys = Counter(f"{line['verdict']} {line['key']}" for line in lines)
    counts: Counter[str] = Counter()
    waiting = iter(left)  # of a list: threads may share it

    def work(out: TextIO) -> None:
        with Worker() as worker:
            while time.monotonic() < deadline and (number := next(waiting, None)) is not None:
                program = program_of(number, seed)
                outcome = worker.judge(program)
                counts[outcome.verdict] += 1
                line = {"commit": commit, "seed": seed, "number": number, **asdict(outcome)}
                out.write(json.dumps(line) + "\n")
                out.flush()
                if outcome.is_good:
                    continue
                key = f"{outcome.verdict} {outcome.key}"
                print(f"{number}: {key} {outcome.detail[-300:]}", flush=True)
                keys[key] += 1
                if keys[key] <= MINIMISED_A_KEY:
                    small = minimal(program, partial(_ends_like, worker, outcome), most_tries)
                    failures.mkdir(parents=True, exist_ok=True)
                    path = failures / f"test_program_{number}_of_seed_{seed}.py"
                    path.write_text(module_text(small, outcome, number, seed))

    with record.open("a") as out, ThreadPoolExecutor(num_workers) as pool:
        for done in [pool.submit(work, out) for _ in range(num_workers)]:
            done.result()
    return counts


def _ends_like(worker: Worker, outcome: Outcome, program: Program) -> bool:
    found = worker.judge(program)
    return (found.verdict, found.key) == (outcome.verdict, outcome.key)


def module_text(program: Program, outcome: Outcome, number: int, seed: int) -> str:
    """A test module of a program, which fails until its fault is mended."""
    source = "".join(f"# {line}\n" for line in program.source.splitlines())
    told = (outcome.detail.strip().splitlines() or [""])[-1][:90]
    program = replace(program, main=program.main.live())
    return TEST.format(
        number=number,
        seed=seed,
        verdict=outcome.verdict,
        told=told,
        source=source,
        record=program.to_json().replace("\\", "\\\\"),
    )


if __name__ == "__main__":
    main()
