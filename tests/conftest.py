"""Eight host devices for every test, set before JAX is imported; laws have no deadline."""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.goldens"]

settings.register_profile("without deadline", deadline=None)  # machines are shared
settings.load_profile("without deadline")

os.environ["XLA_FLAGS"] = (
    os.environ.get("XLA_FLAGS", "") + " --xla_force_host_platform_device_count=8"
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
