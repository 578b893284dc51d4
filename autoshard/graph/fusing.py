"""Which ops a compiler computes together with others, or when: what takes memory, how long."""

from __future__ import annotations

from dataclasses import dataclass, replace

from autoshard.graph.op_traits import EXPENSIVE

EVERY = 2**31
"""As `Fusing.waits_for_products`: all that are left, however many."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fusing:
    """What a compiler does beyond fusing element-wise ops with one another and with reductions.

    Args:
        kept: Names of element-wise ops whose result is kept where several ops read it; others are
            computed again in each of them.
        kept_bits: Of elements of at most so many bits; wider ones are computed again.
        with_products: Whether a product computes its element-wise operands, and goes on with the
            element-wise ops that alone read its result.
        from_wider: Whether a product computes also such operands as are made of wider elements:
            stored ones, or quotients.
        from_one: Whether a matrix product computes operands that are made of one tensor, of no
            wider elements, and constants.
        least_part: Of tensors that are joined from parts of a multiple of so many elements, a
            matrix product that does not sum along them reads the parts; 0 for none.
        with_gathers: Whether a gather of fewer elements than there are computes those it takes.
        with_scatters: Whether a scatter computes what it adds, and where.
        fills_early: Whether the zeros that a scatter adds to are written before it is run, those of
            one shape all at once.
        into_addends: Whether a scatter into zeros, to which something is added, is one into that.
        writes_scattered: Whether the sum of a scatter into zeros and something else is written, and
            not computed by what reads it.
        one_hot_scatters: Whether a scatter of one element per row compares positions instead, and
            so is element-wise.
        turns: Whether dimensions stay in the order that a product made them in, and what meets them
            in another is written in that.
        waits_for_products: So many products run before one that no other needs, where there are
            more. With `EVERY` it runs last, and what is moved or summed for others meanwhile is
            there beside it.
        frees_first: Whether of a product that no other needs and the one after it that runs first
            which lets go of what it alone still reads.
    """

    kept: frozenset[str] = EXPENSIVE
    kept_bits: int = 128
    with_products: bool = False
    from_wider: bool = True
    from_one: bool = False
    least_part: int = 0
    with_gathers: bool = False
    with_scatters: bool = False
    fills_early: bool = False
    into_addends: bool = False
    writes_scattered: bool = False
    one_hot_scatters: bool = False
    turns: bool = False
    waits_for_products: int = 0
    frees_first: bool = False

    def in_the_worst_order(self) -> Fusing:
        """The same, where ops whose order is not known run when most is held."""
        return replace(self, waits_for_products=EVERY) if self.waits_for_products else self


AS_ON_CPU = Fusing()
"""What XLA does for host CPUs, and is taken to do where nothing else was seen."""
