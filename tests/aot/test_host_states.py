"""States in host memory as compilers for accelerators have them."""

from __future__ import annotations

import pytest

from tests.end_to_end.test_host_states import STATE_BYTES, planned


@pytest.mark.slow
def test_states_lie_on_the_host_as_planned_and_free_the_device() -> None:
    pytest.importorskip("libtpu")
    free = planned(remat="keep")
    tight = planned(memory_budget=free.data.memory.argument_bytes - STATE_BYTES // 16)
    found = tight.verify("v5e:2x4").memory
    assert found is not None
    assert found.predicted_host_bytes == found.host_bytes > 0
    assert found.predicted_bytes == pytest.approx(found.compiled_bytes, rel=0.1)
    assert found.compiled_bytes <= 1.05 * (tight.data.memory_budget or 0)
