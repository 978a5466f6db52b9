"""The gate's memory: what is published, what is not yet, which expectations a person waived. No Spark, no GX."""

from __future__ import annotations

import json
import shlex
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from itertools import count
from typing import Any

from deltalake import DeltaTable
from filelock import FileLock
from pydantic import BaseModel, ConfigDict

from draindown import ledger, tables
from draindown.errors import GateFailed, TerminalError
from draindown.expressions import check_code_free
from draindown.files import kept, write_json
from draindown.layout import FlowLayout
from draindown.report import CheckPart, Expectation, make_home, now

# These commits change no row, so a published version may be carried over them. Delta marks what they write as no
# change of data; anything not listed counts as a change.
_KEEPS_ROWS = frozenset(
    (
        *("OPTIMIZE", "REORG", "VACUUM START", "VACUUM END", "CREATE TABLE", "ADD COLUMNS", "CHANGE COLUMN"),
        *("SET TBLPROPERTIES", "UNSET TBLPROPERTIES", "UPGRADE PROTOCOL"),
    )
)
_SHOWN_FAILURES = 10


class Published(BaseModel):
    """The newest version of a target that passed its gate. `changed_at` is the greatest `_changed_at` in it.

    `committed_ms`: when that version was committed, by the table's log, so that another commit that came to bear its
    number, in a table that was put back from a copy, is not taken for it. `distinct`: ids of questions of uniqueness
    under which no row of it shares its values with another.
    """

    model_config = ConfigDict(frozen=True, extra="ignore")

    version: int
    table_id: str
    changed_at: datetime | None
    at: datetime
    run_id: str
    rows: int
    committed_ms: int | None = None
    distinct: tuple[str, ...] = ()


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


@dataclass(frozen=True)
class Unpublished:
    """Where a target stands against its published version.

    Attributes:
        version: the target's newest version; what a check reads.
        table_id: Delta's id of the table; another id is another table, whatever its version number.
        committed_ms: when that version was committed, by the log.
        published: the pointer, None where it doesn't concern this table.
        since: rows with a later `_changed_at` are unpublished; None: all are.
        pending: whether a commit since then may have changed rows.
        deleted: rows that commits since then deleted; they leave no row to judge.
    """

    version: int
    table_id: str
    committed_ms: int | None = None
    published: Published | None = None
    since: datetime | None = None
    pending: bool = True
    deleted: int = 0

    def moved(self) -> Published:
        """The pointer, moved over commits that changed no row. Only where there is one."""
        assert self.published is not None
        return self.published.model_copy(update={"version": self.version, "committed_ms": self.committed_ms})


class Refused(GateFailed):
    """The gate's refusal, with everything it judged."""

    part: CheckPart | None = None


def published(layout: FlowLayout) -> Published | None:
    """The published pointer, or None where nothing was published yet. Raises TerminalError `state-damaged`."""
    lost = "the next check judges all rows; until it passed, nothing is published"
    return kept(layout.published, Published.model_validate, without=lost)


def publish(layout: FlowLayout, pointer: Published) -> Published:
    """Move the published pointer, whole or not at all, and never back to an older version of the same table.

    Returns the pointer as it stands then: a slow check may end after one of a newer version.
    """
    make_home(layout)
    with _one_at_a_time(layout.published):  # a check holds no lease: two of them may end at once
        newest = published(layout)
        later = newest is not None and newest.table_id == pointer.table_id and newest.version > pointer.version
        if newest is not None and later and _names_a_commit(layout, newest):
            return newest
        if newest is not None and pointer.table_id != newest.table_id == tables.table_id(layout.table):
            return newest  # what was judged is another table, which was put aside meanwhile
        write_json(layout.published, pointer.model_dump(mode="json"))
    return pointer


def _names_a_commit(layout: FlowLayout, pointer: Published) -> bool:
    """Whether the table still has the version that was published: one put back from a copy ends before it, or has
    another commit of that number.
    """
    table = DeltaTable(layout.table)
    after = table.version() - pointer.version
    return after >= 0 and not _is_another(pointer, table.history(after + 1))


