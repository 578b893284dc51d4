"""Plans read back from their files, with the function they were made for."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path
from typing import Any

from autoshard.argument_types import check_types
from autoshard.errors import PlanError
from autoshard.frontend.fingerprint import canonical_lines
from autoshard.frontend.meshes import abstract_mesh, with_explicit
from autoshard.frontend.trace import trace
from autoshard.plan import Plan
from autoshard.plans.plan_json import load_plan_data
from autoshard.rewriting import AS_WRITTEN


def load_plan(
    path: str | Path,
    fn: Callable[..., Any] | None = None,
    *args: Any,
    kwargs: Mapping[str, Any] | None = None,
) -> Plan:
    """Read a plan written by `Plan.save`.

    Args:
        path: The file.
        fn: The function it was made for; its program is checked on the first call.
        *args: Its arguments, as for `optimize`. With them the program is checked at once, and the
            plan knows the trees of arguments: `in_shardings`, `init` and `shard` work.
        kwargs: Its keyword arguments.

    Raises:
        PlanError: The file is cut, damaged, of another version, or no plan; or the program is not
            the one planned.
        ExportError: The function does not trace.
    """
    check_types(path=path, kwargs=kwargs)
    data = load_plan_data(path)
    traced = None
    if fn is not None and (args or kwargs):
        again = partial(
            trace,
            fn,
            args,
            kwargs,
            mesh=data.mesh,
            context=with_explicit(abstract_mesh(data.mesh), data.program.explicit_axes),
            axes=data.program.argument_axes,
            donate_argnums=data.donate_argnums,
            static_argnums=data.static_argnums,
        )
        traced = again()
        if traced.record.fingerprint != data.program.fingerprint:
            reason = data.program.difference(traced.record, canonical_lines(traced.jaxpr))
            raise PlanError(
                f"the plan was made for another program: {reason}",
                where=f"{path}, and `{data.function}` as it is now",
                fix="pass the function and the argument types it was planned with, or plan again",
            )
        if data.rewriting != AS_WRITTEN:
            traced = again(rewrite=data.rewriting.of)
    return Plan(data, fn, traced, None, data.donate_argnums, data.static_argnums)
