"""Reads of states in host memory before they are updated, part by part."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import jax
from jax.extend.core import JaxprEqn, Literal, Var

from autoshard.offload.blocks import Block, read_by, traced_block
from autoshard.offload.parts import Parts
from autoshard.remat.host_memory import moved, on_host


def slicing(eqn: JaxprEqn, there: Mapping[Var, Var]) -> JaxprEqn:
    """A scan that brings slices of states in host memory to the device; any other as it is."""
    if eqn.primitive.name != "scan" or there.keys().isdisjoint(read_by(eqn)):
        return eqn
    body = eqn.params["jaxpr"]
    pairs = list(zip(eqn.invars, body.jaxpr.invars, strict=True))
    is_there = [not isinstance(outside, Literal) and outside in there for outside, _ in pairs]
    slices = {
        inside: Var(on_host(inside.aval))
        for (_, inside), brings in zip(pairs, is_there, strict=True)
        if brings
    }
    jaxpr = body.jaxpr.replace(
        invars=[slices.get(inside, inside) for _, inside in pairs],
        eqns=[*(moved(one, inside, eqn) for inside, one in slices.items()), *body.jaxpr.eqns],
    )
    return eqn.replace(
        invars=[
            there[outside] if brings else outside
            for (outside, _), brings in zip(pairs, is_there, strict=True)
        ],
        params={**eqn.params, "jaxpr": body.replace(jaxpr=jaxpr)},
    )


def cast(eqn: JaxprEqn, there: Var, parts: Parts) -> Block:
    """A copy of a state in another type, made of parts that are brought to the device.

    Args:
        eqn: Makes the copy.
        there: The state in host memory.
        parts: How it is taken apart.
    """
    (result,) = eqn.outvars
    aval = result.aval

    def run(state: Any) -> list[Any]:
        def copied(index: Any, copy: Any) -> Any:
            part = jax.device_put(parts.read(viewed, index), jax.memory.Space.Device)
            return parts.written(copy, part.astype(aval.dtype), index)

        viewed = parts.viewed(state)
        empty = jax.lax.full(parts.view, 0, aval.dtype)
        return [parts.restored(jax.lax.fori_loop(0, parts.count, copied, empty))]

    return traced_block(run, [there], [result], [eqn])
