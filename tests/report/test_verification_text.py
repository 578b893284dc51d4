"""A verification as text: both figures side by side, and what failed."""

from __future__ import annotations

from typing import Any

import pytest

from autoshard.report.verification_text import format_verification, signed_percent
from autoshard.verification.collective_comparison import CollectiveRow
from autoshard.verification.verification import FailedCompile, MemoryCheck, TimeCheck, Verification


def row(kind: str, predicted: float, compiled: float, *forms: str) -> CollectiveRow:
    return CollectiveRow(
        kind=kind,
        axes=("model",),
        group_size=4,
        predicted_count=1.0 if predicted else 0.0,
        compiled_count=2.0 if compiled else 0.0,
        predicted_bytes=predicted,
        compiled_bytes=compiled,
        predicted_ops=(),
        compiled_ops=(),
        forms=forms,
    )


def verification(**fields: Any) -> Verification:
    known: dict[str, Any] = {
        "function": "step",
        "mesh": '<["data"=2, "model"=4]>',
        "topology": "v5e:2x4",
        "device_kind": "TPU v5 lite",
        "versions": {},
        "status": "compiled",
        "windowed_einsum": True,
        "compiler_options": {},
        "collectives": (
            row("all-gather", 4e6, 0.0),
            row("collective-permute", 0.0, 5e6, "windowed einsum"),
            row("all-reduce", 1e6, 1e6, "at once", "asynchronous"),
        ),
        "predicted_bytes": 5e6,
        "compiled_bytes": 6e6,
        "memory": MemoryCheck(
            predicted_bytes=20_000_000,
            compiled_bytes=25_000_000,
            predicted_argument_bytes=8_000_000,
            argument_bytes=8_000_000,
            output_bytes=8_000_000,
            alias_bytes=8_000_000,
            temp_bytes=17_000_000,
            code_bytes=1_000,
        ),
        "time": TimeCheck(
            predicted_compute_seconds=1e-3,
            predicted_link_seconds=1e-3,
            predicted_overlapped_seconds=1.5e-3,
            compute_seconds=2e-3,
            at_memory_speed_seconds=1.5e-3,
            link_seconds=1e-3,
            overlapped_seconds=2.5e-3,
            cycles=3e6,
            clock_hz=1.5e9,
        ),
    }
    return Verification(**{**known, **fields})


def test_predicted_and_compiled_stand_side_by_side() -> None:
    assert format_verification(verification(notes=("a loop does not tell",)), 100) == (
        """\
step on <["data"=2, "model"=4]>, compiled for v5e:2x4 (TPU v5 lite)
compiled: the plan compiles as it is

Predicted and compiled
                              predicted   compiled   difference
  ─────────────────────────────────────────────────────────────
  bytes through collectives     5.00 MB    6.00 MB      -16.7 %
  peak memory                   20.0 MB    25.0 MB      -20.0 %
  of which arguments            8.00 MB    8.00 MB
  compute                       1.00 ms    2.00 ms      -50.0 %
  compute at memory speed       1.00 ms    1.50 ms      -33.3 %
  links                         1.00 ms    1.00 ms       +0.0 %
  step, nothing overlapped      2.00 ms    3.00 ms      -33.3 %
  step, overlapped              1.50 ms    2.50 ms      -40.0 %

Collectives  per device and step
  kind                 axes    group      predicted       compiled    difference   how it runs
  ────────────────────────────────────────────────────────────────────────────────────────────────
  all-gather           model       4   4.00 MB in 1              -     not there
  collective-permute   model       4              -   5.00 MB in 2   not planned   windowed einsum
  all-reduce           model       4   1.00 MB in 1   1.00 MB in 2        +0.0 %   asynchronous

Notes
  * a loop does not tell
"""
    )


def test_a_crash_is_told_with_what_was_written_last() -> None:
    failed = FailedCompile(
        status="crashed",
        what="its process was ended by SIGSEGV",
        last_lines=("F propagation.cc:12] Check failed",),
        num_constraints=14,
    )
    found = verification(
        status="crashed", device_kind="", memory=None, time=None, failures=(failed,)
    )
    assert format_verification(found, 100) == (
        """\
step on <["data"=2, "model"=4]>, compiled for v5e:2x4
crashed: the compiler fails even without the plan's constraints, or no set that compiles was found
within the tries allowed; try another topology or a newer compiler

Failed compiles
  with 14 constraints, crashed: its process was ended by SIGSEGV
    F propagation.cc:12] Check failed
"""
    )


def test_constraints_left_out_are_named() -> None:
    text = format_verification(
        verification(
            status="compiled with fewer constraints",
            culprits=("7.0",),
            untried=tuple(f"{n}.0" for n in range(14)),
        ),
        100,
    )
    assert "Constraints that make it fail  1\n  7.0\n" in text
    assert "Constraints left out untried  14\n" in text
    assert "11.0 and 2 more\n" in text


def test_differences_are_fractions_of_what_was_compiled() -> None:
    found = verification()
    assert found.bytes_difference == 5 / 6 - 1
    assert found.memory_difference == pytest.approx(-0.2)
    assert found.largest_difference == pytest.approx(0.2)
    assert found.time is not None
    assert (found.time.predicted_seconds, found.time.compiled_seconds) == (2e-3, 3e-3)
    assert verification(compiled_bytes=0.0).bytes_difference == float("inf")
    assert verification(predicted_bytes=0.0, compiled_bytes=0.0).bytes_difference == 0.0
    assert verification(memory=None).memory_difference == 0.0
    assert signed_percent(float("inf")) == "not there"
