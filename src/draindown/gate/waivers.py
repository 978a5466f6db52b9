"""Waivers: a person's decision that a named expectation may fail for now."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Collection, Iterable, Mapping
from datetime import datetime
from typing import Any

from pydantic import BaseModel, ConfigDict

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.lake.home import FlowHome
from draindown.lake.revisions import Revisions
from draindown.runs.report import Expectation


class Waiver(BaseModel):
    """A person's decision that one expectation may fail for now.

    `table`: Delta's id of the table whose versions `until_version` counts. None if there was no
    table yet: it counts the versions of any table.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    expectation: str
    by: str
    reason: str
    at: datetime
    until_version: int | None = None
    until: datetime | None = None
    table: str | None = None

    def holds(self, table_id: str, version: int, at: datetime) -> bool:
        """Return whether the waiver applies to a table at `version` at time `at`, both limits
        inclusive.
        """
        # a table that came in the place of this one counts from 0 again: an expired waiver would
        # hold once more
        same = self.table in (None, table_id)
        in_versions = self.until_version is None or (same and version <= self.until_version)
        return in_versions and (self.until is None or at <= self.until)


def waivers(layout: FlowHome) -> dict[str, Waiver]:
    """Return all waivers by expectation, expired ones included. Raises TerminalError
    `state-damaged`.
    """
    return _waived(layout).newest()[1] or {}


def _as_waivers(content: Mapping[str, Any]) -> dict[str, Waiver]:
    return {name: Waiver.model_validate(waiver) for name, waiver in content["waivers"].items()}


def waive(
    layout: FlowHome,
    expectation: str,
    *,
    by: str,
    reason: str,
    known: Collection[str] | None = None,
    until_version: int | None = None,
    until: datetime | None = None,
) -> Waiver:
    """Let the gate pass although `expectation` fails. `known` are the names of the suite's
    expectations, if available.

    Raises TerminalError `waiver-without-reason` or `unknown-expectation`; with `until_version`,
    `table-damaged`.
    """
    tried = f"waive {expectation} for flow {layout.flow}"
    again = f"draindown gate waive {layout.pipeline}/{layout.flow} {shlex.quote(expectation)}"
    if not reason.strip():
        raise TerminalError(
            "waiver-without-reason",
            tried=tried,
            found="no reason; whoever reads the waiver later needs one",
            next=f"{again} --note TEXT",
        )
    if known is not None:
        refuse_unknown(layout, expectation, known, tried)
    target = layout.tables.target
    waiver = Waiver(
        expectation=expectation,
        by=by,
        reason=reason.strip(),
        at=now(),
        until_version=until_version,
        until=until,
        table=target.id if until_version is not None and target.exists else None,
    )
    _change(layout, lambda current: {**current, expectation: waiver})
    return waiver


def refuse_unknown(layout: FlowHome, expectation: str, known: Collection[str], tried: str) -> None:
    """Refuse a name that isn't among `known`, the suite's `names`. Raises TerminalError
    `unknown-expectation`.
    """
    if expectation not in known:
        raise TerminalError(
            "unknown-expectation",
            tried=tried,
            found=f"the suite has {', '.join(sorted(known)) or 'no expectation'}",
            next=f"draindown gate show {layout.pipeline}/{layout.flow}",
        )


def unwaive(layout: FlowHome, expectation: str) -> Waiver:
    """Remove a waiver and return it. Raises TerminalError `unknown-waiver`."""

    def without(current: dict[str, Waiver]) -> dict[str, Waiver]:
        if expectation not in current:
            raise TerminalError(
                "unknown-waiver",
                tried=f"take back the waiver of {expectation} for flow {layout.flow}",
                found=f"waived are: {', '.join(sorted(current)) or 'none'}",
                next=f"draindown gate show {layout.pipeline}/{layout.flow}",
            )
        return {name: one for name, one in current.items() if name != expectation}

    return _change(layout, without)[expectation]


def apply_waivers(
    layout: FlowHome, judged: Iterable[Expectation], table_id: str, version: int
) -> list[Expectation]:
    """Return the expectations, the failing ones with a waiver marked as waived."""
    names = holding(layout, table_id, version)
    return [e.model_copy(update={"waived": not e.success and e.name in names}) for e in judged]


def holding(layout: FlowHome, table_id: str, version: int) -> set[str]:
    """Return the expectations with a waiver that applies to a table at `version` now."""
    at = now()
    return {name for name, waiver in waivers(layout).items() if waiver.holds(table_id, version, at)}


def _waived(layout: FlowHome) -> Revisions[dict[str, Waiver]]:
    lost = "the waivers before it count: one may be missing, or be there that was taken back; say again what holds"
    return Revisions(layout.waivers, _as_waivers, lost)


def _change(
    layout: FlowHome, change: Callable[[dict[str, Waiver]], dict[str, Waiver]]
) -> dict[str, Waiver]:
    """Change the waivers atomically, and return them as they were before. `change` may raise."""
    layout.make()
    documents = _waived(layout)
    while True:
        number, found = documents.newest()
        current = found or {}
        changed = {name: waiver.model_dump(mode="json") for name, waiver in change(current).items()}
        if documents.put(number, {"waivers": changed}):
            return current
