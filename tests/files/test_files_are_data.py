"""No file that is read can make code run."""

from __future__ import annotations

import ast
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

RUNS_CODE = {
    "eval",
    "exec",
    "compile",
    "import_module",
    "__import__",
    "pickle.load",
    "pickle.loads",
    "marshal.loads",
    "yaml.load",
    "yaml.compose",
}
ALLOWED = {
    # What the user names on the command line, and the package's own modules by name.
    ("autoshard/__init__.py", "importlib.import_module"),
    ("autoshard/cli.py", "importlib.import_module"),
    ("autoshard/commands/targets.py", "importlib.import_module"),
    # With loaders that make plain values only.
    ("autoshard/backends/chip_data.py", "yaml.load"),
    ("autoshard/constraints/constraints_file.py", "yaml.compose"),
    ("autoshard/refine/corrections_file.py", "yaml.load"),
    ("cost_models/hardware_file.py", "yaml.load"),
    # Between a process and the child it started, through pipes that nobody else has.
    ("solvers/own_process.py", "pickle.load"),
    ("solvers/worker.py", "pickle.load"),
}


def test_only_what_the_user_names_is_imported_and_nothing_read_is_unpickled() -> None:
    found = set()
    for package in ("autoshard", "cost_models", "solvers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            for node in ast.walk(ast.parse(path.read_text())):
                if not isinstance(node, ast.Call):
                    continue
                called = ast.unparse(node.func)
                if called in RUNS_CODE or called.endswith((".import_module", ".unpickle")):
                    found.add((path.relative_to(ROOT).as_posix(), called))
                    if called.startswith("yaml."):
                        assert "Loader=" in ast.unparse(node)
    assert found == ALLOWED
