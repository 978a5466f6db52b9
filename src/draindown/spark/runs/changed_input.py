"""Errors for input files whose content changed after the intake recorded them."""

from __future__ import annotations

import shlex
from collections.abc import Sequence

from draindown.base import formatting
from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.runs.request import Request
from draindown.sources.files import intake
from draindown.spark.sources.readers import InputFile


def refuse_other_bytes(request: Request, files: Sequence[InputFile]) -> None:
    """Check that the files are as the intake recorded them. Raises TerminalError `input-changed`."""
    found = intake.pinned(files)
    if found:
        gone = " ".join(f"--path {shlex.quote(finding.subject)}" for finding in found[:5])
        raise TerminalError(
            "input-changed",
            tried=f"read {formatting.count(len(files), 'file')} of flow {request.flow} as they were taken in",
            found="; ".join(f"{finding.subject}: {finding.detail}" for finding in found[:5]),
            changed="nothing of this batch is in the table",
            next=_without(request, gone),
        )


def _without(request: Request, gone: str) -> list[str]:
    flow = f"{request.spec.pipeline} --flow {request.flow}"
    if request.staged:
        return [
            f"put the file back as it was (size and content), then: draindown rebuild {flow} --yes",
            f"draindown rebuild {flow} --accept-missing --yes   # its rows will be missing",
        ]
    return [
        "put the file back as it was (size and content), then: draindown run " + request.spec.pipeline,
        f"draindown quarantine discard {flow} --files {gone} --yes   # it is never read",
    ]


def refuse_changed(request: Request, findings: Sequence[Finding]) -> None:
    """Fail the step, after everything else was drained, if a file's content changed after it was read.

    Raises TerminalError `input-changed`.
    """
    changed = [finding for finding in findings if finding.kind == "changed"]
    if changed:
        raise TerminalError(
            "input-changed",
            tried=f"drain flow {request.flow}",
            found="; ".join(f"{finding.subject}: {finding.detail}" for finding in changed[:5]),
            changed="everything else was drained; the new bytes of these files were not read",
            next=[finding.next for finding in changed[:1] if finding.next]
            + [f"draindown quarantine list {request.spec.pipeline} --files"],
        )
