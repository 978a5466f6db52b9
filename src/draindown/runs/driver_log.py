"""The driver log: Spark's log output and the traces of errors, one bounded file per start of a
step.

The card names the file. It is kept as long as the run's reports, readable only by its owner.
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
from draindown.lake.home import FlowHome
from draindown.runs.request import Step

MOST_BYTES = 4 * 1024**2
"""Largest size of the file, in bytes. Older lines are kept in a second file of that size, with the
suffix `.1`.
"""


class DriverLog(RotatingFileHandler):
    """Appends lines to a file, or to one in the temporary directory if the lake is not writable.
    Never raises OSError.

    Several processes may append to one file at once: each line is written at its end.
    """

    def __init__(self, path: str) -> None:
        super().__init__(
            _writable(path),
            maxBytes=MOST_BYTES,
            backupCount=1,
            errors="backslashreplace",
            delay=True,
        )

    @classmethod
    def of(cls, layout: FlowHome, run_id: str, step: Step, start: str = "") -> DriverLog:
        """Return the log of one start of a step."""
        with suppress(OSError):
            layout.make()
        return cls(layout.start(run_id, step, start).log)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def path(self) -> str:
        """Path of the file."""
        return self.baseFilename

    def write(self, text: str) -> None:
        """Append lines. They may quote records, so control characters are escaped."""
        self.emit(makeLogRecord({"msg": printable_lines(text.rstrip("\n").expandtabs(8))}))

    def heading(self, text: str) -> None:
        """Append a line with a title and the time."""
        self.write(f"== {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC  {text}")

    def turn_to(self, path: str) -> None:
        """Append what follows to another file: the process whose output this is goes on with
        another step.
        """
        self.acquire()
        try:
            self.close()
            self.baseFilename = _writable(path)
        finally:
            self.release()

    def pump(self, lines: Iterable[str]) -> threading.Thread:
        """Append lines in a thread that ends with them."""
        thread = threading.Thread(
            target=self._pumped, args=(lines,), name="driver log", daemon=True
        )
        thread.start()
        return thread

    def _pumped(self, lines: Iterable[str]) -> None:
        # read the pipe to its end even if the file can't be written, as on a full disk: its writer
        # would block
        with suppress(OSError, ValueError):
            for line in lines:
                self.write(line)
        self.close()

    def close(self) -> None:
        """Close the file. What it did not take, as on a full disk, is tried once more, and
        dropped.
        """
        with suppress(OSError):
            super().close()

    def handleError(self, record: LogRecord) -> None:
        """Drop what can't be written."""

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
