"""Waivers: a person's decision that a named expectation may fail for now."""

from __future__ import annotations

import shlex
from collections.abc import Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.gate.published import one_at_a_time
from draindown.lake.documents import kept, make_home, write_json
from draindown.lake.layout import FlowLayout
from draindown.runs.report import Expectation


class Waiver(BaseModel):
    """A person's word that one expectation may fail for now."""

    model_config = ConfigDict(frozen=True, extra="ignore")

    expectation: str
    by: str
    reason: str
    at: datetime
    until_version: int | None = None
    until: datetime | None = None

    def holds(self, version: int, at: datetime) -> bool:
        """Whether it counts for a table at `version`, at that time (both ends included)."""
        in_versions = self.until_version is None or version <= self.until_version
        return in_versions and (self.until is None or at <= self.until)


def waivers(layout: FlowLayout) -> dict[str, Waiver]:
    """All waivers by expectation, those that no longer hold included. Raises TerminalError `state-damaged`."""
    return kept(layout.waivers, _waivers, without="no expectation is waived any more") or {}


def _waivers(content: Mapping[str, Any]) -> dict[str, Waiver]:
    return {name: Waiver.model_validate(waiver) for name, waiver in content.items()}


def waive(
    layout: FlowLayout,
    expectation: str,
    *,
    by: str,
    reason: str,
    known: Collection[str] | None = None,
    until_version: int | None = None,
    until: datetime | None = None,
) -> Waiver:
    """Let the gate pass although `expectation` fails. `known` are the suite's names (`names`), if at hand.

    Raises TerminalError `waiver-without-reason` or `unknown-expectation`.
    """
    tried = f"waive {expectation} for flow {layout.flow}"
    again = f"draindown gate waive {layout.pipeline} {shlex.quote(expectation)} --flow {layout.flow}"
    if not reason.strip():
        raise TerminalError(
            "waiver-without-reason",
            tried=tried,
            found="no reason; whoever reads the waiver later needs one",
            next=f"{again} --reason TEXT",
        )
    if known is not None:
        refuse_unknown(layout, expectation, known, tried)
    waiver = Waiver(
        expectation=expectation, by=by, reason=reason.strip(), at=now(), until_version=until_version, until=until
    )
    make_home(layout)
    with one_at_a_time(layout.waivers):
        _write_waivers(layout, {**waivers(layout), expectation: waiver})
    return waiver


def refuse_unknown(layout: FlowLayout, expectation: str, known: Collection[str], tried: str) -> None:
    """Refuse a name that isn't among `known`, the suite's `names`. Raises TerminalError `unknown-expectation`."""
    if expectation not in known:
        raise TerminalError(
            "unknown-expectation",
            tried=tried,
            found=f"the suite has {', '.join(sorted(known)) or 'no expectation'}",
            next=f"draindown gate show {layout.pipeline} --flow {layout.flow}",
        )


def unwaive(layout: FlowLayout, expectation: str) -> Waiver:
    """Take a waiver back; returns it. Raises TerminalError `unknown-waiver`."""
    current = waivers(layout)
    if expectation not in current:
        raise TerminalError(
            "unknown-waiver",
            tried=f"take back the waiver of {expectation} for flow {layout.flow}",
            found=f"waived are: {', '.join(sorted(current)) or 'none'}",
            next=f"draindown gate show {layout.pipeline} --flow {layout.flow}",
        )
    with one_at_a_time(layout.waivers):
        _write_waivers(layout, {name: one for name, one in waivers(layout).items() if name != expectation})
    return current[expectation]


def _write_waivers(layout: FlowLayout, current: Mapping[str, Waiver]) -> None:
    write_json(layout.waivers, {name: waiver.model_dump(mode="json") for name, waiver in current.items()})


def apply_waivers(layout: FlowLayout, judged: Iterable[Expectation], version: int) -> list[Expectation]:
    """The same expectations, those that fail and are waived marked so."""
    at = now()
    holding = {name for name, waiver in waivers(layout).items() if waiver.holds(version, at)}
    return [e.model_copy(update={"waived": not e.success and e.name in holding}) for e in judged]
