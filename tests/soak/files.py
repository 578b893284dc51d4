"""Damaged files of every format that is read, through the command line and the functions.

`python -m tests.soak.files --count 10000 --record files.jsonl` goes through the formats in turn.
Each case is a format and a number; equal numbers make equal files. Cases run in a process that is
begun again where it crashed or hung, which costs that case only and is on record; of one case in
`FRESH_ONE_IN` every command is a process of its own. What is on record is not run
again, but for what had problems at another commit: the command goes on where it was stopped.

A case is good where every reader gives an answer or one readable error, within `MOST_SECONDS` of
the processor, and no file is left that is not whole.
"""

from __future__ import annotations

import argparse
import json
import os
import queue
import subprocess
import sys
import tempfile
import threading
import time
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import chdir
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from random import Random

from click.testing import CliRunner

import autoshard
from autoshard.aot.compile_process import CompiledAhead
from autoshard.aot.kept_compiles import read_kept, write_kept
from autoshard.cli import main as command_line
from autoshard.constraints.constraints_file import load_constraints
from autoshard.errors import AutoshardError
from autoshard.plans.plan_json import dump_plan, load_plan_data
from cost_models import CostModelError, format_hardware, get_hardware, load_hardware
from experiments.results_table import provenance
from solvers import SolverError
from solvers.formats import read_any, write_iopddl, write_problem
from tests.cli.started import started
from tests.plan.plans import gpt_plan, plan_in_rounds, plan_that_does_not_fit
from tests.soak.damage import damaged_json, damaged_module, damaged_yaml
from tests.solvers.instances import random_problem

ROOT = Path(__file__).resolve().parents[2]
A_TURN = 500
"""Cases of one format before those of the next."""
FRESH_ONE_IN = 250
MOST_SECONDS = 5.0
HANGS_AFTER_SECONDS = 30.0
MOST_LETTERS = 20_000  # of all that is told of an error

MODULE = """module @step attributes {mhlo.num_partitions = 8 : i32} {
  sdy.mesh @mesh = <["data"=2, "model"=4]>
  func.func public @main(
      %arg0: tensor<16x64xf32> {sdy.sharding = #sdy.sharding<@mesh, [{"data"}, {?}]>},
      %arg1: tensor<64x32xf32>) -> tensor<16x32xf32> {
    %0 = stablehlo.dot_general %arg0, %arg1, contracting_dims = [1] x [0]
        : (tensor<16x64xf32>, tensor<64x32xf32>) -> tensor<16x32xf32>
    %1 = sdy.sharding_constraint %0 <@mesh, [{"data"}, {"model"}]> : tensor<16x32xf32>
    %2 = stablehlo.tanh %1 : tensor<16x32xf32>
    %3 = stablehlo.add %2, %1 : tensor<16x32xf32>
    return %3 : tensor<16x32xf32>
  }
}
"""
CONSTRAINTS = """meshes:
  ring: '<["r"=8]>'
pins:
  'x': '[{"data"}, {?}]'
uses:
  - select: 'w'
    by: 'train.py:5'
    sharding: '[{}, {"model"}]'
groups:
  alike: ['x', 'result']
"""
TRAIN = """import jax
import jax.numpy as jnp

def step(x, w):
    return jnp.tanh(x @ w)

def autoshard_args():
    f32 = jnp.float32
    return jax.ShapeDtypeStruct((16, 32), f32), jax.ShapeDtypeStruct((32, 32), f32)
"""
PLANNED = ("--mesh", "data=2,model=4", "--no-baselines", "--time-limit", "1", "--out", "out.json")


@dataclass(frozen=True, slots=True)
class Format:
    """A kind of file: whole examples, how they are damaged, and who reads them.

    Args:
        suffix: Of its name.
        whole: Makes whole files.
        damage: Of the content of one.
        load: The function that reads it.
        commands: Words of the commands that read it; `{}` is the file.
    """

    suffix: str
    whole: Callable[[], list[bytes]]
    damage: Callable[[bytes, Random], bytes]
    load: Callable[[Path], object]
    commands: tuple[tuple[str, ...], ...]


def _plans() -> list[bytes]:
    made = (gpt_plan(), plan_in_rounds(), plan_that_does_not_fit())
    return [dump_plan(plan).encode() for plan in made]


def _written(write: Callable[[Path], object], suffix: str) -> bytes:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / f"file{suffix}"
        write(path)
        return path.read_bytes()


def _instances() -> list[bytes]:
    problem = random_problem(0)
    return [
        _written(partial(write, problem), suffix)
        for write in (write_iopddl, write_problem)
        for suffix in (".json", ".json.gz")
    ]


