"""The page of predicted and compiled figures: summary, misses, every plan, and a scatter plot."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from statistics import median
from typing import Any

from experiments.compiled_point import TIGHT
from experiments.compiled_summary import (
    BYTES_BANDS,
    MEMORY_BANDS,
    SECONDS_BANDS,
    Row,
    best_against_best,
    counted,
    difference,
    geometric_mean,
    misses,
    optimized_over_hand,
    optimized_over_written,
    rank_correlations,
    share_too_low,
    share_within,
)
from experiments.results_table import markdown_table

_REASONS = (
    "What is known of the reasons:"
    " [known faults of the model]"
    "(../../docs/explanation/what-the-compiler-does.md#known-faults-of-the-model)."
)
_BY_HAND = (
    "A plan by hand is shardings of arguments and results, as `baseline_specs` writes them."
    " *As written* it is what people have: these shardings in `jax.jit`, and either nothing else or"
    " activations pinned to the batch, for FSDP also weights made whole before a loop that reads"
    " them in every run (`experiments/workloads/pinning.py`); the compiler's partitioner makes the"
    " rest. *Planned between* is harder to beat: what lies between its arguments and results is"
    " planned as in ours. All are compiled without windowed einsums. GPUs are left out: their"
    " compiler estimates no time.\n"
)
_MAX_OPS = 3
_ESTIMATES = {
    "compiled_seconds": "nothing overlapped",
    "overlapped_seconds": "overlapped",
    "at_memory_speed_seconds": "element-wise work at memory speed, nothing overlapped",
}


def page_text(rows: Sequence[Row], figure: Path | None) -> str:
    """The page below its title."""
    done = [row for row in rows if "compiled_bytes" in row]
    failed = [row for row in rows if "compiled_bytes" not in row]
    parts = [_summary(done, len(failed))]
    if figure is not None:
        parts.append(f"![Predicted and compiled]({figure.name})\n")
    parts.append(f"## Misses\n\n{_REASONS}\n\n{_misses(done)}")
    if failed:
        parts.append(
            "## Not compiled\n\n"
            + markdown_table([{**_setting(row), "what": row["status"]} for row in failed])
        )
    parts.append("## Best plans\n\n" + _best(done))
    tight = [row for row in done if row["plan"] == TIGHT]
    if tight:
        parts.append("## Within 1.1 times the least memory\n\n" + _fitting(tight))
    parts.append("## All plans\n\n" + markdown_table([_figures(row) for row in done]))
    written = [_as_written(row, way) for row in done for way in row.get("as_written", ())]
    if written:
        parts.append("## Plans by hand as written\n\n" + markdown_table(written))
    return "\n".join(parts)


def _measured_at(row: Mapping[str, Any]) -> str:
    return f"{row['commit']} for {row['chip']}"


def _summary(rows: Sequence[Row], num_failed: int) -> str:
    lines = [
        f"{len(rows)} plans compiled, {num_failed} not. Figures are per device and step; predicted"
        " over compiled, less one. Seconds compiled: the compiler's cycles over the clock, and the"
        " compiled collectives on the links as the cost model prices them. The compiler takes"
        " element-wise work for two to four times what device memory needs; *at memory speed* it"
        " counts as what memory needs. Of gathers, scatters and sorts it estimates nothing: these"
        " count with the bytes that they move in the compiled layouts, as they do in plans. What is"
        " compiled with collectives beside the computing is held against what the plan says of"
        " that.\n",
        "Measured at: " + ", ".join(dict.fromkeys(map(_measured_at, rows))) + ".\n",
    ]
    bands = (("bytes", BYTES_BANDS), ("memory", MEMORY_BANDS), ("seconds", SECONDS_BANDS))
    table = [
        {"": f"{what} within {100 * band:.0f} %", **_by_chip(rows, share_within, what, band)}
        for what, of in bands
        for band in of
    ]
    table.append({"": "memory more than 10 % too low", **_by_chip(rows, share_too_low, "memory")})
    lines.append(markdown_table(table))
    ranks = rank_correlations(rows, "compiled_seconds", across_meshes=False).values()
    if ranks:
        lines.append(
            "Rank correlation of predicted and compiled step times within a model, a chip and a"
            f" mesh, nothing overlapped: median {median(ranks):.3f}, least {min(ranks):.3f}, over"
            f" {len(ranks)}.\n"
        )
    lines += ["Spearman's rank correlation of predicted and compiled step times:\n", _ranks(rows)]
    return "\n".join(lines)


def _by_chip(
    rows: Sequence[Row], share: Callable[..., tuple[int, int]], *of: Any
) -> dict[str, str]:
    shares = {chip: counted(share(_on(rows, chip), *of)) for chip in _chips(rows)}
    return {**shares, "all": counted(share(rows, *of))}


def _ranks(rows: Sequence[Row]) -> str:
    found = {name: rank_correlations(rows, column) for column, name in _ESTIMATES.items()}
    groups = sorted(dict.fromkeys(group for of in found.values() for group in of))
    return markdown_table(
        [
            {
                "model": workload,
                "chip": chip,
                **{name: f"{of[workload, chip]:.3f}" for name, of in found.items() if of},
            }
            for workload, chip in groups
        ]
    )


def _best(rows: Sequence[Row]) -> str:
    parts = [_BY_HAND]
    for column, name in _ESTIMATES.items():
        best = best_against_best(rows, column)
        if not best:
            continue
        written = {_cell(entry): entry for entry in optimized_over_written(rows, column)}
        planned = {_cell(entry): entry for entry in optimized_over_hand(rows, column)}
        parts.append(f"### {name[0].upper()}{name[1:]}\n")
        for what, ours in (("as written", written), ("planned between", planned)):
            parts += _over_all(what, ours)
        parts.append(
            markdown_table(
                [
                    _compared(entry, written.get(_cell(entry)), planned.get(_cell(entry)))
                    for entry in best
                ]
            )
        )
    return "\n".join(parts)


def _over_all(what: str, ours: Mapping[tuple[str, str, str], Row]) -> list[str]:
    ratios = [entry["ratio"] for entry in ours.values()]
    if not ratios:
        return []
    return [
        f"Optimized over the best by hand, of plans that fit, {what}: geometric mean"
        f" {geometric_mean(ratios):.3f}, worst {max(ratios):.3f}, over {len(ratios)}.\n"
    ]


def _cell(entry: Row) -> tuple[str, str, str]:
    return entry["workload"], entry["mesh"], entry["chip"]


def _compared(best: Row, written: Row | None, planned: Row | None) -> dict[str, str]:
    return {
        **{name: best[name] for name in ("workload", "mesh", "chip")},
        "predicted best": best["predicted best"],
        "compiled best": best["compiled best"],
        "one over the other": f"{best['ratio']:.3f}",
        "best as written": written["best as written"] if written else "",
        "optimized over it": f"{written['ratio']:.3f}" if written else "",
        "best planned between": planned["best by hand"] if planned else "",
        "optimized over that": f"{planned['ratio']:.3f}" if planned else "",
    }


def _fitting(rows: Sequence[Row]) -> str:
    num_fit = sum(row["fits"] for row in rows)
    table = [
        {
            **_setting(row),
            "budget MB": f"{row['budget'] / 1e6:.1f}",
            "predicted MB": f"{row['predicted_memory'] / 1e6:.1f}",
            "compiled MB": f"{row['compiled_memory'] / 1e6:.1f}",
            "fits": "yes" if row["fits"] else "no",
        }
        for row in rows
    ]
    return f"{num_fit} of {len(rows)} fit when compiled.\n\n" + markdown_table(table)


def _misses(rows: Sequence[Row]) -> str:
    table = [
        {
            **_setting(row),
            "difference": _percent(difference(row, "bytes")),
            "collective": f"{miss['kind']} over {', '.join(miss['axes'] or ('?',))}",
            "predicted MB": f"{miss['predicted_bytes'] / 1e6:.2f}",
            "compiled MB": f"{miss['compiled_bytes'] / 1e6:.2f}",
            "planned for": "; ".join(miss["predicted_ops"][:_MAX_OPS]),
            "compiled from": "; ".join(miss["compiled_ops"][:_MAX_OPS]),
        }
        for row in misses(rows, "bytes", BYTES_BANDS[0])
        for miss in row["largest_misses"][:2]
    ]
    parts = ["Bytes beyond the band, the two largest differences of each:\n", markdown_table(table)]
    beyond = misses(rows, "memory", MEMORY_BANDS[0])
    parts += [
        "Memory beyond the band:\n",
        markdown_table(
            [
                {
                    **_setting(row),
                    "difference": _percent(difference(row, "memory")),
                    "predicted MB": f"{row['predicted_memory'] / 1e6:.1f}",
                    "compiled MB": f"{row['compiled_memory'] / 1e6:.1f}",
                    "of which arguments": f"{row['compiled_arguments'] / 1e6:.1f}",
                    "of which temporaries": f"{row['compiled_temporaries'] / 1e6:.1f}",
                }
                for row in beyond
            ]
        ),
    ]
    return "\n".join(parts)


def _setting(row: Row) -> dict[str, Any]:
    return {name: row[name] for name in ("workload", "mesh", "chip", "plan")}


def _figures(row: Row) -> dict[str, Any]:
    shown = _setting(row)
    shown["windowed"] = "yes" if row["windowed"] else "no"
    for what, scale, unit in (("bytes", 1e6, "MB"), ("memory", 1e6, "MB"), ("seconds", 1e-3, "ms")):
        if difference(row, what) is None:
            shown |= {f"{what} {unit}": "", f"{what} diff": ""}
            continue
        predicted, compiled = row[f"predicted_{what}"], row[f"compiled_{what}"]
        shown[f"{what} {unit}"] = f"{predicted / scale:.2f} / {compiled / scale:.2f}"
        shown[f"{what} diff"] = _percent(difference(row, what))
    predicted, compiled = row.get("predicted_overlapped"), row.get("overlapped_seconds")
    shown["overlapped ms"] = (
        ""
        if predicted is None or compiled is None
        else f"{predicted * 1e3:.2f} / {compiled * 1e3:.2f}"
    )
    return shown


def _as_written(row: Row, way: Row) -> dict[str, Any]:
    shown = {**_setting(row), "pinned": "yes" if way["pins"] else "no", "what": way["status"]}
    shown["fits"] = "yes" if way["fits"] else "no"
    for what, scale, unit in (
        ("compiled_bytes", 1e6, "collectives, MB"),
        ("compiled_memory", 1e6, "memory, MB"),
        ("compiled_seconds", 1e-3, "step, ms"),
        ("overlapped_seconds", 1e-3, "overlapped, ms"),
    ):
        shown[unit] = f"{way[what] / scale:.2f}" if what in way else ""
    return shown


def _percent(fraction: float | None) -> str:
    return "" if fraction is None else f"{100 * fraction:+.1f} %"


def _chips(rows: Iterable[Row]) -> list[str]:
    return sorted({row["chip"] for row in rows})


def _on(rows: Iterable[Row], chip: str) -> list[Row]:
    return [row for row in rows if row["chip"] == chip]


def write_scatter(rows: Sequence[Row], path: Path) -> Path:
    """Predicted against compiled bytes, memory and seconds; one dot a plan, bands shaded."""
    import matplotlib as mpl

    mpl.use("Agg")
    mpl.rcParams["svg.hashsalt"] = "autoshard"  # the same figures, the same file
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(1, 3, figsize=(13, 4.3))
    for plot, (what, name, band) in zip(
        axes,
        (
            ("bytes", "collective bytes", 0.05),
            ("memory", "peak memory, bytes", 0.10),
            ("seconds", "step time, s", 0.0),
        ),
        strict=True,
    ):
        for number, chip in enumerate(_chips(rows)):
            pairs = [
                (row[f"compiled_{what}"], row[f"predicted_{what}"])
                for row in _on(rows, chip)
                if row.get(f"compiled_{what}") and row.get(f"predicted_{what}")
            ]
            if pairs:
                color = f"C{number}"
                plot.scatter(*zip(*pairs, strict=True), s=14, alpha=0.7, label=chip, color=color)
        plot.set(xscale="log", yscale="log", xlabel="compiled", ylabel="predicted", title=name)
        ends = [*plot.get_xlim(), *plot.get_ylim()]
        line = (min(ends), max(ends))
        plot.plot(line, line, color="grey", linewidth=0.8)
        if band:
            plot.fill_between(
                line,
                [v * (1 - band) for v in line],
                [v * (1 + band) for v in line],
                alpha=0.15,
                color="grey",
            )
        plot.legend(fontsize=8)
    figure.tight_layout()
    figure.savefig(path, metadata={"Date": None})
    pyplot.close(figure)
    return path
