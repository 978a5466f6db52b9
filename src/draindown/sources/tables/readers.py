"""What the flow that writes a table owes to those that read it: the change feed, and statistics to find rows by."""

from __future__ import annotations

from draindown.lake.layout import FlowLayout
from draindown.lake.table_log import log_of
from draindown.runs.request import Request
from draindown.sources.tables.upstream import FEED


def readers(request: Request) -> list[str]:
    """Return the flows of the pipeline that read the table of the request's flow."""
    return request.spec.graph.readers(request.declared.table_name(request.flow))


def lacking(request: Request, state: FlowLayout) -> str:
    """Return in words what the table lacks for its readers; empty if it lacks nothing, or does not exist yet."""
    names, log = readers(request), log_of(state, state.table)
    if not names or not log.exists or log.properties.get(FEED) == "true":
        return ""
    return f"the change feed is to be switched on, for {', '.join(names)}"
