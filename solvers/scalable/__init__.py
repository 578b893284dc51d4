"""The scalable lane: prices for memory, bounds by message passing, and moves of whole trees."""

from solvers.scalable.lane import run_scalable

__all__ = ["run_scalable"]
