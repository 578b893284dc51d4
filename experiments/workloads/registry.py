"""Workloads by name: the small ones tests run, and the sizes plans are timed on."""

from __future__ import annotations

import difflib
from collections.abc import Callable
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

from experiments.workloads import (
    clip,
    conformer,
    convnext,
    decode,
    deepseek,
    denoiser,
    dit,
    dropless,
    embedding,
    expert_choice,
    float8_gpt,
    gat,
    gemma,
    gnn,
    gpt,
    griffin,
    gru,
    llama,
    lora,
    mixer,
    mixtral,
    mlp,
    moe,
    muon,
    parallel_ssm,
    recommender,
    resnet,
    rnn,
    serve,
    ssm,
    t5,
    two_tower,
    unet,
    unet_attention,
    vit,
)
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

FURTHER_WORKLOADS: dict[str, Preset] = {
    "mixtral": Preset(mixtral.build, mixtral.MixtralConfig()),
    "mixtral_scan": Preset(mixtral.build, mixtral.MixtralConfig(scan=True, remat=True)),
    "deepseek": Preset(deepseek.build, deepseek.DeepseekConfig()),
    "deepseek_scan": Preset(
        deepseek.build, deepseek.DeepseekConfig(layers=3, q_rank=0, scan=True, remat=True)
    ),
    "gemma": Preset(gemma.build, gemma.GemmaConfig()),
    "gemma_scan": Preset(gemma.build, gemma.GemmaConfig(layers=4, scan=True, remat=True)),
    "vit": Preset(vit.build, vit.VitConfig()),
    "dit": Preset(dit.build, dit.DitConfig()),
    "ssm": Preset(ssm.build, ssm.SsmConfig()),
    "ssm_scan": Preset(ssm.build, ssm.SsmConfig(scan=True, remat=True)),
    "decode": Preset(decode.build, llama.LlamaConfig(seq=64)),
    "decode_scan": Preset(decode.build, llama.LlamaConfig(seq=64, scan=True)),
    "lora": Preset(lora.build, lora.LoraConfig()),
    "lora_scan": Preset(lora.build, lora.LoraConfig(scan=True, remat=True)),
    "clip": Preset(clip.build, clip.ClipConfig()),
    "conformer": Preset(conformer.build, conformer.ConformerConfig()),
    "convnext": Preset(convnext.build, convnext.ConvnextConfig()),
    "denoiser": Preset(denoiser.build, denoiser.DenoiserConfig()),
    "dropless": Preset(dropless.build, expert_choice.ChoiceConfig()),
    "expert_choice": Preset(expert_choice.build, expert_choice.ChoiceConfig()),
    "float8_gpt": Preset(float8_gpt.build, float8_gpt.Float8GptConfig()),
    "gat": Preset(gat.build, gat.GatConfig()),
    "griffin": Preset(griffin.build, griffin.GriffinConfig()),
    "gru": Preset(gru.build, gru.GruConfig()),
    "mixer": Preset(mixer.build, mixer.MixerConfig()),
    "muon": Preset(muon.build, muon.MuonConfig()),
    "parallel_ssm": Preset(parallel_ssm.build, parallel_ssm.ParallelSsmConfig()),
    "prefill": Preset(serve.build, serve.ServeConfig(chunk=4, scan=True)),
    "recommender": Preset(recommender.build, recommender.RecommenderConfig()),
    "resnet": Preset(resnet.build, resnet.ResnetConfig()),
    "serve": Preset(serve.build, serve.ServeConfig()),
    "t5": Preset(t5.build, t5.T5Config()),
    "two_tower": Preset(two_tower.build, two_tower.TwoTowerConfig()),
    "unet_attention": Preset(unet_attention.build, unet_attention.UnetAttentionConfig()),
}
"""As small; every kind of program that is planned, where those above are what tests begin with."""