def _compiles() -> list[bytes]:
    compiled = CompiledAhead(
        text="HloModule step\n\nENTRY main {\n  ROOT p = f32[8]{0} parameter(0)\n}\n",
        memory={"argument": 32, "output": 32, "temp": 0, "alias": 0, "generated_code": 0},
        memory_report="",
        device_kind="TPU v5 lite",
        device_order="as numbered",
        versions={"jax": "0.10.2"},
        seconds=1.5,
    )
    return [_written(lambda path: write_kept(path, compiled), ".json.gz")]


def _modules() -> list[bytes]:
    from autoshard.mlir_modules import module_bytecode, module_context, parse_module

    with module_context():  # bytecode is parsed by a process of its own first: some seconds
        return [*[MODULE.encode()] * 29, module_bytecode(parse_module(MODULE))]


FORMATS = {
    "plan": Format(
        ".json",
        _plans,
        damaged_json,
        load_plan_data,
        (
            ("report", "{}"),
            ("report", "{}", "--json"),
            ("report", "{}", "--html", "out.html"),
            ("diff", "{}", "whole.json"),
            ("why", "{}", "params['w1']", "--no-replan"),
        ),
    ),
    "hardware": Format(
        ".yaml",
        lambda: [format_hardware(get_hardware(name)).encode() for name in ("tpu-v5e", "h100")],
        damaged_yaml,
        load_hardware,
        (("plan", "whole.mlir", "--hardware", "{}", *PLANNED),),
    ),
    "constraints": Format(
        ".yaml",
        lambda: [CONSTRAINTS.encode()],
        damaged_yaml,
        load_constraints,
        (("plan", "train:step", "--constraints", "{}", *PLANNED),),
    ),
    "instance": Format(
        ".json", _instances, damaged_json, read_any, (("solve", "{}", "--timeout", "1"),)
    ),
    "compile": Format(".json.gz", _compiles, damaged_json, read_kept, ()),
    "module": Format(
        ".mlir",
        _modules,
        damaged_module,
        lambda path: autoshard.optimize_module(
            path,
            mesh="data=2,model=4",
            hardware="cpu-host",
            baselines=False,
            time_limit_seconds=1,
        ),
        (("plan", "{}", *PLANNED),),
    ),
}
_REFUSALS = (AutoshardError, CostModelError, SolverError, OSError)


@cache
def _whole(name: str) -> list[bytes]:
    return FORMATS[name].whole()


def write_case(name: str, number: int, folder: Path) -> Path:
    """The damaged file of a case, written to a folder."""
    kind = FORMATS[name]
    rng = Random(f"{name} {number}")
    whole = _whole(name)
    path = folder / f"damaged{kind.suffix}"
    path.write_bytes(kind.damage(rng.choice(whole), rng))
    return path


def problems_of(name: str, number: int, folder: Path) -> Iterator[str]:
    """What readers of a damaged file do that they must not; nothing where all is well."""
    kind = FORMATS[name]
    needed = {"whole.json": _whole("plan")[0], "whole.mlir": MODULE.encode()}
    for file, content in {**needed, "train.py": TRAIN.encode()}.items():
        (folder / file).write_bytes(content)
    path = write_case(name, number, folder)
    before = set(folder.iterdir())
    with chdir(folder):
        began = _now()
        try:
            kind.load(path)
        except _REFUSALS as error:
            yield from _unreadable("load", str(error))
        except Exception as error:
            yield f"load: {type(error).__name__}: {error}"[:300]
        yield from _slow("load", began)
        for words in kind.commands:
            began = _now()
            yield from _problems_of_command(
                [word.format(path.name) for word in words], is_fresh=number % FRESH_ONE_IN == 0
            )
            yield from _slow(words[0], began)
    for left in sorted(set(folder.iterdir()) - before):
        if left.name == "out.json":
            load_plan_data(left)
        elif left.name not in ("out.html", "__pycache__"):
            yield f"left behind: {left.name}"
        elif left.name == "out.html" and not left.read_text().endswith("</html>\n"):
            yield "half a page was written"


def _now() -> tuple[float, float]:
    """Seconds of the processor, of children that ended too, and of the clock."""
    return sum(os.times()[:4]), time.monotonic()


def _slow(reader: str, began: tuple[float, float]) -> Iterator[str]:
    """The time taken, where it is too long: of the processor or, shared as it is, of the clock."""
    busy, waited = (now - then for now, then in zip(_now(), began, strict=True))
    if busy > MOST_SECONDS or waited > HANGS_AFTER_SECONDS:
        yield f"{reader}: took {busy:.1f} s of {waited:.1f} s"


def _problems_of_command(words: list[str], *, is_fresh: bool) -> Iterator[str]:
    for out in ("out.json", "out.html"):
        Path(out).unlink(missing_ok=True)
    code, out, err = (_in_a_fresh_process if is_fresh else _called)(words)
    if code not in (0, 1, 2) or "Traceback" in err:
        yield f"{words[0]}: exit code {code}: {err[-300:]}"
    elif "error: unexpected " in err:
        yield f"{words[0]}: {err}"[:300]
    elif code == 2 and out:
        yield f"{words[0]}: an error after output"
    else:
        yield from _unreadable(words[0], err)
        yield from _unreadable(words[0], out, most=10**9)


