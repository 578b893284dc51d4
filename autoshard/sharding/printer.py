"""Shardings and manual computations as Shardy prints them."""

from __future__ import annotations

from autoshard.sharding.manual import ManualComputation
from autoshard.sharding.sharding import DimSharding, Sharding
from autoshard.sharding.string_literals import quoted


def format_dim_sharding(dim: DimSharding) -> str:
    """`{"x", "y":(1)2, ?}p3`."""
    return str(dim)


def format_sharding(sharding: Sharding) -> str:
    """`<@mesh, [{"x"}, {?}], replicated={"y"}, unreduced={"z"}>`, as Shardy prints it."""
    return str(sharding)


def format_manual_computation(manual: ManualComputation) -> str:
    """`in_shardings=[<...>] out_shardings=[<...>] manual_axes={"x"}`."""
    ins = ", ".join(map(format_sharding, manual.in_shardings))
    outs = ", ".join(map(format_sharding, manual.out_shardings))
    axes = ", ".join(map(quoted, manual.manual_axes))
    return f"in_shardings=[{ins}] out_shardings=[{outs}] manual_axes={{{axes}}}"
