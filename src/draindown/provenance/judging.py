"""The port of what tells the fates of records of a table in which none replaces another whole."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from draindown.config.landing import FlowSpec
from draindown.lake.home import FlowHome
from draindown.lake.table import Table, identifier, literal
from draindown.provenance.fates import Judge
from draindown.provenance.model import Place
from draindown.provenance.records import Names, Values

Row = Mapping[str, Any]


@dataclass(frozen=True)
class Asked:
    """A key of a table. `row`: the row in question, or None. `every`: with the records that are of
    other rows.
    """

    flow: FlowSpec
    layout: FlowHome
    key: Values
    row: Row | None
    every: bool


class Judging(Protocol):
    """What a kind of table tells of its records."""

    def judge(self, asked: Asked) -> Judge:
        """Return what tells the fates of a key's records, batch after batch."""

    def said(self, records: Sequence[Place]) -> str:
        """Return which records a row is from, in a sentence."""


def of_key(flow: FlowSpec, path: str, key: Values) -> list[Row]:
    """Return the rows of a key in a table of the flow; none if there is no table."""
    log, keys = Table(path), tuple(flow.target.keys)
    some = log.rows(f"select * from t where {_is(keys, key)}") if log.exists else []
    return [row for row in some if tuple(row[name] for name in keys) == key]


def _is(names: Names, key: Values) -> str:
    """Return a condition of which all rows of a key are true, in the SQL of a query; other rows may
    be.
    """
    texts = [
        f"{identifier(name)} = {literal(value)}"
        for name, value in zip(names, key, strict=True)
        if isinstance(value, str)
    ]
    return " and ".join(texts) or "true"
