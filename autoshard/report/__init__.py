"""What a plan says, for people: facts first, then text."""

from autoshard.report.diff_text import format_diff, print_diff
from autoshard.report.facts import ReportFacts, gather_facts
from autoshard.report.program_text import format_program
from autoshard.report.text import format_report, print_report

__all__ = [
    "ReportFacts",
    "format_diff",
    "format_program",
    "format_report",
    "gather_facts",
    "print_diff",
    "print_report",
]
