"""Files that are kept out, each with its reason, as an append-only table of events. The newest
event of a path counts.

`parked` keeps a file out until someone acts; `retried` lets intake inspect it again; `discarded`
keeps it out for good; `touched` notes that a known file has a new mtime and the same bytes. A file
whose size or mtime differs from its event is another file, which intake inspects.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime, timedelta
from typing import Literal

import pyarrow as pa

from draindown.base.errors import TerminalError
from draindown.lake import delta
from draindown.lake.home import FlowHome
from draindown.lake.table import literal
from draindown.sources.files.catalog import KnownFile, find

State = Literal["parked", "retried", "discarded", "touched"]
_SCHEMA = pa.schema(
    [
        ("path", pa.string()),
        ("size", pa.int64()),
        ("mtime_ns", pa.int64()),
        ("sha256", pa.string()),
        ("at", pa.timestamp("us", "UTC")),
        ("run_id", pa.string()),
        ("state", pa.string()),
        ("reason", pa.string()),
        ("detail", pa.string()),
        ("head", pa.binary()),
        ("by", pa.string()),
        ("note", pa.string()),
    ]
)
_LEFT_OUT = "left-out"
_BRIEF = 'path, size, mtime_ns, sha256, run_id, state, reason, detail, "by", note'


@dataclass(frozen=True)
class Event:
    """An event of a file. `head` is only set when the event is written; `head_of` reads it."""

    path: str
    size: int
    mtime_ns: int
    state: State
    reason: str = ""
    detail: str = ""
    sha256: str = ""
    run_id: str = ""
    by: str = "draindown"
    note: str = ""
    head: bytes | None = None
    at: datetime | None = None

    @property
    def is_open(self) -> bool:
        """Whether a person should act."""
        return self.state == "parked"


def latest(layout: FlowHome) -> dict[str, Event]:
    """The newest event of every path, without heads; times are left out too."""
    rows = layout.tables.parked.rows(f"select {_BRIEF} from t order by at")
    return {row["path"]: Event(**row) for row in rows}


def open_files(layout: FlowHome) -> list[Event]:
    """Return the files that are parked now, ordered by path."""
    return sorted(
        (event for event in latest(layout).values() if event.is_open), key=lambda event: event.path
    )


def events(layout: FlowHome, path: str | None = None) -> list[Event]:
    """The history of one path, or of all, oldest first, without heads."""
    where = "" if path is None else f" where path = {literal(path)}"
    return [
        Event(**row)
        for row in layout.tables.parked.rows(f"select {_BRIEF}, at from t{where} order by at")
    ]


def head_of(layout: FlowHome, path: str) -> bytes | None:
    """How the file began when it was last parked: up to 64 KiB."""
    sql = f"select head from t where path = {literal(path)} and head is not null order by at desc limit 1"
    rows = layout.tables.parked.rows(sql)
    return rows[0]["head"] if rows else None


def record(layout: FlowHome, events: Iterable[Event], now: datetime) -> None:
    """Append events in one commit, in their order. The caller holds the flow's lease."""
    rows = [asdict(event) for event in events]
    if rows:
        # the order of times must match the order of events, even if the clock went back
        first = max(now, _newest(layout) + timedelta(microseconds=1))
        rows = [row | {"at": first + timedelta(microseconds=i)} for i, row in enumerate(rows)]
        delta.create(layout.tables.parked, _SCHEMA, statistics=("path", "at"), private=True)
        delta.append(layout.tables.parked, pa.Table.from_pylist(rows, schema=_SCHEMA))


def _newest(layout: FlowHome) -> datetime:
    found = layout.tables.parked.rows('select max("at") as newest from t')
    return next((row["newest"] for row in found), None) or datetime.fromtimestamp(0, UTC)


