"""The page of what the soaks found, from their records."""

from __future__ import annotations

import json
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from experiments.results_table import RESULTS, markdown_table, write_page
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
    """Write `experiments/results/reliability.md` from records of soaks, which are told apart.

    Programs of each record have a section of their own. Sections of which there is no record stay
    as they are on the page.
    """
    page = RESULTS / "reliability.md"
    sections = sections_of(page.read_text()) if page.exists() else {}
    found: dict[str, list[Mapping[str, Any]]] = defaultdict(list)
    for path in records:
        lines = [json.loads(line) for line in path.read_text().splitlines()]
        first = min((line["number"] for line in lines if "number" in line), default=0)
        for line in lines:
            found[_title(line, first)].append(line)
    for title, told in found.items():
        sections[title] = "\n\n".join(_SECTIONS[_kind(told[0])][1](told))
    parts = [f"What was run, beside what is {ASKED}."]
    for title in sorted(sections, key=_place):
        parts += [f"## {title}", sections[title]]
    return write_page("reliability", "Reliability", "\n\n".join(parts) + "\n")


def _place(title: str) -> int:
    """Of a section on the page: programs come first, sections of no kind last."""
    known = (at for at, (kind, _) in enumerate(_SECTIONS.values()) if title.startswith(kind))
    return next(known, len(_SECTIONS))


def _kind(line: Mapping[str, Any]) -> str:
    """The kind of record that a line is of, as a key of `_SECTIONS`."""
    key = next(key for key in ("trial", "file", "stop", "number") if key in line)
    return str(line["stop"]) if key == "stop" else key


def _title(line: Mapping[str, Any], first: int) -> str:
    """The section of a line; that of programs names the first of their record."""
    kind = _kind(line)
    return f"{_SECTIONS[kind][0]} from {first}" if kind == "number" else _SECTIONS[kind][0]


def sections_of(page: str) -> dict[str, str]:
    """The text of each section of a page, by its heading."""
    _, *sections = page.split("\n## ")
    pairs = (section.partition("\n") for section in sections)
    return {title: text.strip() for title, _, text in pairs}


def _commits(lines: Iterable[Mapping[str, Any]]) -> str:
    counts = Counter(line["commit"] for line in lines)
    return ", ".join(f"{count} at {commit}" for commit, count in counts.items())


def _of_programs(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    by_program = defaultdict(list)
    for line in lines:
        by_program[line["seed"], line["number"]].append(line)
    last = [found[-1] for found in by_program.values()]
    counts = Counter(line["verdict"] for line in last)
    yield f"{len(last)} programs, {sum(map(_is_good, last))} of them good; {_commits(last)}."
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
    for kind, title in _KINDS_OF_TRIALS.items():
        trials = [line for line in lines if line["kind"] == kind]
        if not trials:
            continue
        counts = Counter(line["verdict"] for line in trials)
        names = {line["case"] for line in trials}
        told = ", ".join(f"{count} {word}" for word, count in sorted(counts.items()))
        yield f"{title}: {len(trials)} trials of {len(names)} ops: {told}; {_commits(trials)}."


_KINDS_OF_TRIALS = {
    "random": "XLA's partitioner by itself, under random constraints",
    "candidates": "Candidates that plans are offered",
    "planned": "Plans under random pins",
}


def _of_files(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    last = {(line["format"], line["file"]): line for line in lines}
    found = {(line["format"], line["file"]) for line in lines if line["problems"]}
    bad = {case for case in found if last[case]["problems"]}
    counts = Counter(name for name, _ in last)
    told = ", ".join(f"{count} {name}" for name, count in counts.items())
    yield (
        f"{len(last)} files ({told}), {len(bad)} with problems;"
        f" {len(found) - len(bad)} had problems that are mended; {_commits(last.values())}."
    )


def _of_stops(lines: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    bad = [line for line in lines if line["problems"]]
    late = [line["late"] for line in lines if "late" in line]
    told = [f"{len(lines)} cases, {len(bad)} with problems"]
    if late:
        told.append(f"the latest by {max(late):.1f} s")
    if waited := [line["waited"] for line in lines if "waited" in line]:
        quick = sum(seconds <= MOST_AFTER_SIGNAL for seconds in waited)
        told.append(
            f"by the clock {quick} ended within {MOST_AFTER_SIGNAL:.0f} s, the last after"
            f" {max(waited):.1f} s"
        )
    if cut := [min(line["late"], line["could_be_cut"]) for line in lines if "could_be_cut" in line]:
        told.append(f"by {max(cut):.1f} s of what a limit can cut short")
    if loads := [line["load"] for line in lines if "load" in line]:
        told.append(f"{min(loads):.1f} to {max(loads):.1f} processes wanted a processor meanwhile")
    yield "; ".join([*told, _commits(lines)]) + "."
    if bad:
        rows = [
            {"case": line["case"], "command": " ".join(line["words"]), "told": line["problems"][0]}
            for line in bad
        ]
        yield markdown_table(rows).strip()


_SECTIONS: Mapping[str, tuple[str, Callable[[Sequence[Mapping[str, Any]]], Iterator[str]]]] = {
    "number": ("Whole programs", _of_programs),
    "trial": ("Single ops under random shardings", _of_ops),
    "file": ("Damaged files", _of_files),
    "signal": ("Signals", _of_stops),
    "deadline": ("Deadlines", _of_stops),
    "twice": ("Plans made twice", _of_stops),
}
"""By kind of record, its section and what tells of it."""
