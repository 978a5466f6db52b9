"""Whether new input may be pinned: it may equal known input under another name, which would be
appended again.
"""

from __future__ import annotations

from datetime import datetime

from draindown.base.findings import Finding
from draindown.lake.home import FlowHome
from draindown.runs.request import Request
from draindown.sources.port import Source


def refuse(request: Request, source: Source, state: FlowHome, now: datetime) -> list[Finding]:
    """Refuse known files of another directory, if the table would hold their rows twice. Raises
    `files-moved`.

    Of a table to which the same input makes no difference, return a finding.
    """
    found = source.named.moved(state, now) if source.named else None
    if found is None:
        return []
    if not request.declared.target.kind.idempotent:
        raise found.error(state)
    detail = f"{found}; the next run reads them again, which changes no row"
    return [Finding(kind="moved", subject=f"files of {request.flow}", detail=detail)]
