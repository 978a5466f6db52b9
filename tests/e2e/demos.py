"""A demo as a user types it, in a directory of its own."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[2]


def demo(
    script: str, home: Path, *arguments: str, **settings: str
) -> subprocess.CompletedProcess[str]:
    """Run a script of the repository with all that it makes under `home`."""
    homes = {
        "DRAINDOWN_DEMO_HOME": str(home / "demo"),
        "DRAINDOWN_AIRFLOW_HOME": str(home / "airflow"),
    }
    command = [sys.executable, str(REPOSITORY / "scripts" / script), *arguments]
    return subprocess.run(
        command, env=os.environ | settings | homes, capture_output=True, text=True
    )
