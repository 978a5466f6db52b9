"""Making a Delta table look older than it is, so that its old files may be removed."""

from __future__ import annotations

import json
import os
from datetime import timedelta
from pathlib import Path


def age(path: str, *, days: int) -> None:
    """Move the table's history into the past: times in the log, and of files."""
    by = int(timedelta(days=days).total_seconds() * 1000)
    log = Path(path) / "_delta_log"
    written = {
        file: file.stat().st_mtime
        for file in [*log.iterdir(), *Path(path).rglob("*.parquet")]
        if file.is_file()
    }
    for file in sorted(log.glob("*.json")):
        lines = [json.loads(line) for line in file.read_text().splitlines()]
        for action in lines:
            for kind, name in (
                ("commitInfo", "timestamp"),
                ("remove", "deletionTimestamp"),
                ("add", "modificationTime"),
            ):
                if kind in action:
                    action[kind][name] -= by
        file.write_text("\n".join(json.dumps(line) for line in lines) + "\n")
    for file, at in written.items():
        os.utime(file, (at - by / 1000, at - by / 1000))
    for checksum in log.glob(".*.crc"):
        checksum.unlink()
