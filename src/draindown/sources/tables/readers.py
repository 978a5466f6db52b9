"""What the flow that writes a table owes to those that read it: the change feed, and statistics to
find rows by.
"""

from __future__ import annotations

from collections.abc import Mapping

from draindown.base.errors import TerminalError
from draindown.config.neighbours import Reader
from draindown.lake.delta import BOUNDED
from draindown.lake.home import FlowHome
from draindown.lake.intervals import interval_seconds
from draindown.lake.table import Table
from draindown.runs.request import Request
from draindown.sources.tables import registered
from draindown.sources.tables.upstream import FEED

RETENTION = "delta.logRetentionDuration"
_KEPT_DAYS = 90
_KEPT = f"interval {_KEPT_DAYS} days"
"""How long the log of a table with readers is kept. Delta's own log cleanup knows no readers."""
_TOLD = {FEED: "its change feed", RETENTION: f"{_KEPT_DAYS} days of log", BOUNDED: "statistics"}
_NO_STATISTICS = ("boolean", "binary")


def readers(request: Request) -> list[Reader]:
    """Return the flows of the project that read the table of the request's flow, those of its own
    pipeline first.
    """
    return request.spec.readers(request.declared.table_name(request.flow))


def may_read(request: Request, pipeline: str, flow: str) -> bool:
    """Return whether a flow reads the table as the project's files say, or belongs to a file that
    can't be loaded.

    The flow that writes it reads it for its sinks.
    """
    declared = {(one.pipeline, one.flow) for one in readers(request)}
    if request.declared.sinks:
        declared.add((request.spec.pipeline, request.flow))
    return (pipeline, flow) in declared or pipeline in request.spec.neighbours.unreadable


def refuse_declared(request: Request, pipeline: str, flow: str) -> None:
    """Refuse to forget a reader that a pipeline file declares or may declare, or one that never
    read the table.

    Raises TerminalError `reader-declared`, `no-reader`.
    """
    known = {(one.pipeline, one.flow) for one in registered.readers(request.layout)}
    tried = f"drop reader {pipeline}/{flow} of table {request.layout.table_name}"
    if pipeline in request.spec.neighbours.unreadable:
        raise TerminalError(
            "reader-declared",
            tried=tried,
            found=f"the file of pipeline {pipeline} can't be loaded, so nobody knows whether the flow still reads",
            changed="nothing",
            next=f"draindown validate {pipeline}",
        )
    if may_read(request, pipeline, flow):
        raise TerminalError(
            "reader-declared",
            tried=tried,
            found="its flow is in the pipeline file: what it has not read would go",
            changed="nothing",
            next=f"draindown run {pipeline}/{flow}   # or take the flow out of the file first",
        )
    if (pipeline, flow) not in known:
        raise TerminalError(
            "no-reader",
            tried=tried,
            found=f"the table has {', '.join(f'{one}/{name}' for one, name in sorted(known)) or 'no readers'}",
            changed="nothing",
            next=f"draindown doctor {request.spec.pipeline}/{request.flow}",
        )


def lacking(request: Request, state: FlowHome) -> str:
    """Return in words what the table lacks for its readers; empty if it lacks nothing, or does not
    exist yet.
    """
    names, log = readers(request), state.tables.target
    lacks = [_TOLD[name] for name in owed(request, log)] if names and log.exists else []
    return (
        f"the table lacks {' and '.join(lacks)} for {', '.join(map(str, names))}" if lacks else ""
    )


def lacking_log(log: Table) -> Mapping[str, str]:
    """Return the property without which the log does not lead to versions that a reader needs;
    empty if it is set.
    """
    return (
        {}
        if interval_seconds(log.properties.get(RETENTION), 0) >= _KEPT_DAYS * 86_400
        else {RETENTION: _KEPT}
    )


def owed(request: Request, log: Table) -> Mapping[str, str]:
    """Return the properties that an existing table lacks for its readers. Statistics concern files
    written later.
    """
    has = log.properties
    owed = {FEED: "true"} if has.get(FEED) != "true" else {}
    owed |= lacking_log(log)
    bounded = has.get(BOUNDED, "").split(",") if has.get(BOUNDED) else []
    more = [
        name for name in _read_by(request) if name not in bounded and _has_statistics(log, name)
    ]
    return owed | ({BOUNDED: ",".join([*bounded, *more])} if bounded and more else {})


def _read_by(request: Request) -> list[str]:
    """Return the columns by which the readers find the rows of touched keys."""
    return list(dict.fromkeys(name for one in readers(request) for name in one.columns))


def _has_statistics(log: Table, name: str) -> bool:
    """Return whether Delta keeps a minimum and maximum of a column, and its property can name
    it.
    """
    plain = name.isascii() and name.isidentifier()
    kind = log.column_types.get(name)
    return (
        plain
        and isinstance(kind, str)
        and kind not in _NO_STATISTICS
        and name not in log.partition_columns
    )
