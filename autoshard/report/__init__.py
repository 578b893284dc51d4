"""What a plan says, for people: facts first, then text."""

from autoshard.report.facts import ReportFacts, gather_facts
from autoshard.report.text import format_report, print_report

__all__ = [
    "ReportFacts",
    "format_report",
    "gather_facts",
    "print_report",
]