_GPT_7B = gpt.GptConfig(
    layers=32,
    d_model=4096,
    heads=32,
    d_ff=16384,
    vocab=32000,
    seq=2048,
    batch=64,
    remat=True,
    compute_dtype="bfloat16",
)
# The 8B and 70B columns of Grattafiori et al. (2024), table 3, at half the sequence.
_LLAMA3_8B = llama.LlamaConfig(
    layers=32,
    d_model=4096,
    heads=32,
    num_kv_heads=8,
    d_ff=14336,
    vocab=128256,
    seq=4096,
    batch=32,
    rope_theta=500_000.0,
    remat=True,
    compute_dtype="bfloat16",
)
_LLAMA3_70B = replace(_LLAMA3_8B, layers=80, d_model=8192, heads=64, d_ff=28672, batch=64)
# Jiang et al. (2024), table 1, at an eighth of the sequence.
_MIXTRAL_8X7B = mixtral.MixtralConfig(
    layers=32,
    d_model=4096,
    heads=32,
    num_kv_heads=8,
    d_ff=14336,
    vocab=32000,
    seq=4096,
    batch=32,
    capacity_factor=1.25,
    remat=True,
    compute_dtype="bfloat16",
)
# DeepSeek-AI (2024), section 3.1.2 and, for Lite, appendix B.
_DEEPSEEK_V2 = deepseek.DeepseekConfig(
    layers=60,
    d_model=5120,
    heads=128,
    q_rank=1536,
    kv_rank=512,
    nope_dim=128,
    rope_dim=64,
    v_dim=128,
    d_ff=12288,
    experts=160,
    shared_experts=2,
    top_k=6,
    capacity_factor=1.25,
    expert_ff=1536,
    vocab=102400,
    seq=4096,
    batch=64,
    scan=True,
    remat=True,
    compute_dtype="bfloat16",
)
# Gemma Team (2024), tables 1 and 2, at half the sequence.
_GEMMA2_2B = gemma.GemmaConfig(
    layers=26,
    d_model=2304,
    heads=8,
    num_kv_heads=4,
    head_dim=256,
    d_ff=9216,
    vocab=256128,
    seq=4096,
    window=2048,
    batch=32,
    scan=True,
    remat=True,
    compute_dtype="bfloat16",
)

FULL_WORKLOADS: dict[str, Preset] = {
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
    "gpt_7b": Preset(gpt.build, _GPT_7B),
    "gpt_7b_scan": Preset(gpt.build, replace(_GPT_7B, scan=True)),
    # Llama 3 8B at a quarter of its sequence, without remat.
    "llama_7b": Preset(llama.build, replace(_LLAMA3_8B, seq=2048, remat=False)),
    "llama3_8b": Preset(llama.build, _LLAMA3_8B),
    "llama3_8b_scan": Preset(llama.build, replace(_LLAMA3_8B, scan=True)),
    "llama3_70b": Preset(llama.build, _LLAMA3_70B),
    "llama3_70b_scan": Preset(llama.build, replace(_LLAMA3_70B, scan=True)),
    "llama3_70b_decode": Preset(
        decode.build, replace(_LLAMA3_70B, scan=True, remat=False, seq=8192, batch=128)
    ),
    "llama3_8b_lora": Preset(
        lora.build,
        lora.LoraConfig(**{**asdict(_LLAMA3_8B), "scan": True}, rank=16, alpha=32.0),
    ),
    "mixtral_8x7b": Preset(mixtral.build, _MIXTRAL_8X7B),
    "mixtral_8x7b_scan": Preset(mixtral.build, replace(_MIXTRAL_8X7B, scan=True)),
    "deepseek_v2": Preset(deepseek.build, _DEEPSEEK_V2),
    "deepseek_v2_lite": Preset(
        deepseek.build,
        replace(
            _DEEPSEEK_V2,
            layers=27,
            d_model=2048,
            heads=16,
            q_rank=0,
            d_ff=10944,
            experts=64,
            expert_ff=1408,
        ),
    ),
    "gemma2_2b": Preset(gemma.build, _GEMMA2_2B),
    "gemma2_27b": Preset(
        gemma.build,
        replace(
            _GEMMA2_2B,
            layers=46,
            d_model=4608,
            heads=32,
            num_kv_heads=16,
            head_dim=128,
            d_ff=36864,
        ),
    ),
    # Dosovitskiy et al. (2020), table 1.
    "vit_l16": Preset(
        vit.build,
        vit.VitConfig(
            image_size=224,
            patch=16,
            layers=24,
            d_model=1024,
            heads=16,
            d_ff=4096,
            classes=1000,
            batch=4096,
            remat=True,
            compute_dtype="bfloat16",
        ),
    ),
    # Peebles and Xie (2022), table 1; latents of 256 x 256 images.
    "dit_xl2": Preset(
        dit.build,
        dit.DitConfig(
            image_size=32,
            layers=28,
            d_model=1152,
            heads=16,
            d_ff=4608,
            classes=1000,
            batch=256,
            remat=True,
        ),
    ),
    # The 256 x 256 model of Ho, Jain and Abbeel (2020), appendix B, without attention and with one
    # residual block where theirs has two.
    "unet_256": Preset(
        unet.build,
        unet.UnetConfig(
            image_size=256,
            channels=128,
            multipliers=(1, 1, 2, 2, 4, 4),
            groups=32,
            batch=64,
        ),
    ),
    # The largest of the Criteo terabyte tables with ids cut off at 40 million, rounded up to
    # multiples of 1024; widths of the MLPerf training benchmark.
    "dlrm_criteo": Preset(
        embedding.build,
        embedding.EmbeddingConfig(
            rows=(39_884_800, 39_980_032, 39_665_664, 38_533_120, 25_641_984, 2_954_240),
            bag=1,
            d_embed=128,
            dense_features=13,
            bottom=(512, 256),
            top=(1024, 1024, 512, 256),
            batch=65_536,
        ),
    ),
    # As many nodes and edges as ogbn-products of Hu et al. (2020), rounded up to multiples of 1024.
    "gnn_products": Preset(
        gnn.build,
        gnn.GnnConfig(
            nodes=2_449_408,
            edges=61_859_840,
            node_features=128,
            edge_features=8,
            hidden=256,
            layers=3,
            classes=64,
        ),
    ),
    # Two LSTMs as wide as the widest of Jozefowicz et al. (2016), without its projection and on
    # fewer words.
    "rnn_2b": Preset(
        rnn.build,
        rnn.RnnConfig(layers=2, d_embed=1024, hidden=8192, vocab=128_000, seq=128, batch=512),
    ),
    # The 2.8B model of Gu and Dao (2023), vocabulary rounded up to a multiple of 128.
    "mamba_3b": Preset(
        ssm.build,
        ssm.SsmConfig(
            layers=64,
            d_model=2560,
            inner=5120,
            states=16,
            dt_rank=160,
            vocab=50_304,
            seq=2048,
            batch=64,
            scan=True,
            remat=True,
            compute_dtype="bfloat16",
        ),
    ),
}
"""Models as they are trained and served, as shapes alone: for planning, never run here."""

