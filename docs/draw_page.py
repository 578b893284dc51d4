"""Draws the picture in the README: the page of the demo's plan, in a Chromium without a window.

    python docs/draw_page.py

Needs a Chromium: `chromium` of the system, or one that `CHROMIUM` names.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from pathlib import Path

import autoshard
from autoshard.report import write_page
from experiments.workloads import get_workload

PICTURE = Path(__file__).parent / "explanation" / "pictures" / "report-page.png"
SIZE = "1280,1180"


def main() -> None:
    gpt = get_workload("gpt")
    plan = autoshard.optimize(
        gpt.step, gpt.state, gpt.batch, mesh="data=2,model=4", hardware="cpu-host", donate_argnums=0
    )
    _ = plan.constraints
    draw_page(plan, PICTURE)


def draw_page(plan: autoshard.Plan, picture: Path) -> None:
    """A picture of a plan's page."""
    browser = os.environ.get("CHROMIUM") or shutil.which("chromium")
    if browser is None:
        raise SystemExit("there is no Chromium: install it, or name it in CHROMIUM")
    with tempfile.TemporaryDirectory() as folder:
        page = Path(folder) / "plan.html"
        write_page(plan.data, page)
        flags = "--headless --no-sandbox --disable-gpu --hide-scrollbars --virtual-time-budget=4000"
        shot = f"--screenshot={picture}"
        subprocess.run(
            [browser, *flags.split(), f"--window-size={SIZE}", shot, page.as_uri()], check=True
        )


if __name__ == "__main__":
    main()
