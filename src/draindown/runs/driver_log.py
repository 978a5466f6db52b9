"""The driver log: what Spark says beside its work, and the traces of errors, one bounded file per step of a run.

People read the card, which names this file; it is kept as long as the run's reports, for its owner alone.
"""

from __future__ import annotations

import os
import tempfile
import threading
from collections.abc import Iterable
from contextlib import suppress
from datetime import UTC, datetime
from io import TextIOWrapper
from logging import LogRecord, makeLogRecord
from logging.handlers import RotatingFileHandler
from pathlib import Path
from typing import Self

from draindown.base.formatting import printable_lines
from draindown.lake.documents import make_home
from draindown.lake.layout import FlowLayout
from draindown.runs.request import Step

MOST_BYTES = 4 * 1024**2
"""Of the file; as many again are kept of what came before, under the same name with `.1`."""


class DriverLog(RotatingFileHandler):
    """Appends lines to a file; where the lake takes none, to one in the temporary directory. Never raises OSError.

    Several processes may append to one file at a time: each line is written at its end.
    """

    def __init__(self, path: str) -> None:
        super().__init__(_writable(path), maxBytes=MOST_BYTES, backupCount=1, errors="backslashreplace", delay=True)

    @classmethod
    def of(cls, layout: FlowLayout, run_id: str, step: Step) -> DriverLog:
        """The log of a step of a run."""
        with suppress(OSError):
            make_home(layout)
        return cls(layout.log(run_id, step))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """The file."""
        return self.baseFilename

    def write(self, text: str) -> None:
        """Append lines; they may quote records, so nothing in them commands a terminal."""
        self.emit(makeLogRecord({"msg": printable_lines(text.rstrip("\n").expandtabs(8))}))

    def heading(self, text: str) -> None:
        """Append a line that says what follows, and since when."""
        self.write(f"== {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {text}")

    def pump(self, lines: Iterable[str]) -> threading.Thread:
        """Append lines as they come, in a thread that ends with them."""
        thread = threading.Thread(target=self._pumped, args=(lines,), name="driver log", daemon=True)
        thread.start()
        return thread

    def _pumped(self, lines: Iterable[str]) -> None:
        # whatever becomes of the file, as on a full disk, the pipe is emptied: its writer would stand still
        with suppress(OSError, ValueError):
            for line in lines:
                self.write(line)
        self.close()

    def handleError(self, record: LogRecord) -> None:
        """Leave out what can't be written."""

    def _open(self) -> TextIOWrapper:
        return open(self.baseFilename, "a", encoding="utf-8", errors=self.errors, opener=_private)


def _private(path: str, flags: int) -> int:
    return os.open(path, flags, 0o600)


def _writable(path: str) -> str:
    try:
        Path(path).parent.mkdir(parents=True, exist_ok=True)
        os.close(_private(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT))
        return path
    except OSError:
        handle, name = tempfile.mkstemp(prefix="draindown-", suffix=".log")
        os.close(handle)
        return name
