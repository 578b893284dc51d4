"""The pages on machines name every argument, option and field of a calibration."""

from __future__ import annotations

import dataclasses
import inspect

import autoshard
from autoshard.cli import main
from cost_models import Measured, load_hardware
from tests.docs.pages import ROOT
from tests.docs.test_reference import PLAN, REFERENCE, names_in, rows_of

HARDWARE = (REFERENCE / "hardware.md").read_text(encoding="utf-8")


def test_every_argument_of_calibrate_is_documented_with_its_default() -> None:
    rows = rows_of(PLAN, "`autoshard.calibrate`")
    parameters = inspect.signature(autoshard.calibrate).parameters
    assert [name for cell in rows for name in names_in(cell)] == list(parameters)
    for name, parameter in parameters.items():
        assert rows[f"`{name}`"].partition(" | ")[0] == f"`{parameter.default!r}`"


def test_every_field_of_what_was_measured_is_documented() -> None:
    documented = {
        name for cell in rows_of(HARDWARE, "Measured machines") for name in names_in(cell)
    }
    assert {field.name for field in dataclasses.fields(Measured)} <= documented


def test_every_option_of_the_calibrate_command_is_on_its_page() -> None:
    text = (ROOT / "docs" / "how-to" / "command-line.md").read_text(encoding="utf-8")
    _, _, section = text.partition("\n## Measure a machine\n")
    section, _, _ = section.partition("\n## ")
    options = [option for param in main.commands["calibrate"].params for option in param.opts]
    assert [o for o in options if o not in section and o not in ("--debug", "--help")] == []


def test_the_calibration_among_the_results_can_be_read_and_names_no_host() -> None:
    machine = load_hardware(ROOT / "experiments" / "results" / "calibration_cpu.yaml")
    assert machine.measured is not None
    assert machine.measured.collectives
    assert machine.measured.host == "Linux x86_64, 2 cores"
