"""Eight host devices for every test, set before JAX is imported.

Kernels are compiled without LLVM's optimisations, and from HLO straight to LLVM instead of by way
of MLIR: a third of the time of tests that compile was spent on each. Partitioner and collectives
are as otherwise, and so are buffers but for some hundred bytes.

Laws have no deadline, and draw the same examples on every machine: a run fails for what was
changed, never by chance. `--hypothesis-profile=explore` draws others.
"""

from __future__ import annotations

import os

from hypothesis import settings

pytest_plugins = ["tests.compiled_here", "tests.goldens"]

settings.register_profile("explore", deadline=None)  # machines are shared
settings.register_profile("repeat", settings.get_profile("explore"), derandomize=True)
settings.load_profile("repeat")

os.environ["XLA_FLAGS"] = " ".join(
    [
        os.environ.get("XLA_FLAGS", ""),
        "--xla_force_host_platform_device_count=8",
        "--xla_backend_optimization_level=0",
        "--xla_cpu_use_fusion_emitters=false",
    ]
).strip()
os.environ.setdefault("JAX_PLATFORMS", "cpu")
