"""Rows that a foreign commit wrote or deleted: which one, and what a person decided about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import pyarrow as pa

from draindown.base.duck import connected
from draindown.base.errors import TerminalError
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.flow import foreign, foreign_rows
from draindown.gate import acceptance
from draindown.gate.acceptance import ROWS, Acceptance
from draindown.lake.home import FlowHome
from draindown.lake.table import identifier, literal
from draindown.ledger.foreign import ForeignCommit, ForeignCommits
from draindown.proof.behind import literal_of
from draindown.provenance.model import State, Trace

ORIGIN = "_origin"
"""The name of what identifies a row of a table without keys: `unit:position`."""


def condition(key: Mapping[str, Any]) -> str:
    """Return the SQL that selects the rows of a key. Raises ValueError if a value can't be asked
    for.
    """
    if ORIGIN in key:
        unit, _, position = str(key[ORIGIN]).rpartition(":")
        number = int(position) if position.isdecimal() else -1
        return f"_origin['input'] = {literal(unit)} and _origin['position'] = {number}"
    return " and ".join(_equals(name, value) for name, value in key.items()) or "true"


def _equals(name: str, value: Any) -> str:
    if value is None:
        return f"{identifier(name)} is null"
    text = literal_of(value)
    if text is None:
        raise ValueError(f"{name} is of a type that can't be asked for")
    return f"{identifier(name)} = {text}"


@dataclass(frozen=True)
class _Touched:
    """The newest foreign commit that changed rows of a key, and whether it left one."""

    commit: ForeignCommit
    left: bool


class ForeignWriter:
    """The foreign commits of one table, asked about rows and keys."""

    def __init__(self, flow: FlowSpec | DerivedFlow, layout: FlowHome) -> None:
        self._flow, self._layout = flow, layout

    @cached_property
    def _accepted(self) -> list[Acceptance]:
        return acceptance.standing(self._layout, self._commits)

    @cached_property
    def _commits(self) -> ForeignCommits:
        return foreign.in_table(self._layout)

    def marked(self, trace: Trace) -> Trace:
        """Return the trace of a row, or of a key that is not there, with the foreign commit that it
        is due to.
        """
        if not self._commits.commits:
            return trace
        since = trace.batch.table_version if trace.batch else -1
        touched, gone = self._newest(trace.key, since)
        if touched is None or touched.left != (trace.row is not None):
            return replace(trace, gone=[*trace.gone, *gone])
        what = "wrote" if trace.batch is None or trace.row is None else "changed"
        said = f"{touched.commit.name} ({touched.commit.writer}) {what if touched.left else 'deleted'} it; "
        said += self._decision(touched.commit)
        then = (
            []
            if self._of(touched.commit)
            else [foreign.deciding(self._layout, self._flow, touched.commit)]
        )
        state: State = "foreign" if touched.left else "deleted"
        return replace(
            trace, state=state, said=said, gone=[*trace.gone, *gone], next=then or trace.next
        )

    def _of(self, commit: ForeignCommit) -> Acceptance | None:
        table = self._layout.tables.target.id
        return next((one for one in self._accepted if one.is_of(table, commit)), None)

    def _decision(self, commit: ForeignCommit) -> str:
        own = self._of(commit)
        if own is None:
            return "it is no batch of this flow, and nobody has decided about it"
        return f"accepted by {own.by} at {own.at:%Y-%m-%d %H:%M} UTC: {own.reason}"

    def _newest(self, key: Mapping[str, Any], since: int) -> tuple[_Touched | None, list[str]]:
        """Return the newest foreign commit after version `since` that changed rows of a key, and
        what can't be read.
        """
        gone: list[str] = []
        for commit in reversed(self._commits.commits):
            if commit.version <= since:
                break
            try:
                numbers = self._numbers(commit, key)
            except TerminalError as error:
                gone.append(f"whether {commit.name} ({commit.operation}) changed it: {error.found}")
                continue
            if numbers:
                return _Touched(commit, any(number > 0 for number in numbers)), gone
        return None, gone

    def _numbers(self, commit: ForeignCommit, key: Mapping[str, Any]) -> list[int]:
        """Return by how many rows of a key a commit made the table differ: an image each."""
        own, where = self._of(commit), condition(key)
        if own is None:
            found = foreign_rows.changed_by(self._layout, self._flow, commit, where).images
            return [int(number) for number in found[ROWS].to_pylist()]
        images: pa.Table = acceptance.images(self._layout, own)
        if not all(name in images.column_names for name in key):
            return []
        with connected() as db:
            db.register("images", images)
            return [
                int(number)
                for (number,) in db.execute(f"select {ROWS} from images where {where}").fetchall()
            ]
