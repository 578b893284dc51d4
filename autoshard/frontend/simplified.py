"""The jaxpr that is planned: what compilers take away of a program is gone before."""

from __future__ import annotations

from jax.extend.core import Jaxpr

from autoshard.frontend.batched_vectors import without_batched_vectors
from autoshard.frontend.dangling import honour_dangling
from autoshard.frontend.dead_code import without_dead_equations
from autoshard.frontend.equal_equations import without_equal_equations
from autoshard.frontend.inline_calls import without_outer_call
from autoshard.frontend.known_control import without_known_control
from autoshard.frontend.known_results import without_known_results
from autoshard.frontend.outer_products import without_outer_products
from autoshard.frontend.sliced_matmuls import with_sliced_matmuls


def simplified(jaxpr: Jaxpr) -> Jaxpr:
    """A jaxpr that computes the same, without what is dead, known or computed twice.

    A sharding constraint whose result is dropped is no dead code: it shards the value itself.
    """
    settled = without_known_control(honour_dangling(without_outer_call(jaxpr)))
    products = without_outer_products(without_known_results(settled))
    live = without_equal_equations(without_dead_equations(products))
    matmuls = without_batched_vectors(with_sliced_matmuls(live))
    if matmuls is live:
        return live
    return without_equal_equations(without_dead_equations(matmuls))
