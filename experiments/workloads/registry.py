"""Workloads by name: the small ones tests run, and the sizes plans are timed on."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import dataclass, fields, replace
from typing import Any

from experiments.workloads import embedding, gnn, gpt, llama, mlp, moe, rnn, unet
from experiments.workloads.workload import Workload


@dataclass(frozen=True, slots=True)
class Preset:
    """A model's builder and the sizes it is called with."""

    build: Callable[[str, Any], Workload]
    config: Any


SMALL_WORKLOADS: dict[str, Preset] = {
    "mlp": Preset(mlp.build, mlp.MlpConfig()),
    "gpt": Preset(gpt.build, gpt.GptConfig()),
    "gpt_scan": Preset(gpt.build, gpt.GptConfig(scan=True, remat=True)),
    "llama": Preset(llama.build, llama.LlamaConfig()),
    "llama_scan": Preset(llama.build, llama.LlamaConfig(scan=True, remat=True)),
    "moe": Preset(moe.build, moe.MoeConfig()),
    "unet": Preset(unet.build, unet.UnetConfig()),
    "embedding": Preset(embedding.build, embedding.EmbeddingConfig()),
    "gnn": Preset(gnn.build, gnn.GnnConfig()),
    "rnn": Preset(rnn.build, rnn.RnnConfig()),
}
"""Small enough to run on eight host devices; sizes people cut are multiples of 8."""

WORKLOADS: dict[str, Preset] = {
    **SMALL_WORKLOADS,
    # The 1.3B row of Brown et al. (2020), table 2.1, vocabulary rounded up to a multiple of 128.
    "gpt_1b": Preset(
        gpt.build,
        gpt.GptConfig(
            layers=24,
            d_model=2048,
            heads=16,
            d_ff=8192,
            vocab=50304,
            seq=2048,
            batch=32,
            remat=True,
            compute_dtype="bfloat16",
        ),
    ),
    "gpt_7b_scan": Preset(
        gpt.build,
        gpt.GptConfig(
            layers=32,
            d_model=4096,
            heads=32,
            d_ff=16384,
            vocab=32000,
            seq=2048,
            batch=64,
            scan=True,
            remat=True,
            compute_dtype="bfloat16",
        ),
    ),
    # The 8B column of Grattafiori et al. (2024), table 3, at a shorter sequence.
    "llama_7b": Preset(
        llama.build,
        llama.LlamaConfig(
            layers=32,
            d_model=4096,
            heads=32,
            num_kv_heads=8,
            d_ff=14336,
            vocab=128256,
            seq=2048,
            batch=32,
            rope_theta=500_000.0,
            compute_dtype="bfloat16",
        ),
    ),
}
"""Every workload by name; the big ones are for planning and are never run here."""


def get_workload(name: str, **overrides: Any) -> Workload:
    """Build a workload; only shapes are computed, nothing is allocated.

    Args:
        name: A key of `WORKLOADS`.
        **overrides: Fields of the model's config to change, such as `layers=4`.

    Returns:
        The workload.

    Raises:
        ValueError: No such workload or field, or sizes that do not fit together.
    """
    preset = WORKLOADS.get(name)
    if preset is None:
        raise ValueError(f"no workload {name!r}{_meant(name, list(WORKLOADS))}")
    known = [field.name for field in fields(preset.config)]
    for field in overrides:
        if field not in known:
            raise ValueError(f"workload {name!r} has no size {field!r}{_meant(field, known)}")
    return preset.build(name, replace(preset.config, **overrides))


def _meant(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; choose from {', '.join(known)}"
