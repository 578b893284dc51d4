"""Shell completion, in the shells themselves: those that are not here are skipped."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

COMPLETE = {
    "bash": """
eval "$(_AUTOSHARD_COMPLETE=bash_source autoshard)"
COMP_WORDS=({words} "{last}") COMP_CWORD={index}
_autoshard_completion autoshard
printf '%s\\n' "${{COMPREPLY[@]}}"
""",
    "zsh": """
compdef() {{ : }}
compadd() {{ print -l -- "${{(@P)5}}" }}
_describe() {{ print -l -- "${{(@)${{(@P)3}}%%:*}}" }}
eval "$(_AUTOSHARD_COMPLETE=zsh_source autoshard)"
words=({words} "{last}") CURRENT={place}
_autoshard_completion
""",
    "fish": """
_AUTOSHARD_COMPLETE=fish_source autoshard | source
complete -C '{line}'
""",
}
"""How each shell is made to complete a line, as a key would."""


@pytest.fixture
def path(tmp_path: Path) -> str:
    """A search path with `autoshard` on it, as an installed package has it."""
    script = tmp_path / "autoshard"
    script.write_text(
        f"#!{sys.executable}\nfrom autoshard.cli import main\nmain(prog_name='autoshard')\n"
    )
    script.chmod(0o755)
    return f"{tmp_path}{os.pathsep}{os.environ['PATH']}"


def completions(shell: str, path: str, line: str) -> set[str]:
    words = line.split(" ")
    script = COMPLETE[shell].format(
        words=" ".join(words[:-1]),
        last=words[-1],
        index=len(words) - 1,
        place=len(words),
        line=line,
    )
    done = subprocess.run(
        [shell, "-c", script],
        env={**os.environ, "PATH": path, "PYTHONPATH": os.pathsep.join(p for p in sys.path if p)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return {found.split("\t")[0] for found in done.stdout.splitlines()}


@pytest.mark.parametrize("shell", COMPLETE)
@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("autoshard re", {"report"}),
        ("autoshard report --fail", {"--fail-above"}),
        ("autoshard plan train:step --overlap n", {"none"}),
    ],
    ids=["commands", "options", "values"],
)
def test_a_shell_completes(shell: str, path: str, line: str, expected: set[str]) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"there is no {shell}")
    assert expected <= completions(shell, path, line)
