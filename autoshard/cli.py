"""The `autoshard` command; what a command needs is imported when that command runs."""

from __future__ import annotations

import atexit
import gc
import importlib
from collections.abc import Iterator, MutableMapping
from importlib.metadata import version

import click

from autoshard.commands.accelerators import use_host_where_nothing_else
from autoshard.commands.signals import Commands, ended_while_importing

MODULE_BY_COMMAND = {
    "cache": "autoshard.commands.cache",
    "calibrate": "autoshard.commands.calibrate",
    "code": "autoshard.commands.code",
    "diff": "autoshard.commands.report",
    "explain": "autoshard.commands.plan",
    "export": "autoshard.commands.plan",
    "hardware": "autoshard.commands.report",
    "plan": "autoshard.commands.plan",
    "refine": "autoshard.commands.refine",
    "report": "autoshard.commands.report",
    "solve": "autoshard.commands.solve",
    "sweep": "autoshard.commands.sweep",
    "verify": "autoshard.commands.verify",
    "why": "autoshard.commands.why",
}
"""Where each command is, as `<name>_command`."""


class LazyCommands(MutableMapping[str, click.Command]):
    """Commands by name, imported when first asked for: tracing takes a second to import.

    Args:
        module_by_command: Where each command is, as `<name>_command`.
    """

    def __init__(self, module_by_command: dict[str, str]) -> None:
        self._module_by_command = dict(module_by_command)
        self._loaded: dict[str, click.Command] = {}

    def __getitem__(self, name: str) -> click.Command:
        if name not in self._loaded:
            use_host_where_nothing_else()  # JAX reads what it sets as it is imported
            with ended_while_importing():
                module = importlib.import_module(self._module_by_command[name])
            self._loaded[name] = getattr(module, f"{name}_command")
        return self._loaded[name]

    def __setitem__(self, name: str, command: click.Command) -> None:
        self._module_by_command.setdefault(name, "")
        self._loaded[name] = command

    def __delitem__(self, name: str) -> None:
        del self._module_by_command[name]
        self._loaded.pop(name, None)

    def __iter__(self) -> Iterator[str]:
        return iter(self._module_by_command)

    def __len__(self) -> int:
        return len(self._module_by_command)


@click.group(
    cls=Commands,
    commands=LazyCommands(MODULE_BY_COMMAND),
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="\b\nExample:\n  autoshard plan train:train_step --mesh data=2,model=4 --out plan.json"
    '\n\nShell completion: add `eval "$(_AUTOSHARD_COMPLETE=bash_source autoshard)"` to ~/.bashrc'
    " (zsh_source for ~/.zshrc, fish_source for fish).",
)
@click.version_option(version("autoshard"), prog_name="autoshard")
def main() -> None:
    """Plan how a JAX program is sharded over a device mesh, before the compile."""
    atexit.register(gc.freeze)  # searches for cycles as Python ends take a second, for nothing
