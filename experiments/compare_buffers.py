"""Buffers that a plan predicts at its peak beside those of the compiled program at its own.

    python -m experiments.compare_buffers gpt --mesh data=2,model=4 --topology v5e:2x4
        [--keep-in FOLDER] [--rows 20]

Compiled buffers and their live ranges are read from the scheduled program, loop bodies in place;
the heap simulation over them tells what fragmentation takes.
"""

from __future__ import annotations

from pathlib import Path

import click

import autoshard
from autoshard.aot.compile_process import CompiledAhead
from autoshard.aot.program import ShardedProgram
from autoshard.aot.verify import VerifyOptions, compile_plan
from autoshard.hlo.live_buffers import CompiledBuffer, compiled_buffers, live_at_peak
from autoshard.hlo.text import HloModule, parse_hlo
from autoshard.lowering.heap_simulator import heap_bytes
from experiments.evaluation import HARDWARE, SIZES
from experiments.workloads import get_workload


@click.command(help=__doc__)
@click.argument("workload")
@click.option("--mesh", default="data=2,model=4", help="Axes and sizes.")
@click.option("--topology", default="v5e:2x4", help="Chips to compile for.")
@click.option("--keep-in", type=click.Path(path_type=Path), help="Folder for compiled programs.")
@click.option("--rows", default=20, help="Buffers to show of each.")
def main(workload: str, mesh: str, topology: str, keep_in: Path | None, rows: int) -> None:
    """Run the command."""
    step = get_workload(workload, **SIZES.get(workload, {}))
    plan = autoshard.optimize(
        step.step,
        step.state,
        step.batch,
        mesh=mesh,
        hardware=HARDWARE[topology.partition(":")[0]],
        donate_argnums=step.donate_argnums,
        baselines=False,
    )
    options = VerifyOptions(topology=topology, keep_in=keep_in)
    compiled = _compiled(plan, options)
    click.echo("\n".join(_lines(plan, compiled, rows)))


def _compiled(plan: autoshard.Plan, options: VerifyOptions) -> CompiledAhead:
    assert plan.traced is not None
    _ = plan.constraints
    found = compile_plan(ShardedProgram.of(plan.data, plan.traced), options).compiled
    if found is None:
        raise click.ClickException("the program did not compile")
    return found


def _lines(plan: autoshard.Plan, compiled: CompiledAhead, rows: int) -> list[str]:
    memory, module = plan.data.memory, parse_hlo(compiled.text)
    every = [one for one in compiled_buffers(module) if one.in_hbm]
    live = live_at_peak(every)
    heap = heap_bytes((one.start, one.stop, one.num_bytes) for one in every)
    return [
        f"predicted {_mb(memory.peak_bytes)} MB, arguments {_mb(memory.argument_bytes)};"
        f" at {memory.peak_where}",
        *(
            f"  {_mb(one.local_bytes)} {one.name} {one.type_text} {one.source}"
            for one in memory.live_at_peak[:rows]
        ),
        f"compiled: temporaries {_mb(compiled.memory['temp'])} MB,"
        f" {_mb(sum(one.num_bytes for one in live))} live, {_mb(heap)} with gaps",
        *(_compiled_line(one, module) for one in live[:rows]),
    ]


def _compiled_line(one: CompiledBuffer, module: HloModule) -> str:
    made = one.instruction
    return (
        f"  {_mb(one.num_bytes)} {made.name} {one.type_text} {made.string('op_name')}"
        f" {module.source(made)}"
    )


def _mb(num_bytes: float) -> str:
    return f"{num_bytes / 1e6:8.2f}"


if __name__ == "__main__":
    main()