def give_up(
    layout: FlowHome,
    paths: Sequence[str],
    unread: Mapping[str, KnownFile],
    *,
    by: str,
    note: str,
    at: datetime,
) -> None:
    """Keep files out for good: parked ones, and those in `unread`, whose slices no batch has read.
    Idempotent.

    Raises TerminalError `not-parked` before it changes anything.
    """
    _refuse_read(layout, [path for path in paths if path not in unread])
    discard(layout, [path for path in paths if path not in unread], by=by, note=note, now=at)
    done, newest = given_up(layout), latest(layout)
    fresh = [file for path, file in unread.items() if path not in done]
    record(layout, (_unread(file, newest.get(file.path), by, note) for file in fresh), at)


def _refuse_read(layout: FlowHome, paths: Sequence[str]) -> None:
    """Refuse files that are in the table already: to discard them would take no row away."""
    parked = {event.path for event in open_files(layout)}
    if read := sorted(find(layout, [path for path in paths if path not in parked])):
        flow, shown = (
            f"{layout.pipeline}/{layout.flow}",
            f"{', '.join(read[:5])}{' ...' if len(read) > 5 else ''}",
        )
        raise TerminalError(
            "not-parked",
            tried=f"discard {len(paths)} files of flow {layout.flow}",
            found=f"a batch has read {shown}: its rows are in the table, or were refused",
            changed="nothing",
            next=[
                f"draindown quarantine list {flow}   # the rows that were refused",
                f"draindown rebuild {flow} --accept-missing   # once it is taken away: a table without its rows",
            ],
        )


def _unread(file: KnownFile, newest: Event | None, by: str, note: str) -> Event:
    """Return the event of a file that is given up unread.

    An event of the bytes that lie there now keeps their size and mtime: otherwise intake would
    judge them again.
    """
    there = file if newest is None or newest.state == "retried" else newest
    detail = f"slice {file.slice} was pinned with it, and no batch reads it"
    return Event(
        file.path,
        there.size,
        there.mtime_ns,
        "discarded",
        reason=_LEFT_OUT,
        detail=detail,
        by=by,
        note=note,
    )


def given_up(layout: FlowHome) -> frozenset[str]:
    """Return the files that a person gave up before any batch read them.

    Whatever becomes of a path later: the file that a slice pinned stays given up. A file whose new
    bytes were discarded after a batch had read the old ones is none of them.
    """
    sql = f"select distinct path from t where state = 'discarded' and reason = {literal(_LEFT_OUT)}"
    return frozenset(row["path"] for row in layout.tables.parked.rows(sql))


def retry(
    layout: FlowHome,
    paths: Sequence[str] | Callable[[str], bool],
    *,
    by: str,
    note: str,
    now: datetime,
) -> list[Event]:
    """Have intake inspect parked files again. Return the new events. Raises TerminalError
    `not-parked`.
    """
    return _close(layout, paths, "retried", by, note, now)


def discard(
    layout: FlowHome,
    paths: Sequence[str] | Callable[[str], bool],
    *,
    by: str,
    note: str,
    now: datetime,
) -> list[Event]:
    """Keep parked files out for good. Return the new events. Raises TerminalError `not-parked`."""
    return _close(layout, paths, "discarded", by, note, now)


def _close(
    layout: FlowHome,
    paths: Sequence[str] | Callable[[str], bool],
    state: State,
    by: str,
    note: str,
    now: datetime,
) -> list[Event]:
    parked = {event.path: event for event in open_files(layout)}
    wanted = (
        [path for path in parked if paths(path)] if callable(paths) else list(dict.fromkeys(paths))
    )
    unknown = [path for path in wanted if path not in parked]
    if unknown:
        raise TerminalError(
            "not-parked",
            tried=f"mark {len(wanted)} parked files of flow {layout.flow} as {state}",
            found=f"not parked: {', '.join(unknown[:5])}{' ...' if len(unknown) > 5 else ''}",
            next=f"draindown plan {layout.pipeline}",
        )
    closing = [_follow(parked[path], state, by, note) for path in wanted]
    record(layout, closing, now)
    return closing


def _follow(event: Event, state: State, by: str, note: str) -> Event:
    kept = ("path", "size", "mtime_ns", "reason", "sha256")
    return Event(**{name: getattr(event, name) for name in kept}, state=state, by=by, note=note)
