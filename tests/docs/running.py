"""Running the examples of a page, in order, as a reader would."""

from __future__ import annotations

import contextlib
import doctest
import io
import shlex
import traceback
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from click.testing import CliRunner

from autoshard.cli import main
from tests.docs.pages import Block, blocks_of, page_name

_FLAGS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
_CHECKER = doctest.OutputChecker()


class ExampleError(Exception):
    """An example of a page does not run, or prints something else than the page shows."""


@dataclass(slots=True)
class PageRun:
    """Runs the blocks of one page in one namespace, in the current folder.

    * A `python` block runs as it stands, or as a doctest where it has `>>>` prompts. One that
      begins with `# name.py` is the content of that file and is written, not run.
    * A `text` block is what the block before it prints; `...` stands for anything.
    * A `console` block holds `$ autoshard ...` commands, each with what it prints, or nothing.
    * Other blocks are left alone.

    Args:
        page: Where the blocks are from.
        namespace: What they find defined.
    """

    page: Path
    namespace: dict[str, Any] = field(default_factory=lambda: {"__name__": "__main__"})
    printed: str | None = None
    num_run: int = 0

    def run(self) -> None:
        for block in blocks_of(self.page):
            self.run_block(block)

    def run_block(self, block: Block) -> None:
        if block.language == "text":
            self.compare(block.text, self.printed, block.line)
        elif block.file_name:
            Path(block.file_name).write_text(block.text, encoding="utf-8")
        elif block.language == "python" and ">>> " in block.text:
            self.run_doctest(block)
        elif block.language == "python":
            self.run_python(block)
        elif block.language == "console":
            self.run_console(block)
        else:
            return
        self.num_run += 1

    def run_python(self, block: Block) -> None:
        # Padded, so that a traceback names the line of the page.
        source = "\n" * (block.line - 1) + block.text
        stdout = io.StringIO()
        try:
            code = compile(source, self.page.name, "exec")
            with contextlib.redirect_stdout(stdout):
                exec(code, self.namespace)
        except Exception as error:
            raise self.error(block.line, f"does not run:\n{traceback.format_exc()}") from error
        self.printed = stdout.getvalue()

    def run_doctest(self, block: Block) -> None:
        name = page_name(self.page)
        examples = doctest.DocTestParser().get_doctest(
            block.text, self.namespace, name, name, block.line - 1
        )
        examples.globs = self.namespace  # the parser made a copy
        report: list[str] = []
        results = doctest.DocTestRunner(_CHECKER, optionflags=_FLAGS).run(
            examples, out=report.append, clear_globs=False
        )
        if results.failed:
            raise self.error(block.line, "".join(report))
        self.printed = None

    def run_console(self, block: Block) -> None:
        command, expected = "", ""
        for line in [*block.text.splitlines(), "$ "]:
            if not line.startswith("$ "):
                expected += f"{line}\n"
                continue
            if command:
                self.run_command(command, expected, block.line)
            command, expected = line.removeprefix("$ "), ""
        self.printed = None

    def run_command(self, command: str, expected: str, line: int) -> None:
        program, *arguments = shlex.split(command)
        if program != "autoshard":
            raise self.error(line, f"only `autoshard` can be run in a console block, not {program}")
        done = CliRunner().invoke(main, arguments)
        if done.exit_code != 0 and not expected:
            raise self.error(line, f"`{command}` ended with {done.exit_code}:\n{done.output}")
        if expected:
            self.compare(expected, done.output, line)

    def compare(self, expected: str, printed: str | None, line: int) -> None:
        if printed is None:
            raise self.error(line, "nothing before this block prints what it shows")
        if not _CHECKER.check_output(expected, printed, _FLAGS):
            shown = _CHECKER.output_difference(doctest.Example("", expected), printed, _FLAGS)
            raise self.error(line, shown)

    def error(self, line: int, what: str) -> ExampleError:
        return ExampleError(f"{page_name(self.page)}:{line}: {what}")
