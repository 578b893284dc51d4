"""Programs that judge the model of the compiler, and what they are compiled for.

They have other shapes, layouts and optimizers than the probes, the only source of the model's
numbers. Where a rule or a number was found by looking at a program, another takes its place.
"""

from __future__ import annotations

from collections.abc import Mapping
from itertools import product
from typing import Any

_GPT = {
    "layers": 4,
    "d_model": 1024,
    "heads": 16,
    "d_ff": 4096,
    "vocab": 16384,
    "seq": 512,
    "batch": 64,
    "compute_dtype": "bfloat16",
}

SIZES: Mapping[str, Mapping[str, Any]] = {
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
    "muon": _GPT,
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
    "float8_gpt": {**_GPT, "history": 16},
}
"""Workloads of the registry, each with the fields of its config that are not at their default.

Large enough for many devices to have something to do, and small enough to compile soon.
"""

HARDWARE = {
    "v5e": "tpu-v5e",
    "v5p": "tpu-v5p",
    "v6e": "tpu-v6e",
    "h100": "h100",
    "v4": "tpu-v4",
    "tpu7x": "tpu7x",
    "b200": "b200",
}
"""By chip, the name of its machine in the catalog."""
CELLS = (("v5e", "4x4"), *product(HARDWARE, ("2x4",)))
"""Chips and meshes."""
