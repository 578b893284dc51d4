"""In which order a compiler runs ops, and what it runs beside one another."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulePolicy:
    """Order of ops, and asynchronous collectives.

    Args:
        deferred_past_matmuls: A matmul that no other one needs runs after so many of the matmuls
            that are left, if there are more. 0: in program order.
        orders_for_memory: Kernels run in the order of XLA's memory scheduler; where collectives run
            beside any of them, in that of its latency-hiding scheduler.
        assumed_microseconds: How long that takes a matmul to last, and a convolution; other kernels
            as long as they do.
        collective_microseconds: How much longer than on the network it takes a collective to last.
        async_collectives: Kinds of collectives that run beside computing.
        overlaps_matmuls_only: They run beside matmuls and the ops fused into these, and as late as
            their readers allow.
        in_order_options: (option, setting): with them the compiler keeps to the program's order.
    """

    deferred_past_matmuls: int
    orders_for_memory: bool
    assumed_microseconds: tuple[float, float]
    collective_microseconds: float
    async_collectives: frozenset[str]
    overlaps_matmuls_only: bool
    in_order_options: tuple[tuple[str, str], ...]

    @property
    def overlaps(self) -> bool:
        """True where any collective runs beside computing."""
        return bool(self.async_collectives)

    @property
    def hides_latency(self) -> bool:
        """True where kernels are put between the start and the end of a collective."""
        return self.overlaps and self.collective_microseconds > 0

    def is_async(self, kind: str) -> bool:
        """True where collectives of this kind run beside computing."""
        return kind in self.async_collectives
