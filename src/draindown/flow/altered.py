"""Refuse tables whose columns another engine altered since the flow's newest commit; report what is
harmless.

A MERGE writes by name: it would add a renamed column again, and read what another engine calls by
an old name as NULL.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime

from deltalake.exceptions import DeltaError

from draindown.base.errors import TerminalError
from draindown.base.findings import Finding
from draindown.base.formatting import count
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.flow import integrity
from draindown.lake import metadata
from draindown.lake.commits import Commit
from draindown.lake.home import FlowHome
from draindown.lake.metadata import Alteration, Shape
from draindown.lake.table import Table
from draindown.ledger.rows import from_commit, swap_of

_LOOKS = (5, 50, 1000)
"""Newest commits to search for the flow's own: most often one of the first is."""
_NO_METADATA = frozenset(("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "DELETE", "UPDATE"))
_SHOWN = 3


@dataclass(frozen=True)
class Altered:
    """What another engine altered in a table since version `since`, which the flow wrote, by
    `commits`, newest first.

    `since` is None for a table beside the target, whose metadata alone tells.
    """

    path: str
    alterations: tuple[Alteration, ...]
    commits: tuple[Commit, ...] = ()
    since: int | None = None

    @property
    def harmful(self) -> tuple[Alteration, ...]:
        """The alterations by which a flow would write or read other values."""
        return tuple(one for one in self.alterations if not one.harmless)

    @property
    def text(self) -> str:
        """The harmful alterations and the commits, in one line."""
        return f"{self.path}: {'; '.join(one.found for one in self.harmful)}{self._by}"

    @property
    def harmless_text(self) -> str:
        """The harmless alterations and the commits; empty if there is none."""
        found = [one.found for one in self.alterations if one.harmless]
        return f"{'; '.join(found)}{self._by}" if found else ""

    @property
    def _by(self) -> str:
        if not self.commits:
            return ""
        shown = ", ".join(map(_told, reversed(self.commits[-_SHOWN:])))
        more = len(self.commits) - _SHOWN
        return f" (since version {self.since}: {shown}{f' and {more} more' if more > 0 else ''})"

    @property
    def undo(self) -> list[str]:
        """The statements of Spark SQL that take the harmful alterations back; empty if none do."""
        table, note = f"TABLE delta.`{self.path}`", "   # in Spark SQL with Delta"
        if all(one.undo for one in self.harmful):
            return [f"{'; '.join(f'ALTER {table} {one.undo}' for one in self.harmful)}{note}"]
        if self.since is None:
            return []
        return [
            f"RESTORE {table} TO VERSION AS OF {self.since}{note}; it also takes back what others wrote since"
        ]


def _told(commit: Commit) -> str:
    at = datetime.fromtimestamp(commit.timestamp / 1000, UTC)
    return f"version {commit.version} {commit.operation} at {at:%Y-%m-%d %H:%M} UTC by {commit.engine or 'unknown'}"


def of_target(
    layout: FlowHome, flow: FlowSpec | DerivedFlow, log: Table | None = None
) -> Altered | None:
    """Return what another engine altered in the target since the flow's newest commit; None if
    nothing.

    Opens the log of an earlier version only if a commit since may have changed metadata. `log`:
    that of the target.
    """
    log = log or layout.tables.target
    if not log.is_whole:
        return None
    base, commits = _since_own(layout, log)
    if base is None or not commits:
        return None
    try:
        before = Shape.at(layout.tables.target.path, base)
    except (DeltaError, OSError):  # Delta removed the commits before its newest checkpoint
        return None
    found = [_weighed(one, flow) for one in metadata.alterations(before, Shape.of(log))]
    clustered = [one for one in commits if one.operation == "CLUSTER BY"]
    found += [Alteration("", "the table is clustered by other columns", harmless=True)] * bool(
        clustered
    )
    return Altered(layout.tables.target.path, tuple(found), tuple(commits), base) if found else None


def _since_own(layout: FlowHome, log: Table) -> tuple[int | None, list[Commit]]:
    """Return the version of the flow's newest commit, and the later commits that may have changed
    metadata.
    """
    for look in _LOOKS:
        newest = log.commits(look)
        own = next((at for at, commit in enumerate(newest) if _is_own(layout, commit)), None)
        if own is not None:
            later = [
                one
                for one in newest[:own]
                if not one.is_fence and one.operation not in _NO_METADATA
            ]
            return newest[own].version, later
        if len(newest) < look:
            break
    return None, []


def _is_own(layout: FlowHome, commit: Commit) -> bool:
    of = from_commit(commit) or swap_of(commit)
    return of is not None and (of.pipeline, of.flow) == (layout.pipeline, layout.flow)


def _weighed(one: Alteration, flow: FlowSpec | DerivedFlow) -> Alteration:
    """Return an alteration as harmless if it is of a column that the flow certainly does not write.

    As harmful if the table is append-only, and rows of the flow change.
    """
    if one.is_append_only:
        return replace(one, harmless=not flow.target.kind.idempotent)
    top, known = one.column.partition(".")[0], flow.known_columns
    is_other = bool(top) and known is not None and top not in known and not top.startswith("_")
    return replace(one, harmless=True) if is_other and "NOT NULL" not in one.found else one


def of_others(layout: FlowHome) -> Iterator[Altered]:
    """Yield what another engine altered in the tables beside the target."""
    for table in integrity.tables(layout):
        if table.path == layout.tables.target.path or not table.is_whole:
            continue
        if found := metadata.beside(Shape.of(table)):
            yield Altered(table.path, tuple(found))


def refuse(layout: FlowHome, flow: FlowSpec | DerivedFlow) -> None:
    """Refuse to continue with tables that another engine altered.

    Raises TerminalError `table-altered`, `table-restricted`.
    """
    target = of_target(layout, flow)
    found = [*([target] if target is not None and target.harmful else []), *of_others(layout)]
    if found:
        raise error(layout, found)


def refuse_target(layout: FlowHome, flow: FlowSpec | DerivedFlow, log: Table) -> None:
    """Refuse to write to a target that another engine altered. Raises like `refuse`."""
    target = of_target(layout, flow, log)
    if target is not None and target.harmful:
        raise error(layout, [target])


def error(layout: FlowHome, found: Sequence[Altered]) -> TerminalError:
    """Return the error of altered tables, with what takes the alterations back.

    Its code is `table-restricted` if Delta would only refuse writes.
    """
    flow = f"{layout.pipeline}/{layout.flow}"
    undo = [statement for one in found for statement in one.undo]
    anew = f"draindown rebuild {flow}   # reads all input into a table as the spec says it"
    if any(one.path != layout.tables.target.path for one in found):
        anew = f"restore {' and '.join(one.path for one in found)} from a copy, as a whole"
    restricted = all(alteration.restricts for one in found for alteration in one.harmful)
    return TerminalError(
        "table-restricted" if restricted else "table-altered",
        tried=f"continue flow {layout.flow} of pipeline {layout.pipeline}",
        found="; ".join(one.text for one in found),
        next=[*undo, anew],
    )


def refuse_append_only(layout: FlowHome) -> None:
    """Refuse to rebuild a target that is append-only, whose rows the swap replaces.

    Raises TerminalError `table-restricted`.
    """
    table = layout.tables.target
    if not table.is_whole or not metadata.is_append_only(table.properties):
        return
    again = f"draindown rebuild {layout.pipeline}/{layout.flow}"
    raise TerminalError(
        "table-restricted",
        tried=again,
        found=f"{table.path}: the table is append-only, and a rebuild replaces its rows",
        next=[
            f"ALTER TABLE delta.`{table.path}` UNSET TBLPROPERTIES ('delta.appendOnly')   # in Spark SQL with Delta",
            again,
        ],
        in_order=True,
    )


def findings(layout: FlowHome, flow: FlowSpec | DerivedFlow) -> list[Finding]:
    """Return the harmless alterations of the target since the flow's newest commit."""
    target = of_target(layout, flow)
    if target is None or not target.harmless_text:
        return []
    number = sum(one.harmless for one in target.alterations)
    changes = count(number, "change")  # of a driver that died before its MERGE, too
    detail = f"{changes} of metadata since the flow's newest commit: {target.harmless_text}; the flow continues"
    return [Finding(kind="altered", subject=layout.tables.target.path, detail=detail)]
