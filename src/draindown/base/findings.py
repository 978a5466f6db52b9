"""Findings: what a person should know although it did not stop the run."""

from __future__ import annotations

from typing import Literal

from draindown.base.models import Frozen


class Finding(Frozen):
    """Something that a person should know although it did not stop the run.

    `subject` names a file, a field, a column, the table, or a start of the step that died before it
    could report.
    """

    kind: (
        Literal[
            "parked",
            "changed",
            "vanished",
            "ignored",
            "unsettled",
            "died",
            "unwritable",
            "retention",
        ]
        | Literal[
            "new-field",
            "new-column",
            "many-fields",
            "missing-column",
            "pruning-lost",
            "quarantined",
        ]
        | Literal[
            "waiting", "late", "unread", "incomplete", "not-replayed", "stopped", "sink-stale"
        ]
        | Literal["lookup-missed", "lookup-amplified", "moved", "foreign", "altered", "expectation"]
    )
    subject: str
    detail: str
    next: str = ""
