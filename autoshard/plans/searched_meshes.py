"""The meshes that a search considered, and what became of each."""

from __future__ import annotations

from dataclasses import dataclass

from autoshard.sharding import Mesh


@dataclass(frozen=True, slots=True, kw_only=True)
class TriedMesh:
    """A mesh that a search considered.

    Args:
        mesh: Its axes.
        outcome: One of `MESH_OUTCOMES`.
        reason: Why it was not chosen; "" for the one that was.
        seconds: Of the best plan found on it, as the solver sees it; None where there is none.
        bound_seconds: No plan on it costs less; None where nothing is known.
        peak_bytes: Memory peak of that plan, or the least one found where none fits.
    """

    mesh: Mesh
    outcome: str
    reason: str = ""
    seconds: float | None = None
    bound_seconds: float | None = None
    peak_bytes: int | None = None


MESH_OUTCOMES = ("chosen", "no better", "bound", "memory", "alike", "impossible", "no time")
"""Outcomes of a mesh: it is the plan's; a plan was made and costs no less; none can cost less;
none fits; it has the links of another one; the machine, the program or what was asked rules it out;
time was up first."""


@dataclass(frozen=True, slots=True, kw_only=True)
class MeshSearch:
    """The search that found a plan's mesh.

    Args:
        num_devices: Of every mesh considered.
        bound_seconds: No plan on any of them costs less.
        tried: The meshes: the chosen one, those with a plan from the cheapest on, then the others.
    """

    num_devices: int
    bound_seconds: float
    tried: tuple[TriedMesh, ...]
