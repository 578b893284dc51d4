"""What to compile with where a compiler is known to fail on programs that are in order."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class Remedy:
    """A known failure of a compiler, and what to do about it.

    Args:
        platform: Of the compiler, as JAX names it.
        message: Is in what the compiler says.
        options: Flags with which it does not fail.
        note: What a reader of the comparison has to know.
    """

    platform: str
    message: str
    options: Mapping[str, Any]
    note: str


_KNOWN = (
    # Without a GPU to try tiles on, each product gets the same ones; those of 6,304 rows in tiles
    # of a product and of what it is fused with do not fit each other (jaxlib 0.10.2, H100).
    Remedy(
        platform="cuda",
        message="Couldn't find output tile sizes",
        options={"xla_gpu_enable_triton_gemm": False},
        note="the compiler found no tiles for a product that Triton was to make, as it has no GPU"
        " to try them on; compiled without such products (xla_gpu_enable_triton_gemm=False)",
    ),
    # A scatter with batching dimensions between transposes, as a batched dynamic_update_slice is:
    # the simplifier before the partitioner takes the transposes into it and leaves the batching
    # dimensions where they were (jaxlib 0.10.2; one device and TPUs have no such pass).
    Remedy(
        platform="cuda",
        message="Repeated dimensions not allowed in scatter_dims_to_operand_dims",
        options={"xla_disable_hlo_passes": "algsimp"},
        note="the compiler breaks batched scatters between transposes; compiled without the pass"
        " that does (xla_disable_hlo_passes=algsimp), without which it does not run on GPUs either",
    ),
)


def remedy_for(platform: str, what: str, flags: Mapping[str, Any]) -> Remedy | None:
    """The remedy of a failure; None where none is known, or its flags are set already.

    Args:
        platform: Compiled for.
        what: The compiler's message.
        flags: Compiled with.
    """
    for remedy in _KNOWN:
        if remedy.platform == platform and remedy.message in what:
            return None if flags.keys() & remedy.options.keys() else remedy
    return None
