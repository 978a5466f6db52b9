"""Lakes to write to."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from tests.landing import Landing


@pytest.fixture
def lake(tmp_path: Path) -> str:
    """The path of an empty lake."""
    return str(tmp_path / "lake")


@pytest.fixture(scope="session")
def landing(
    spark: SparkSession, tmp_path_factory: pytest.TempPathFactory
) -> Callable[[Mapping[str, Any]], Landing]:
    """Makes a flow in a directory of its own; one that appends unless its target says otherwise."""
    return lambda flow: Landing(tmp_path_factory.mktemp("project"), spark, **{"target": {}, **flow})
