"""What tests of plans share."""

from __future__ import annotations

import pytest

from autoshard.encoding.device_room import DeviceRoom


@pytest.fixture
def nothing_lost_on_gpus(monkeypatch: pytest.MonkeyPatch) -> None:
    """Temporaries on GPUs take what is counted, to the byte."""

    def overhead(room: DeviceRoom) -> float:
        found = room.backend.memory.fragmentation(is_tight=room.is_scarce)
        return 1.0 if room.backend.platform == "gpu" else found

    monkeypatch.setattr(DeviceRoom, "overhead", property(overhead))
