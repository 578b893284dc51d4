"""Notes on residuals, and the `jax.checkpoint` policy that says the same."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from itertools import count

from autoshard.errors import PlanError
from autoshard.remat.choice import Residual, ResidualChoice
from autoshard.report.quantities import format_bytes, format_seconds


def is_named_residual(choice: ResidualChoice | None, asked: str) -> bool:
    """True of a selector that is the `checkpoint_name` of a residual."""
    found = () if choice is None else choice.residuals
    return any(one.is_named and asked.strip() == f"name:{one.what}" for one in found)


def residual_notes(choice: ResidualChoice | None, asked: str, name: str) -> Iterator[str]:
    """The cost of keeping a tensor, and that of computing it again, where it is a residual.

    Args:
        choice: Of a plan.
        asked: The selector that the user gave.
        name: Of the tensor, `dot_general at model.py:12 (block)`.
    """
    for one in () if choice is None else choice.residuals:
        if asked.strip() != f"name:{one.what}" and name != _label(one):
            continue
        held, spent = format_bytes(one.local_bytes), format_seconds(one.seconds)
        if one.is_offloaded:
            yield (
                f"offloaded: {held} in host memory between the passes, which keeping it would cost"
                f" on the device; computing it again would cost {spent}"
            )
        elif one.is_kept:
            yield (
                f"kept for the backward pass: that costs {held} between the passes, computing it"
                f" again would cost {spent}"
            )
        else:
            yield (
                f"recomputed: keeping it costs {held} between the passes, computing it {spent}"
                " without what it is computed from"
            )


def checkpoint_policy(choice: ResidualChoice | None) -> str:
    """A `jax.checkpoint` policy that keeps what a plan does, as Python text to paste.

    Raises:
        PlanError: No policy keeps the same; says why.
    """
    if choice is None or not choice.residuals:
        raise PlanError(
            "the plan chose no residuals: the program is as it is written",
            where="the residuals of the plan",
            fix="plan within a memory budget that the step does not fit",
        )
    passes = {_pass(one) for one in choice.residuals if one.is_offloaded or not one.is_kept}
    inside = [one for one in choice.residuals if _pass(one) in passes and one.what != "carry"]
    again = {_place(one) for one in inside if not one.is_kept}
    kept: dict[tuple[str, ...], str] = {}
    offloaded: list[str] = []
    lines = []
    for one in choice.residuals:
        if one.is_offloaded and one.what == "carry":
            raise PlanError(
                "what the loop carries is offloaded, and a policy cannot name it",
                where="the residuals of the plan",
                fix="run the plan itself: plan.jit or plan.wrap",
            )
    for one in inside:
        if not one.is_kept or _place(one) in kept:
            continue
        if _place(one) in again:
            raise PlanError(
                f"{_label(one)} is kept in one place and computed again in another, which one name"
                " cannot say",
                where="the residuals of the plan",
                fix="run the plan itself (plan.jit, plan.wrap); under scan all layers are alike",
            )
        name = one.what if one.is_named else _suggested(one, taken=kept.values())
        kept[_place(one)] = name
        if one.is_offloaded:
            offloaded.append(name)
        if not one.is_named:
            lines.append(f"#   {one.source}: {one.what} of type {one.type_text}: {name!r}")
    saved = _quoted(name for name in kept.values() if name not in offloaded)
    policy = f"save_only_these_names({saved})"
    if offloaded:
        policy = (
            f"save_and_offload_only_these_names(names_which_can_be_saved=[{saved}],"
            f" names_which_can_be_offloaded=[{_quoted(offloaded)}],"
            ' offload_src="device", offload_dst="pinned_host")'
        )
    head = ["# Name these values where they are made (jax.ad_checkpoint.checkpoint_name):", *lines]
    return "\n".join(
        [
            *(head if lines else []),
            f"policy = jax.checkpoint_policies.{policy}",
            "layer = jax.checkpoint(layer, policy=policy)  # every layer",
        ]
    )


def _quoted(names: Iterable[str]) -> str:
    return ", ".join(f'"{name}"' for name in names)


def _pass(one: Residual) -> str:
    """The forward pass of a residual."""
    return one.name.partition(":")[0]


def _place(one: Residual) -> tuple[str, ...]:
    """The same for what one name would select."""
    return (one.what,) if one.is_named else (one.what, one.source, one.type_text)


def _suggested(one: Residual, taken: Collection[str]) -> str:
    """A name for a residual of a line."""
    line = re.search(r":(\d+)", one.source)
    if line is None:
        raise PlanError(
            f"{one.what} of type {one.type_text} is kept, and made by no line of the program, so"
            " it cannot be named",
            where="the residuals of the plan",
            fix="run the plan itself: plan.jit or plan.wrap",
        )
    name = f"{one.what}_{line[1]}"
    numbers = (f"{name}_{number}" for number in count(2))
    return name if name not in taken else next(found for found in numbers if found not in taken)


def _label(one: Residual) -> str:
    return f"{one.what} at {one.source}" if one.source else one.what
