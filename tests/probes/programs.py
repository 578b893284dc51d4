"""Small compiled programs as text, for tests of what is read from them."""

from __future__ import annotations

from autoshard.aot.compile_process import CompiledAhead
from autoshard.sharding import parse_mesh_sizes
from experiments.probes.bench import Compiled

_HEAD = "HloModule jit_f, is_scheduled=true, num_partitions=8\n\n"
_ADD = """\
%add (a: f32[], b: f32[]) -> f32[] {
  %a = f32[] parameter(0)
  %b = f32[] parameter(1)
  ROOT %sum = f32[] add(%a, %b)
}

"""


def compiled(entry: str, *, computations: str = "", memory_report: str = "") -> Compiled:
    """A program of these instructions, on a mesh of 8 devices."""
    body = "".join(f"  {line.strip()}\n" for line in entry.strip().splitlines())
    return Compiled(
        CompiledAhead(
            text=f"{_HEAD}{_ADD}{computations}ENTRY %main () -> f32[] {{\n{body}}}\n",
            memory={},
            memory_report=memory_report,
            device_kind="TPU v5 lite",
            device_order="as numbered",
            versions={},
            seconds=0.0,
        ),
        parse_mesh_sizes("d=8"),
    )
