"""What to tell a user whose function does not trace or lower: where, why, and what helps."""

from __future__ import annotations

import re
from collections.abc import Sequence

import jax

from autoshard.errors import ExportError
from autoshard.frontend.signature import Call
from autoshard.frontend.source_lines import line_of_exception

_LEAF = re.compile(r"\bleaves\[(\d+)\]")


def does_not_trace(call: Call, error: Exception) -> ExportError:
    if isinstance(error, MemoryError):
        return _out_of_memory(call, error, "traced")
    return ExportError(
        f"`{call.name}` does not trace: {_reason(error, call.arguments.names)}",
        where=line_of_exception(error),
        fix=_fix_for(error),
    )


def does_not_lower(call: Call, platform: str, error: Exception) -> ExportError:
    if isinstance(error, MemoryError):
        return _out_of_memory(call, error, "lowered")
    return ExportError(
        f"`{call.name}` traces but does not lower for {platform}:"
        f" {_reason(error, call.arguments.names)}",
        where=line_of_exception(error),
        fix=_fix_for_lowering(error),
    )


def speaks_of_axis_types(error: Exception) -> bool:
    """Whether JAX refuses the types of mesh axes."""
    return re.search(r"of type Auto|Explicit|explicit", str(error)) is not None


def _out_of_memory(call: Call, error: MemoryError, step: str) -> ExportError:
    return ExportError(
        f"memory ran out while `{call.name}` was {step}{f': {error}' if str(error) else ''}",
        where=line_of_exception(error),
        fix="give the process more memory; make big arrays arguments, not constants",
    )


def _fix_for_lowering(error: Exception) -> str:
    if "callbacks are only supported in spmd computations" in str(error):
        return (
            "let the shard_map around the callback map over every axis of the mesh (leave out"
            " axis_names), or move the callback out of it"
        )
    return "try jax.jit(fn).lower(*args) to see the error by itself"


def _reason(error: Exception, names: Sequence[str]) -> str:
    """The first paragraph of JAX's message, with the user's names for the flat arguments."""
    text = str(error).strip()
    paragraph = " ".join(text.split("\n\n")[0].split("The error occurred while")[0].split())
    culprits = [names[int(number)] for number in dict.fromkeys(_LEAF.findall(text))]
    if culprits:
        shown = ", ".join(f"`{name}`" for name in culprits)
        plural = "s" if len(culprits) > 1 else ""
        paragraph = f"{paragraph.rstrip('.')}; it depends on the value{plural} of {shown}"
    return f"{type(error).__name__}: {paragraph}" if paragraph else repr(error)


def _fix_for(error: Exception) -> str:
    text = str(error)
    if isinstance(error, jax.errors.TracerBoolConversionError):
        return (
            "branch with jax.lax.cond or jnp.where, or name the argument in static_argnums if it is"
            " a setting"
        )
    if isinstance(
        error,
        (
            jax.errors.ConcretizationTypeError,
            jax.errors.TracerArrayConversionError,
            jax.errors.TracerIntegerConversionError,
            jax.errors.NonConcreteBooleanIndexError,
        ),
    ) or (isinstance(error, TypeError) and "concrete values of integer type" in text):
        return "compute with jax.numpy, or name the argument in static_argnums if it is a setting"
    if isinstance(error, jax.errors.UnexpectedTracerError):
        return "return the value instead of keeping it outside the function"
    if "different trace level" in text:
        return "pass the Flax NNX object as an argument: the function may change no other one"
    if "Explicit" in text or "explicit" in text or "context mesh" in text:
        return (
            "planning is for Auto axes: make the mesh the function uses with"
            " jax.make_mesh(shape, names, axis_types=(jax.sharding.AxisType.Auto,) * len(names)),"
            " or drop its mesh argument"
        )
    return "make jax.eval_shape(fn, *args) work first: it fails in the same place"
