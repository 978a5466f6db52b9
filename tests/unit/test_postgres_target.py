"""Postgres as a sink: what is said of a table that does not fit, by what its catalog shows. No
server.
"""

from __future__ import annotations

import re
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.sinks.port import SinkColumn
from draindown.sinks.postgres.target import look


class Catalog:
    """A database whose schema `public` has a table `t` of bigint columns, or none."""

    def __init__(self, *columns: str, there: bool = True) -> None:
        self._columns, self._there = columns, there

    def execute(self, statement: str, parameters: list[Any]) -> Any:
        del parameters
        rows: list[tuple[Any, ...]] = []
        if "pg_index" in statement:
            key = [self._columns[0]]
            rows = [("public", "t_pkey", "t_pkey", "public", "t", True, False, key, [], key)]
        elif "pg_class" in statement and self._there:
            rows = [(1, "public", "t", "r", True, True, True, "u")]
        elif "pg_attribute" in statement:
            rows = [
                (name, "int8", -1, "bigint", False, False, "bigint", True, True, True, True)
                for name in self._columns
            ]
        return _Rows(rows)


class _Rows(list[tuple[Any, ...]]):
    def fetchone(self) -> tuple[Any, ...] | None:
        return self[0] if self else None


def refusal(catalog: Catalog, *names: str) -> TerminalError:
    columns = [SinkColumn(name, "bigint", key=not at) for at, name in enumerate(names)]
    with pytest.raises(TerminalError) as error:
        look(catalog, "t", "t at host", columns).check(columns)  # type: ignore[arg-type]
    return error.value


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("long", ["x" * 64, "Größe" * 10, "名" * 22])
@pytest.mark.parametrize("at", [0, 1])
def test_a_name_that_postgres_would_cut_gets_no_statement_but_the_way_out(
    there: bool, long: str, at: int
) -> None:
    names = ["id", "n"]
    names[at] = long
    catalog = Catalog("id", "n", long.encode()[:63].decode(errors="ignore"), there=there)
    error = refusal(catalog, *names)
    assert error.code == ("sink-unfit" if there else "sink-missing")
    assert (
        f"{long}: Postgres has names of at most 63 bytes; give it a shorter one in `columns`"
        in error.found
    )
    assert all(step.startswith("draindown validate ") for step in error.next)


@pytest.mark.parametrize("there", [True, False])
@pytest.mark.parametrize("name", ["x" * 63, "ü" * 31, "名" * 21])
def test_the_statement_for_a_column_names_it_whole(there: bool, name: str) -> None:
    error = refusal(Catalog("id", there=there), "id", name)
    assert re.search(f'(ADD COLUMN|,) "{name}" bigint', error.next[0])
