"""What a plan says, for people and for machines: facts first, then text, a page, JSON."""

from autoshard.report.diff_text import format_diff, print_diff
from autoshard.report.facts import ReportFacts, gather_facts
from autoshard.report.page import Against, format_frame, format_page, write_page
from autoshard.report.program_text import format_program
from autoshard.report.report_json import format_report_json
from autoshard.report.text import format_brief, format_report, print_report

__all__ = [
    "Against",
    "ReportFacts",
    "format_brief",
    "format_diff",
    "format_frame",
    "format_page",
    "format_program",
    "format_report",
    "format_report_json",
    "gather_facts",
    "print_diff",
    "print_report",
    "write_page",
]
