"""The page of what the soaks found, from their records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results_table import markdown_table, write_page
from tests.soak.judge import GOOD, VERDICTS
from tests.soak.stops import MOST_AFTER_SIGNAL

ASKED = "asked of a release: 5,000 programs, 60,000 files, 200 signals"

_MEANINGS = {
    "wrong": "numbers differ from the unsharded function, in float64 too",
    "crashed": "an exception that is no message, or the end of the process",
    "hung": "no answer in the time allowed",
    "refused": "a message, where nothing asked for could not be met",
    "export": "a stage that does not verify, or computes something else",
    "save": "a plan read back that is another",
    "budget": "compiled memory more than 5 % over the budget, or 15 % where the plan has a doubt",
    "bytes": "compiled collectives more than 5 % off the planned ones",
    "rounding": "numbers differ, in float64 and op by op not",
    "asked too much": "a message: pins contradict one another, or nothing fits the budget",
    "invalid": "JAX itself does not run the program",
    "equal": "nothing to say",
}


def write_report(records: Sequence[Path]) -> Path:
    """Write `experiments/results/reliability.md`; records of all soaks are told apart."""
    lines = [json.loads(line) for path in records for line in path.read_text().splitlines()]
    programs = [line for line in lines if isinstance(line, dict) and "number" in line]
    ops = [line for line in lines if isinstance(line, dict) and "trial" in line]
    files = [line for line in lines if "file" in line]
    parts = [f"What was run, beside what is {ASKED}.", *_of_programs(programs)]
    stops = [line for line in lines if isinstance(line, dict) and "stop" in line]
    parts += [*_of_ops(ops), *_of_files(files), *_of_stops(stops)]
    return write_page("reliability", "Reliability", "\n\n".join(parts) + "\n")


def _of_programs(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Whole programs"
    if not lines:
        yield "None."
        return
    by_program = defaultdict(list)
    for line in lines:
        by_program[line["seed"], line["number"]].append(line)
    last = [found[-1] for found in by_program.values()]
    counts = Counter(line["verdict"] for line in last)
    commits = Counter(line["commit"] for line in last)
    told = ", ".join(f"{count} at {commit}" for commit, count in commits.items())
    yield f"{len(last)} programs, {sum(map(_is_good, last))} of them good; {told}."
    yield markdown_table(
        [
            {"ended": word, "programs": counts[word], "meaning": _MEANINGS[word]}
            for word in VERDICTS
            if counts[word]
        ]
    ).strip()
    yield _shares([line["facts"] for line in last])
    if bad := [line for line in last if not _is_good(line)]:
        yield markdown_table(list(map(_told, bad))).strip()
    mended = [found[0] for found in by_program.values() if _is_good(found[-1]) > _is_good(found[0])]
    if mended:
        yield "Mended since they were found:"
        yield markdown_table(list(map(_told, mended))).strip()


def _is_good(line: Mapping[str, Any]) -> bool:
    return line["verdict"] in GOOD


def _told(line: Mapping[str, Any]) -> Mapping[str, Any]:
    """A row on a program that did not end well: its number and what was said last."""
    said = (line["detail"].strip().splitlines() or [""])[-1].replace("|", "/")
    told = line["key"] or said
    return {
        "number": line["number"],
        "commit": line["commit"],
        "ended": line["verdict"],
        "told": told[:120],
    }


def _shares(facts: Iterable[Mapping[str, Any]]) -> str:
    """How many plans for CPUs have the bytes and keep the budgets."""
    known = [each for each in facts if "planned_bytes" in each]
    near = [each for each in known if _is_near(each["planned_bytes"], each["compiled_bytes"])]
    limited = [each for each in known if "budget" in each]
    kept = [each for each in limited if each["compiled_peak"] <= 1.05 * each["budget"]]
    told = [each for each in limited if each not in kept and each.get("is_doubted")]
    return (
        f"Planned for CPUs: {len(known)}, bytes within 5 % on {len(near)};"
        f" with a budget {len(limited)}, within 5 % of it as compiled {len(kept)}, and of the"
        f" others {len(told)} plans say that they may not be."
    )


def _is_near(a: float, b: float) -> bool:
    low, high = sorted((a, b))
    return high <= 1.05 * low


def _of_ops(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Single ops under random shardings"
    counts = Counter(line["verdict"] for line in lines)
    names = {line["case"] for line in lines}
    told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
    yield f"{len(lines)} trials of {len(names)} ops: {told}." if lines else "None."


def _of_files(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Damaged files"
    last = {(line["format"], line["file"]): line for line in lines}
    found = {(line["format"], line["file"]) for line in lines if line["problems"]}
    bad = {case for case in found if last[case]["problems"]}
    if not lines:
        yield "None."
        return
    counts = Counter(name for name, _ in last)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    yield (
        f"{len(last)} files ({told}), {len(bad)} with problems;"
        f" {len(found) - len(bad)} had problems that are mended."
    )


def _of_stops(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    yield "## Signals, deadlines, plans made twice"
    kinds = {"signal": "signals", "deadline": "deadlines", "twice": "plans made twice"}
    for kind, name in kinds.items():
        found = [line for line in lines if line["stop"] == kind]
        bad = [line for line in found if line["problems"]]
        late = [line["late"] for line in found if "late" in line]
        worst = f", the latest by {max(late):.1f} s" if late else ""
        waited = [line["waited"] for line in found if "waited" in line]
        if waited:
            quick = sum(seconds <= MOST_AFTER_SIGNAL for seconds in waited)
            worst += (
                f"; by the clock {quick} ended within {MOST_AFTER_SIGNAL:.0f} s, the last after"
                f" {max(waited):.1f} s"
            )
        if kind == "deadline" and late:
            cut = [min(line["late"], line["could_be_cut"]) for line in found]
            worst += f" ({max(cut):.1f} s of what a limit can cut short)"
        loads = [line["load"] for line in found if "load" in line]
        if loads:
            worst += (
                f"; {min(loads):.1f} to {max(loads):.1f} processes wanted a processor meanwhile"
            )
        yield f"{len(found)} {name}, {len(bad)} with problems{worst}." if found else f"No {name}."