def _is_another(pointer: Published, commits: Sequence[dict[str, Any]]) -> bool:
    own = [commit.get("timestamp") for commit in commits if commit["version"] == pointer.version]
    return pointer.committed_ms is not None and any(at != pointer.committed_ms for at in own)


def _one_at_a_time(path: str) -> FileLock:
    return FileLock(f"{path}.lock", mode=0o600)


def unpublished(layout: FlowLayout) -> Unpublished | None:
    """What the target holds beyond its published version, or None where there is no target. Reads its log alone."""
    if not DeltaTable.is_deltatable(layout.table):
        return None
    table = DeltaTable(layout.table)
    version, pointer = table.version(), published(layout)
    between = max(0, version - pointer.version) if pointer else 0
    commits = table.history(between + 1)
    found = Unpublished(version, str(table.metadata().id), next((c.get("timestamp") for c in commits), None))
    if pointer is None or pointer.table_id != found.table_id or pointer.version > version:
        return found
    if _is_another(pointer, commits):
        return found
    later = [commit for commit in commits if commit["version"] > pointer.version]
    return _since(found, pointer, later, complete=len(later) == between)


def _since(found: Unpublished, pointer: Published, commits: Sequence[dict[str, Any]], *, complete: bool) -> Unpublished:
    changes = [c for c in commits if c.get("operation") not in _KEEPS_ROWS and not ledger.is_fence(c)]
    rows = [ledger.from_commit(commit) for commit in changes]
    # A commit by other hands stamps no `_changed_at`, and of an expired log nothing is known: then all rows are judged.
    known = complete and None not in rows
    return replace(
        found,
        published=pointer,
        since=pointer.changed_at if known else None,
        pending=bool(changes) or not complete,
        deleted=sum(row.deleted for row in rows if row is not None),
    )


def carry(layout: FlowLayout) -> Published | None:
    """Move the pointer over commits that changed no row; returns it as it stands then.

    Maintenance rewrites files, and what it rewrote is removed some day: the pointer must not stay behind it.
    """
    state = unpublished(layout)
    if state is None or state.published is None:
        return None
    if state.pending or state.version == state.published.version:
        return state.published
    return publish(layout, state.moved())


def oldest_needed_removal(layout: FlowLayout) -> datetime | None:
    """When the first commit after the published version was made, or None if that version is the newest.

    Files that this commit or a later one removed are still needed by readers of the published version.
    """
    state = unpublished(layout)
    if state is None or state.published is None or state.version == state.published.version:
        return None
    commits = DeltaTable(layout.table).history(state.version - state.published.version)
    return datetime.fromtimestamp(min(commit["timestamp"] for commit in commits) / 1000, UTC)


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
    with _one_at_a_time(layout.waivers):
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
    with _one_at_a_time(layout.waivers):
        _write_waivers(layout, {name: one for name, one in waivers(layout).items() if name != expectation})
    return current[expectation]


def _write_waivers(layout: FlowLayout, current: Mapping[str, Waiver]) -> None:
    write_json(layout.waivers, {name: waiver.model_dump(mode="json") for name, waiver in current.items()})


def apply_waivers(layout: FlowLayout, judged: Iterable[Expectation], version: int) -> list[Expectation]:
    """The same expectations, those that fail and are waived marked so."""
    at = now()
    holding = {name for name, waiver in waivers(layout).items() if waiver.holds(version, at)}
    return [e.model_copy(update={"waived": not e.success and e.name in holding}) for e in judged]


def names(suite: Mapping[str, Any] | None) -> list[str]:
    """A name per expectation of the suite, in its order: what waivers, reports and pages call them.

    `meta.draindown.name` if given, else type and columns (`expect_column_values_to_not_be_null:status`); the second
    of a kind gets `#2`.
    """
    wanted = [_name(config) for config in expectations_of(suite)]
    taken, found = set(wanted), list[str]()
    for name in wanted:
        # a name that someone gave stays with who has it, even where it looks like a numbered one
        numbered = (f"{name}#{n}" for n in count(2))
        chosen = name if name not in found else next(n for n in numbered if n not in taken)
        taken.add(chosen)
        found.append(chosen)
    return found


