"""The shardings XLA itself propagates to, read from what it prints while compiling."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import jax
from jax.sharding import NamedSharding, PartitionSpec

from autoshard.sharding import Sharding

_INSTRUCTION = re.compile(r"\s*(?:ROOT )?%\S+ = [a-z0-9]+\[([\d,]*)\]\S* [\w\-]+\(")
_EQUATION = re.compile(r"E\[((?:[^\[\]]|\[\d+\])+)\]")


def shardings_inside_xla(
    fn: Callable[..., Any], args: Sequence[Any], in_shardings: Any, dump_to: Path
) -> dict[tuple[str, tuple[int, ...]], set[str]]:
    """HLO shardings after XLA's own run of Shardy, by equation path and shape.

    Args:
        fn: Its equations carry `E[path]` in their name stacks.
        args: Abstract arguments.
        in_shardings: As for `jax.jit`.
        dump_to: An empty directory.
    """
    jax.jit(fn, in_shardings=in_shardings).lower(*args).compile(
        compiler_options={"xla_dump_to": str(dump_to), "xla_dump_hlo_pass_re": "shardy.*"}
    )
    dumps = [path for path in dump_to.iterdir() if "after_shardy-xla" in path.name]
    text = max(dumps, key=lambda path: path.stat().st_size).read_text()
    found: dict[tuple[str, tuple[int, ...]], set[str]] = {}
    for line in text.splitlines():
        instruction = _INSTRUCTION.match(line)
        name = re.search(r'op_name="([^"]*)"', line)
        equations = _EQUATION.findall(name[1]) if name else []
        if instruction is None or not equations:
            continue
        shape = tuple(int(size) for size in instruction[1].split(",") if size)
        sharding = re.search(r"sharding=(\{.*?\})(?:,|$)", line)
        found.setdefault((equations[-1], shape), set()).add(
            sharding[1] if sharding else "{replicated}"
        )
    return found


def hlo_text(sharding: Sharding, mesh: jax.sharding.Mesh) -> str:
    """A sharding without parts of axes as HLO writes it."""
    spec = [tuple(axis.name for axis in dim.axes) or None for dim in sharding.dims]
    named = NamedSharding(mesh, PartitionSpec(*spec))
    return str(named._to_xla_hlo_sharding(len(spec)))