def _in_a_fresh_process(words: list[str]) -> tuple[int, str, str]:
    with started(Path(), *words) as process:
        out, err = process.communicate()
        return process.returncode, out, err


def _called(words: list[str]) -> tuple[int, str, str]:
    """Exit code, output and messages of a command that is called as a function."""
    sys.modules.pop("train", None)
    done = CliRunner().invoke(command_line, words)
    if done.exception is not None and not isinstance(done.exception, SystemExit):
        return 1, done.stdout, "".join(traceback.format_exception(done.exception))
    return done.exit_code, done.stdout, done.stderr


def _unreadable(reader: str, text: str, most: int = MOST_LETTERS) -> Iterator[str]:
    if len(text) > most:
        yield f"{reader}: tells {len(text)} letters"
    if not all(line.isprintable() for line in text.split("\n")):
        yield f"{reader}: tells control characters"


def work(name: str, first: int, count: int) -> None:
    """Runs cases and tells of each: its number before, its problems after."""
    warnings.simplefilter("ignore")
    with tempfile.TemporaryDirectory() as folder:
        for number in range(first, first + count):
            print(json.dumps([number, None]), flush=True)
            found = list(problems_of(name, number, Path(folder)))
            for left in Path(folder).iterdir():
                if left.is_file():
                    left.unlink()
            print(json.dumps([number, found]), flush=True)


def run(name: str, first: int, count: int) -> Iterator[tuple[int, list[str]]]:
    """Cases with their problems, run in processes that may crash or hang."""
    stop = first + count
    while first < stop:
        last, is_done = first - 1, True
        for number, problems in _in_a_process(name, first, stop - first):
            last, is_done = number, problems is not None
            if problems is not None:
                yield number, problems
        if not is_done:
            yield last, ["the process crashed or hung"]
        first = max(last, first) + 1


def _in_a_process(name: str, first: int, count: int) -> Iterator[tuple[int, list[str] | None]]:
    words = [sys.executable, "-m", "tests.soak.files", "--work", name, str(first), str(count)]
    environment = {
        **os.environ,
        "JAX_PLATFORMS": "cpu",
        "XLA_FLAGS": "--xla_force_host_platform_device_count=8",
    }
    lines: queue.Queue[str | None] = queue.Queue()
    with subprocess.Popen(
        words,
        cwd=ROOT,
        env=environment,
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    ) as process:
        assert process.stdout is not None
        reader = threading.Thread(target=_pass_on, args=(process.stdout, lines), daemon=True)
        reader.start()
        try:
            while (line := lines.get(timeout=4 * HANGS_AFTER_SECONDS)) is not None:
                number, problems = json.loads(line)
                yield number, problems
        except queue.Empty:
            pass
        finally:
            process.kill()
            reader.join()


def _pass_on(stream: Iterator[str], lines: queue.Queue[str | None]) -> None:
    for line in stream:
        lines.put(line)
    lines.put(None)


def main() -> None:
    """The command."""
    parser = argparse.ArgumentParser(prog="python -m tests.soak.files", description=__doc__)
    parser.add_argument("--count", type=int, default=1000, help="cases of each format")
    parser.add_argument("--format", choices=FORMATS, action="append", help="these formats only")
    parser.add_argument("--record", type=Path, default=Path("soak-files.jsonl"))
    parser.add_argument("--work", nargs=3, help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.work:
        name, first, count = given.work
        work(name, int(first), int(count))
        return
    lines = given.record.read_text().splitlines() if given.record.exists() else []
    found = {(one["format"], one["file"]): one for one in map(json.loads, lines)}
    commit = provenance()["commit"]
    names = given.format or list(FORMATS)
    again = [case for case, one in found.items() if one["problems"] and one["commit"] != commit]
    done = Counter(name for name, _ in found)
    bad = Counter(name for (name, _), one in found.items() if one["problems"])
    with given.record.open("a") as record:

        def run_and_record(name: str, first: int, count: int) -> None:
            for number, problems in run(name, first, count):
                case = {"commit": commit, "format": name, "file": number, "problems": problems}
                record.write(json.dumps(case) + "\n")
                record.flush()
                done[name] += (name, number) not in found
                bad[name] += bool(problems)
                for problem in problems:
                    print(f"{name} {number}: {problem}", flush=True)

        for name, number in again:
            bad[name] -= 1
            run_and_record(name, number, 1)
        while min(done[name] for name in names) < given.count:
            name = min(names, key=lambda name: done[name])
            run_and_record(name, done[name], min(A_TURN, given.count - done[name]))
    for name in names:
        print(f"{name}: {done[name]} files, {bad[name]} with problems", flush=True)
    sys.exit(bool(bad.total()))


if __name__ == "__main__":
    main()