def expectations_of(suite: Mapping[str, Any] | None) -> list[dict[str, Any]]:
    """The suite's expectation configurations, as GX wrote them (`expectation_type` of older suites read as `type`)."""
    listed = (suite or {}).get("expectations") or []
    return [{**config, "type": str(config.get("type") or config.get("expectation_type") or "?")} for config in listed]


def options(config: Mapping[str, Any]) -> dict[str, Any]:
    """What the suite's author told draindown about one expectation, in its `meta.draindown`."""
    own = (config.get("meta") or {}).get("draindown")
    return dict(own) if isinstance(own, dict) else {}


def unsafe(config: Mapping[str, Any]) -> str:
    """Why an expectation may not be judged: it would run code or read files. Empty where it is plain data."""
    kwargs = config.get("kwargs") or {}
    for name, value in kwargs.items():
        if "query" in name:
            return f"{name}: SQL of a suite could run code or read files; use an expectation about columns"
        if name == "row_condition" and isinstance(value, str):
            try:
                check_code_free(value)
            except ValueError as error:
                return f"row_condition: {error}"
    return next((f"$ref to {ref}: a schema may refer to itself only" for ref in _references(kwargs)), "")


def _references(value: Any) -> Iterable[str]:
    """Targets of JSON Schema references that lead out of their schema: they would be fetched."""
    if isinstance(value, str) and '"$ref"' in value:
        with suppress(ValueError):
            value = json.loads(value)
    if isinstance(value, dict):
        ref = value.get("$ref")
        yield from [ref] if isinstance(ref, str) and not ref.startswith("#") else []
        value = list(value.values())
    if isinstance(value, list):
        for part in value:
            yield from _references(part)


def _name(config: Mapping[str, Any]) -> str:
    if options(config).get("name"):
        return str(options(config)["name"])
    columns = columns_of(config)
    return f"{config['type']}:{','.join(columns)}" if columns else str(config["type"])


def columns_of(config: Mapping[str, Any]) -> list[str]:
    """The columns that an expectation names, in its order."""
    kwargs = config.get("kwargs") or {}
    single = [str(kwargs[k]) for k in ("column", "column_A", "column_B") if kwargs.get(k)]
    return single + [str(c) for c in kwargs.get("column_list") or ()]


def refusal(layout: FlowLayout, part: CheckPart, *, keyed: bool) -> Refused:
    """The error for a failed check, ready to raise; carries `part`. Only a keyed table's rows can be withdrawn."""
    failed = [e for e in part.expectations if not e.success and not e.waived]
    shown = [_sentence(e) for e in failed[:_SHOWN_FAILURES]]
    if len(failed) > len(shown):
        shown.append(f"and {len(failed) - len(shown)} more")
    waive, withdraw = (f"draindown gate {verb} {layout.pipeline}" for verb in ("waive", "quarantine"))
    single = [e for e in failed if keyed and e.scope == "changed" and e.unexpected]
    before = "none was published yet" if part.published_before is None else f"version {part.published_before} stays"
    error = Refused(
        "gate-failed",
        tried=f"publish version {part.version} of {layout.table_name}: {part.changed_rows} rows not yet published",
        found="; ".join(shown),
        changed=f"nothing was published ({before}); results: {part.page or layout.validations('RUN')}",
        next=[
            f"draindown gate show {layout.pipeline} --flow {layout.flow}",
            *(f"{withdraw} {shlex.quote(e.name)} --flow {layout.flow}" for e in single[:1]),
            *(f"{waive} {shlex.quote(e.name)} --flow {layout.flow} --reason TEXT" for e in failed[:1]),
        ],
    )
    error.part = part
    return error


def _sentence(e: Expectation) -> str:
    counts = f"{e.unexpected} of {e.judged} rows" if e.judged else ""
    sample = f"such as {', '.join(map(str, e.sample[:3]))}" if e.sample else ""
    return f"{e.name}: " + ", ".join(part for part in (counts, sample, e.detail[:300]) if part)
