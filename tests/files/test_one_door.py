"""Every file that the packages read or write goes through `files.py`."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

ALLOWED = {
    # The folder is private to a process and its child; the child imports nothing of the package.
    "autoshard/aot/child.py": 5,
    "autoshard/aot/compile_process.py": 6,
    # What the system tells of this process, and a file of the package.
    "autoshard/commands/command.py": 2,
    "autoshard/report/page.py": 1,
    "solvers/formats/json_file.py": 3,
}

DOORS = {"read_text", "write_text", "read_bytes", "write_bytes", "mkstemp", "NamedTemporaryFile"}


def test_no_module_but_files_opens_a_file() -> None:
    found: dict[str, int] = {}
    for package in ("autoshard", "cost_models", "solvers"):
        for path in sorted((ROOT / package).rglob("*.py")):
            if path.name != "files.py" and (count := sum(1 for _ in _opened(path))):
                found[path.relative_to(ROOT).as_posix()] = count
    assert found == ALLOWED


def _opened(path: Path) -> Iterator[ast.Call]:
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        called = node.func
        is_open = isinstance(called, ast.Name) and called.id == "open"
        is_door = isinstance(called, ast.Attribute) and called.attr in DOORS
        is_path_open = (
            isinstance(called, ast.Attribute) and called.attr == "open" and _has_mode(node)
        )
        if is_open or is_door or is_path_open:
            yield node


def _has_mode(node: ast.Call) -> bool:
    given = [*node.args[:1], *(keyword.value for keyword in node.keywords)]
    return any(isinstance(one, ast.Constant) and isinstance(one.value, str) for one in given)


def test_a_process_that_runs_a_module_takes_none_from_the_current_folder() -> None:
    started = [
        node
        for package in ("autoshard", "cost_models", "solvers")
        for path in sorted((ROOT / package).rglob("*.py"))
        for node in ast.walk(ast.parse(path.read_text()))
        if isinstance(node, ast.List)
        and node.elts
        and ast.unparse(node.elts[0]) == "sys.executable"
    ]
    assert [ast.unparse(node.elts[1]) for node in started] == ["'-P'"] * 4
