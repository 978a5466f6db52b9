"""What the workers of a test run share."""

from __future__ import annotations

from pathlib import Path

import pytest


def together(factory: pytest.TempPathFactory, worker: str) -> Path:
    """Return the directory of a test run that all its workers see. `worker`: the fixture
    `worker_id`.
    """
    mine = factory.getbasetemp()
    return mine if worker == "master" else mine.parent