# The 405B column of Grattafiori et al. (2024), table 3.
_LLAMA3_405B = replace(
    _LLAMA3_8B, layers=126, d_model=16384, heads=128, d_ff=53248, seq=8192, batch=256
)
# DeepSeek-AI (2024b), DeepSeek-V3, section 4.2, with one dense block where theirs has three.
_DEEPSEEK_V3 = replace(
    _DEEPSEEK_V2,
    layers=61,
    d_model=7168,
    d_ff=18432,
    experts=256,
    shared_experts=1,
    top_k=8,
    expert_ff=2048,
    vocab=129280,
    batch=512,
)
# Gemma Team (2025), Gemma 3, one windowed block to one full where theirs has five.
_GEMMA3_27B = replace(
    _GEMMA2_2B,
    layers=62,
    d_model=5376,
    heads=32,
    num_kv_heads=16,
    head_dim=128,
    d_ff=21504,
    vocab=262144,
    window=1024,
    batch=64,
)
# The 175B row of Brown et al. (2020), table 2.1, vocabulary rounded up to a multiple of 128.
_GPT_175B = replace(
    _GPT_7B,
    layers=96,
    d_model=12288,
    heads=96,
    d_ff=49152,
    vocab=50304,
    batch=1536,
    microbatches=8,
)
_DENSE_128 = replace(_GEMMA3_27B, layers=128, d_model=8192, heads=64, num_kv_heads=8, d_ff=28672)

DEEP_WORKLOADS: dict[str, Preset] = {
    name + suffix: Preset(build, replace(config, scan=scan))
    for name, build, config in (
        ("llama3_405b", llama.build, _LLAMA3_405B),
        ("deepseek_v3", deepseek.build, _DEEPSEEK_V3),
        ("gemma3_27b", gemma.build, _GEMMA3_27B),
        ("gpt_175b", gpt.build, _GPT_175B),
        ("dense_128", gemma.build, _DENSE_128),
    )
    for suffix, scan in (("", False), ("_scan", True))
}
"""Of 61 to 128 layers, as they are and scanned: for the speed of planning, in no list of tests."""

WORKLOADS: dict[str, Preset] = {**SMALL_WORKLOADS, **FURTHER_WORKLOADS, **FULL_WORKLOADS}
"""Every workload by name, except for the deep ones."""


def get_workload(name: str, **overrides: Any) -> Workload:
    """Build a workload; only shapes are computed, nothing is allocated.

    Args:
        name: A key of `WORKLOADS` or of `DEEP_WORKLOADS`.
        **overrides: Fields of the model's config to change, such as `layers=4`.

    Returns:
        The workload.

    Raises:
        ValueError: No such workload or field, or sizes that do not fit together.
    """
    known_presets = WORKLOADS | DEEP_WORKLOADS
    preset = known_presets.get(name)
    if preset is None:
        raise ValueError(f"no workload {name!r}{_meant(name, list(known_presets))}")
    known = [field.name for field in fields(preset.config)]
    for field in overrides:
        if field not in known:
            raise ValueError(f"workload {name!r} has no size {field!r}{_meant(field, known)}")
    return preset.build(name, replace(preset.config, **overrides))


def _meant(word: str, known: list[str]) -> str:
    close = difflib.get_close_matches(word, known, n=1)
    return f"; did you mean {close[0]!r}?" if close else f"; choose from {', '.join(known)}"
