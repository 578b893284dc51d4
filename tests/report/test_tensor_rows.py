"""Rows of tensors, those alike but for numbers as one."""

from __future__ import annotations

from autoshard.plans.plan import LiveTensor
from autoshard.report.tensor_rows import live_rows
from autoshard.sharding import Sharding


def held(name: str, source: str, local_bytes: int) -> LiveTensor:
    return LiveTensor(
        name=name,
        source=source,
        type_text="f32[8]",
        sharding=Sharding.replicated_everywhere(1),
        local_bytes=local_bytes,
    )


def test_tensors_of_equal_layers_are_one_row() -> None:
    rows = live_rows(
        [
            held("dot_general", "net/layer_0/mlp, model.py:3 (mlp)", 4),
            held("params['layer_0']['w']", "", 3),
            held("dot_general", "net/layer_1/mlp, model.py:3 (mlp)", 4),
            held("params['layer_1']['w']", "", 3),
            held("dot_general", "model.py:13 (loss)", 1),
            held("dot_general", "model.py:14 (loss)", 1),
        ]
    )
    assert [(row.name, row.source, row.count, row.local_bytes) for row in rows] == [
        ("dot_general", "net/layer_0..1/mlp, model.py:3 (mlp)", 2, 8),
        ("params['layer_0..1']['w']", "", 2, 6),
        ("dot_general", "model.py:13 (loss)", 1, 1),
        ("dot_general", "model.py:14 (loss)", 1, 1),
    ]
