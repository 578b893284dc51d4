"""What a workload is: a step, its abstract arguments, and how to make real ones."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import jax

PyTree: TypeAlias = Any
"""A nest of dicts, lists and named tuples; each use says what its leaves are."""

MegatronRule: TypeAlias = Callable[[str, tuple[int, ...]], tuple[str | None, ...] | None]
"""Parameter path and shape to `"model"` or `None` per dimension; `None` for replicated."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """One step of training or of decoding, which plans are measured on.

    Attributes:
        name: The registry's name, for tables.
        step: `step(state, batch) -> (state, result)`; pure, without any sharding inside. Training
            has `{"params": ..., "opt": ...}` for a state and gives the loss, a float32 scalar.
            Decoding has no `"opt"`, but a `"cache"`, and gives logits.
        init: `init(key) -> state`, concrete; may be jitted with output shardings.
        make_batch: `make_batch(key) -> batch`, concrete, random but learnable by heart.
        donate_argnums: Arguments of `step` whose buffers it may reuse.
        megatron: The tensor-parallel layout a practitioner would write, by parameter path such as
            `params['blocks'][0]['attn']['wq']`.
        batch_dim: The dimension of every leaf of the batch that data parallelism cuts.
        trained: The entry of the parameters that the optimizer moves; None for all of them.
        by_example: Entries of the state, beside the parameters, that hold something for every
            example, each with the dimension that data parallelism cuts.
        state: The state's shapes, a pytree of `jax.ShapeDtypeStruct`, by abstract evaluation.
        batch: The batch's shapes, likewise.
    """

    name: str
    step: Callable[[PyTree, PyTree], tuple[PyTree, jax.Array]]
    init: Callable[[jax.Array], PyTree]
    make_batch: Callable[[jax.Array], PyTree]
    donate_argnums: tuple[int, ...] = (0,)
    megatron: MegatronRule | None = None
    batch_dim: int = 0
    trained: str | None = None
    by_example: Mapping[str, int] = field(default_factory=dict)
    state: PyTree = field(init=False)
    batch: PyTree = field(init=False)

    def __post_init__(self) -> None:
        key = jax.eval_shape(lambda: jax.random.key(0))
        object.__setattr__(self, "state", jax.eval_shape(self.init, key))
        object.__setattr__(self, "batch", jax.eval_shape(self.make_batch, key))
