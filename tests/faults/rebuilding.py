"""A rebuild that dies where it is told: at the n-th time of a step, or as version n of the live table appears."""

from __future__ import annotations

import os
import signal
import threading
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.base.exits import Exit
from draindown.runs.request import Request
from draindown.spark.job.main import attempt
from draindown.spark.runs.rebuild import rebuild


class Death:
    """Strikes once, JVM and Python together; the file <home>/fired says that it did, and names the JVM."""

    def __init__(self, home: Path, spark: SparkSession, place: tuple[str, int] | None) -> None:
        self._home, self._place, self._seen = home, place, 0
        self._jvm = int(spark._jvm.java.lang.ProcessHandle.current().pid())  # type: ignore[union-attr]

    def reached(self, step: str) -> None:
        """What a rebuild tells after each step."""
        if self._place and step == self._place[0]:
            self._seen += 1
            if self._seen == self._place[1]:
                self._strike()

    def watch(self, log: Path) -> None:
        """Strike as soon as version n, or the file it is about to be renamed from, is in the log."""
        if self._place and self._place[0] == "commit":
            threading.Thread(target=self._watch, args=(log, f"{self._place[1]:020}.json"), daemon=True).start()

    def _watch(self, log: Path, version: str) -> None:
        while not any(version in name for name in os.listdir(log)):  # noqa: PTH208 (as fast as it gets)
            time.sleep(0)
        self._strike()

    def _strike(self) -> None:
        temporary = self._home / ".fired"
        temporary.write_text(str(self._jvm))
        temporary.replace(self._home / "fired")
        os.kill(self._jvm, signal.SIGKILL)
        os.kill(os.getpid(), signal.SIGKILL)


def rebuilt(spark: SparkSession, request: Request, home: Path, entry: Mapping[str, Any]) -> Exit:
    """Rebuild under `entry`'s `fault`; the exit code, if anything is left to return it."""
    death = Death(home, spark, entry.get("fault"))
    death.watch(Path(request.layout.table, "_delta_log"))
    _, code = attempt(
        request, lambda stop: rebuild(request, spark, stop=stop, progress=lambda line: None, reached=death.reached)
    )
    return code
