"""What tests of plans share."""

from __future__ import annotations

import pytest

from autoshard.backend_habits import temporary_overhead


@pytest.fixture
def nothing_lost_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries on GPUs take what is counted, to the byte."""

    def overhead(backend: str, *, is_scarce: bool = False) -> float:
        return 1.0 if backend == "gpu" else temporary_overhead(backend, is_scarce=is_scarce)

    monkeypatch.setattr("autoshard.encoding.device_room.temporary_overhead", overhead)
