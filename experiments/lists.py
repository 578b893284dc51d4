"""Which programs numbers of the compiler's model may be taken from, and which ones judge it.

No program is on both lists. Where a rule or a number was found by looking at a program, that
program is of the fitting list from then on, and another takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramList:
    """Programs, and what they are planned and compiled for.

    Attributes:
        name: Of the list.
        results: Name of its page and its rows in `experiments/results`.
        title: Of the page.
        sizes: Workloads of the registry, each with the fields of its config that make it large
            enough for many devices to have something to do and small enough to compile soon.
        cells: Chips and meshes.
    """

    name: str
    results: str
    title: str
    sizes: Mapping[str, Mapping[str, Any]]
    cells: tuple[tuple[str, str], ...]


FITTING = ProgramList(
    name="fitting",
    results="compiled",
    title="Plans beside programs compiled for TPU and GPU",
    sizes={
        "mlp": {"features": 1024, "hidden": 4096, "batch": 4096},
        "gpt": {
            "layers": 1,
            "d_model": 1024,
            "heads": 16,
            "d_ff": 4096,
            "vocab": 8192,
            "seq": 512,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "gpt_scan": {
            "layers": 4,
            "d_model": 1024,
            "heads": 16,
            "d_ff": 4096,
            "vocab": 8192,
            "seq": 512,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "llama": {
            "layers": 1,
            "d_model": 1024,
            "heads": 16,
            "num_kv_heads": 8,
            "d_ff": 3072,
            "vocab": 8192,
            "seq": 512,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "moe": {
            "layers": 1,
            "d_model": 512,
            "heads": 8,
            "experts": 8,
            "d_ff": 1024,
            "vocab": 4096,
            "seq": 256,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "unet": {"image_size": 32, "channels": 128, "batch": 64},
        "embedding": {"rows": (65536, 32768, 32768, 16384), "d_embed": 128, "batch": 4096},
        "gnn": {"nodes": 4096, "edges": 32768, "hidden": 256, "node_features": 256},
        "gru": {"d_model": 512, "hidden": 1024, "vocab": 8192, "seq": 64, "batch": 128},
        "expert_choice": {
            "d_model": 512,
            "experts": 16,
            "d_ff": 1536,
            "vocab": 8192,
            "seq": 256,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "gat": {
            "graphs": 64,
            "nodes": 8192,
            "edges": 65536,
            "node_features": 64,
            "edge_features": 16,
            "hidden": 256,
            "heads": 8,
        },
        "parallel_ssm": {
            "layers": 1,
            "d_model": 512,
            "heads": 16,
            "head_dim": 64,
            "states": 16,
            "vocab": 8192,
            "seq": 128,
            "batch": 32,
            "compute_dtype": "bfloat16",
        },
        "dit": {
            "image_size": 32,
            "layers": 2,
            "d_model": 512,
            "heads": 8,
            "d_ff": 2048,
            "classes": 1000,
            "batch": 64,
        },
        "rnn": {"d_embed": 512, "hidden": 512, "vocab": 4096, "seq": 64, "batch": 64},
        "unet_attention": {
            "image_size": 32,
            "channels": 64,
            "multipliers": (1, 2, 4),
            "groups": 16,
            "blocks": 2,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "prefill": {
            "layers": 4,
            "d_model": 1024,
            "heads": 8,
            "num_kv_heads": 8,
            "head_dim": 128,
            "d_ff": 4096,
            "vocab": 16384,
            "seq": 1024,
            "chunk": 64,
            "batch": 32,
            "dtype": "bfloat16",
        },
        "dropless": {
            "d_model": 512,
            "experts": 8,
            "d_ff": 1024,
            "vocab": 8192,
            "seq": 128,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "recommender": {
            "rows": (262144, 131072, 65536, 65536, 16384, 4096, 1000, 256, 48, 8),
            "widths": (32, 32, 64, 64, 64, 128, 128, 128, 128, 128),
            "d_model": 128,
            "rank": 256,
            "hidden": (1024, 512, 256),
            "batch": 8192,
        },
        "mixer": {
            "image_size": 128,
            "patch": 8,
            "d_model": 512,
            "d_patches": 256,
            "d_ff": 2048,
            "classes": 1000,
            "batch": 128,
            "compute_dtype": "bfloat16",
        },
        "gemma": {
            "layers": 2,
            "d_model": 1024,
            "heads": 8,
            "num_kv_heads": 4,
            "head_dim": 128,
            "d_ff": 4096,
            "vocab": 16384,
            "seq": 512,
            "window": 256,
            "batch": 32,
            "compute_dtype": "bfloat16",
        },
        "lora": {
            "layers": 2,
            "d_model": 1024,
            "heads": 16,
            "num_kv_heads": 8,
            "d_ff": 3072,
            "vocab": 8192,
            "seq": 512,
            "batch": 64,
            "compute_dtype": "bfloat16",
            "scan": True,
        },
    },
    cells=(
        *product(("v5e", "v5p"), ("8", "2x4", "4x4", "8x8", "2x4x4")),
        *product(("h100",), ("8", "2x4", "4x4")),
    ),
)
"""Beside the probes: the workloads that rules were found on before there were probes."""

EVALUATION = ProgramList(
    name="evaluation",
    results="evaluation",
    title="Plans of programs that nothing was fitted on",
    sizes={
        "resnet": {
            "image_size": 64,
            "channels": 64,
            "blocks": (2, 2, 2),
            "classes": 1000,
            "batch": 128,
            "compute_dtype": "bfloat16",
        },
        "serve": {
            "layers": 2,
            "d_model": 1024,
            "heads": 16,
            "num_kv_heads": 4,
            "head_dim": 64,
            "d_ff": 4096,
            "vocab": 16384,
            "seq": 2048,
            "batch": 64,
            "dtype": "bfloat16",
        },
        "t5": {
            "d_model": 512,
            "head_dim": 64,
            "d_ff": 1024,
            "vocab": 32128,
            "buckets": 32,
            "source": 512,
            "target": 128,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "muon": {
            "layers": 4,
            "d_model": 1024,
            "heads": 16,
            "d_ff": 4096,
            "vocab": 16384,
            "seq": 512,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "mixtral": {
            "layers": 1,
            "d_model": 1024,
            "heads": 16,
            "num_kv_heads": 8,
            "d_ff": 2048,
            "vocab": 8192,
            "seq": 512,
            "batch": 32,
            "compute_dtype": "bfloat16",
        },
        "deepseek": {
            "layers": 2,
            "d_model": 1024,
            "heads": 16,
            "d_ff": 2048,
            "expert_ff": 512,
            "vocab": 8192,
            "seq": 256,
            "batch": 32,
            "compute_dtype": "bfloat16",
        },
        "conformer": {
            "frames": 512,
            "mel": 80,
            "channels": 128,
            "layers": 4,
            "d_model": 512,
            "heads": 8,
            "d_ff": 2048,
            "kernel": 31,
            "vocab": 1024,
            "letters": 32,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "clip": {
            "image_size": 128,
            "patch": 16,
            "image_layers": 3,
            "image_width": 768,
            "text_layers": 2,
            "text_width": 512,
            "head_dim": 64,
            "vocab": 16384,
            "seq": 64,
            "d_embed": 512,
            "batch": 512,
            "compute_dtype": "bfloat16",
        },
        "convnext": {
            "image_size": 128,
            "channels": (128, 256, 512),
            "blocks": (2, 2, 3),
            "classes": 1000,
            "batch": 128,
            "compute_dtype": "bfloat16",
        },
        "griffin": {
            "triples": 2,
            "d_model": 1024,
            "d_rnn": 1536,
            "heads": 8,
            "d_ff": 3072,
            "vocab": 16384,
            "seq": 512,
            "window": 128,
            "batch": 32,
            "compute_dtype": "bfloat16",
        },
        "denoiser": {
            "image_size": 32,
            "channels": 128,
            "multipliers": (1, 2, 4),
            "groups": 32,
            "heads": 8,
            "d_text": 768,
            "tokens": 64,
            "batch": 64,
            "compute_dtype": "bfloat16",
        },
        "two_tower": {
            "users": 524288,
            "items": 262144,
            "tags": 16384,
            "contexts": (4096, 512, 48),
            "history": 32,
            "tags_per_item": 8,
            "d_embed": 64,
            "hidden": (1024, 512),
            "d_out": 128,
            "batch": 4096,
        },
        "float8_gpt": {
            "layers": 4,
            "d_model": 1024,
            "heads": 16,
            "d_ff": 4096,
            "vocab": 16384,
            "seq": 512,
            "batch": 64,
            "history": 16,
            "compute_dtype": "bfloat16",
        },
    },
    cells=(
        ("v5e", "4x4"),
        *product(("v5e", "v5p", "v6e", "h100", "v4", "tpu7x", "b200"), ("2x4",)),
    ),
)
"""Programs of other kinds, layouts and optimizers than the fitting list's."""

LISTS = {programs.name: programs for programs in (FITTING, EVALUATION)}
