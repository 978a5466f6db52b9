"""Read the files of Spark's checkpoints: which input a drain has consumed, and whether Spark can
resume it.

    metadata     id of the query; without it Spark 4.1 silently starts a new query
    offsets/N    written before batch N runs: where it ends
    commits/N    written after batch N ran

No other module reads these files. The stream reads the intake table, one version per batch: an end
at version V means that all slices below V are read.
"""

from __future__ import annotations

import json
import zlib
from datetime import datetime
from typing import Any, NamedTuple

from draindown.base.errors import TerminalError
from draindown.lake import directories as lake_directories
from draindown.lake.home import FlowHome
from draindown.lake.stores import store_of
from draindown.sources.slices import FIRST

_RECENT = 50  # batches; Spark removes the logs of older batches in no guaranteed order, so gaps there are no damage


class Offset(NamedTuple):
    """End of a batch: its id, and the first intake version after it."""

    batch: int
    next_version: int


class Checkpoint:
    """A read-only view of the checkpoint at `path`. Each list of batches, and each file, is read
    once and then kept.
    """

    def __init__(self, path: str) -> None:
        self.path = path
        self._store = store_of(path)
        self._listed: dict[str, list[int]] = {}
        self._files: dict[str, bytes] = {}

    def look(self) -> None:
        """List the batches now. Without this call, they are listed on first use."""
        for kind in ("offsets", "commits"):
            self._batches(kind)

    @property
    def exists(self) -> bool:
        """Whether its directory is there, which may be empty."""
        return lake_directories.exists(self.path)

    @property
    def started(self) -> bool:
        """Whether a query ever started on this checkpoint."""
        return self._read("metadata") is not None

    @property
    def last_offset(self) -> Offset | None:
        """End of the newest planned batch; None if there is none. Raises TerminalError
        `checkpoint-damaged`.
        """
        batches = self._batches("offsets")
        return self._offset(batches[-1]) if batches else None

    @property
    def intake_id(self) -> str | None:
        """Id of the intake table that the newest planned batch reads, or None. Raises like
        `last_offset`.
        """
        batches = self._batches("offsets")
        found = self._json(f"offsets/{batches[-1]}", 2).get("reservoirId") if batches else None
        return None if found is None else str(found)

    @property
    def last_commit(self) -> int | None:
        """Id of the newest committed batch; None if there is none."""
        batches = self._batches("commits")
        return batches[-1] if batches else None

    @property
    def in_flight(self) -> int | None:
        """Id of the batch that was planned and has no commit; None if there is none. The next drain
        runs it again.
        """
        offsets = self._batches("offsets")
        return offsets[-1] if offsets and offsets[-1] != self.last_commit else None

    def planned_at(self, batch: int) -> datetime | None:
        """Return when a batch was planned, by the store's clock; None if its plan is gone."""
        key = f"{self.path}/offsets/{batch}"
        return next((entry.modified for entry in self._store.list(key) if entry.key == key), None)

    @property
    def first_unread(self) -> int:
        """The first slice that no committed batch has read. Slice N is version N of the intake.

        Raises TerminalError `checkpoint-damaged`.
        """
        done = self.last_commit
        return FIRST if done is None else self._offset(done).next_version

    def verify(self) -> None:
        """Verify that Spark can resume from this checkpoint.

        Raises TerminalError `checkpoint-damaged` (empty, torn or missing logs) or
        `checkpoint-without-metadata`.
        """
        offsets, commits = self._batches("offsets"), self._batches("commits")
        if not self.started:
            if offsets or commits:
                raise self._error(
                    "checkpoint-without-metadata",
                    "logs of batches are there, the file `metadata` is not",
                )
            return
        if not self._json("metadata", 0).get("id"):
            raise self._error("checkpoint-damaged", "metadata names no query")
        self._verify_order(offsets, commits)
        for batch in offsets[-2:]:
            self._offset(batch)
        for batch in commits[-2:]:
            self._json(f"commits/{batch}", 1)
        self._verify_sums(
            "metadata",
            *[f"offsets/{n}" for n in offsets[-2:]],
            *[f"commits/{n}" for n in commits[-2:]],
        )

    def _verify_sums(self, *names: str) -> None:
        for name in names:
            folder, _, file = name.rpartition("/")
            checksum = self._read(f"{folder}/.{file}.crc".lstrip("/"))
            if checksum is not None and not _matches(self._read(name) or b"", checksum):
                raise self._error(
                    "checkpoint-damaged",
                    f"{name} is not what its checksum says; Spark insists on it",
                )

    def _verify_order(self, offsets: list[int], commits: list[int]) -> None:
        for kind, batches in (("offsets", offsets), ("commits", commits)):
            recent = [batch for batch in batches if batch > batches[-1] - _RECENT]
            if recent and len(recent) != recent[-1] - recent[0] + 1:
                raise self._error(
                    "checkpoint-damaged", f"{kind} has gaps between {recent[0]} and {recent[-1]}"
                )
        last, done = (offsets or [-1])[-1], (commits or [-1])[-1]
        if done > last:
            raise self._error(
                "checkpoint-damaged", f"batch {done} is committed, but offsets ends at {last}"
            )
        if done < last - 1:
            raise self._error(
                "checkpoint-damaged", f"batch {last} is planned, but commits ends at {done}"
            )
        if done >= 0 and done not in offsets:
            raise self._error(
                "checkpoint-damaged", f"batch {done} is committed, but offsets/{done} is gone"
            )

    def _batches(self, kind: str) -> list[int]:
        if kind not in self._listed:
            self._listed[kind] = self._list(kind)
        return self._listed[kind]

    def _list(self, kind: str) -> list[int]:
        names = (entry.name for entry in self._store.list(f"{self.path}/{kind}/"))
        return sorted(int(name) for name in names if name.isascii() and name.isdigit())

    def _offset(self, batch: int) -> Offset:
        name = f"offsets/{batch}"
        self._json(name, 1)
        end = self._json(name, 2)
        try:
            # a negative index is a position before the version's first file; a slice has exactly
            # one file
            return Offset(batch, int(end["reservoirVersion"]) + (int(end["index"]) >= 0))
        except (KeyError, TypeError, ValueError):
            raise self._error(
                "checkpoint-damaged", f"offsets/{batch} is no position in an intake table"
            ) from None

    def _read(self, name: str) -> bytes | None:
        """Return the content of a file, or None if it is absent. Spark never changes one that it
        has written.
        """
        if (
            name not in self._files
            and (found := self._store.read(f"{self.path}/{name}")) is not None
        ):
            self._files[name] = found[0]
        return self._files.get(name)

    def _json(self, name: str, line: int) -> dict[str, Any]:
        raw = self._read(name)
        if raw is None:
            raise self._error("checkpoint-damaged", f"{name} is missing")
        try:
            content = json.loads(raw.decode().splitlines()[line])
        except (ValueError, IndexError):
            size = len(raw)
            raise self._error(
                "checkpoint-damaged", f"{name} is {'torn' if size else 'empty'} ({size} bytes)"
            ) from None
        if not isinstance(content, dict):
            raise self._error("checkpoint-damaged", f"{name} holds no object in line {line + 1}")
        return content

    def _error(self, code: str, found: str) -> TerminalError:
        return TerminalError(
            code,
            tried=f"read the checkpoint {self.path}",
            found=found,
            next=_restore(self.path),
        )


def _matches(content: bytes, found: bytes) -> bool:
    """Return whether Hadoop's checksum file matches: `crc\\0`, bytes per checksum, and one CRC-32
    per chunk.
    """
    part = int.from_bytes(found[4:8], "big")
    parts = (
        [content[start : start + part] for start in range(0, len(content), part)] if part else []
    )
    return found[:4] == b"crc\0" and found[8:] == b"".join(
        zlib.crc32(one).to_bytes(4, "big") for one in parts
    )


def _restore(path: str) -> list[str]:
    pipeline, flow = ("PIPELINE", "FLOW", *path.split("/")[:-3])[-2:]
    return [
        f"draindown reset {pipeline}/{flow}",
        f"restore {path} from a copy, as a whole; an older copy will do: what it replays changes nothing",
    ]


def newest_directory(layout: FlowHome) -> int:
    """Return the greatest generation that has a directory; 0 before the first."""
    return next(iter(directories(layout)), 0)


def directories(layout: FlowHome) -> list[int]:
    """Return every generation that has a directory, greatest first."""
    names = lake_directories.names(layout.generations)
    return sorted((int(name) for name in names if name.isascii() and name.isdigit()), reverse=True)
