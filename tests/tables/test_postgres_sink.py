"""Postgres as a sink: types, what is missing, who refuses what, and a sender that dies."""

from __future__ import annotations

import datetime as dt
import json
import logging
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pyarrow as pa
import pytest

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.config.postgres_sink import PostgresSink
from draindown.sinks.port import FATE, SinkColumn
from draindown.sinks.postgres import connection
from draindown.sinks.postgres.failures import NOT_BEGUN, NOT_COMMITTED, UNCERTAIN
from draindown.sinks.postgres.sink import PostgresTable
from scripts.postgres_server import USER, WORD, PostgresServer
from tests.sinks import contract
from tests.sinks.contract import BATCH, COLUMNS, PLACE, SCHEMA


def table(
    server: PostgresServer, columns: str = "id bigint primary key, name text, note text"
) -> str:
    name = server.new_name()
    server.execute(f"create schema {name} authorization {USER}")
    server.execute(f"create table {name}.t ({columns})")
    server.execute(f"alter table {name}.t owner to {USER}")
    return f"{name}.t"


def sink(server: PostgresServer, name: str, word: str = WORD, **more: Any) -> PostgresTable:
    spec = PostgresSink(**{"url": server.url(), "table": name, **more})
    return PostgresTable(spec, PLACE, {"DRAINDOWN_SECRET_PG": word})


def fails(action: Any) -> DraindownError:
    with pytest.raises(DraindownError) as raised:
        action()
    return raised.value


def test_every_type_arrives_as_it_is(postgres: PostgresServer) -> None:
    kinds = {
        "id": ("bigint", "bigint primary key", pa.int64(), 2**63 - 1),
        "yes": ("boolean", "boolean", pa.bool_(), True),
        "net": (
            "decimal(38,10)",
            "numeric(38,10)",
            pa.decimal128(38, 10),
            Decimal("-1234567890.0000000001"),
        ),
        "ratio": ("double", "double precision", pa.float64(), float("inf")),
        "raw": ("binary", "bytea", pa.binary(), b"\x00\xff'\\"),
        "day": ("date", "date", pa.date32(), dt.date(1, 1, 1)),
        "at": (
            "timestamp",
            "timestamptz",
            pa.timestamp("us", "UTC"),
            dt.datetime(2026, 3, 29, 1, 30, 0, 7, dt.UTC),
        ),
        "local": (
            "timestamp_ntz",
            "timestamp",
            pa.timestamp("us"),
            dt.datetime(9999, 12, 31, 23, 59, 59, 999999),
        ),
        "tags": ("array<string>", "jsonb", pa.list_(pa.string()), ["a", None, '"']),
        "part": (
            "struct<n:decimal(5,2)>",
            "jsonb",
            pa.struct([("n", pa.decimal128(5, 2))]),
            {"n": Decimal("1.20")},
        ),
    }
    name = table(postgres, ", ".join(f"{column} {kind[1]}" for column, kind in kinds.items()))
    columns = [SinkColumn(column, kind[0], column == "id") for column, kind in kinds.items()]
    schema = pa.schema(
        [*((column, kind[2]) for column, kind in kinds.items()), (FATE, pa.string())]
    )
    row = {column: kind[3] for column, kind in kinds.items()} | {FATE: "upsert"}
    found = sink(postgres, name)
    found.fence(5)
    found.check(columns)
    found.send(BATCH, columns, [pa.RecordBatch.from_pylist([row], schema)])
    found.close()
    ((*values, tags, part),) = postgres.execute(f"select * from {name}")
    assert values == [kind[3] for kind in kinds.values()][:-2]
    assert tags == ["a", None, '"'] and part == {"n": "1.20"}


def test_values_that_the_type_refuses_are_named(postgres: PostgresServer) -> None:
    name = table(postgres, "id int primary key, name varchar(3), note jsonb")
    bad = contract.upserts(
        {2**31: ("a", None), 2: ("abcd", None), 3: ("é€😀", '"\\u0000"'), 4: ("a", '"\\\\u0000"')}
    )
    columns = [replace(COLUMNS[0], type="bigint"), *COLUMNS[1:]]
    reasons = {"out-of-range: id": 1, "text-too-long: name": 1, "nul-in-text: note": 1}
    assert contract.refused(sink(postgres, name), bad, columns) == reasons


REFUSING = {
    "a check": ("check (name <> 'bad')", ""),
    "a deferred constraint": ("constraint u unique (note) deferrable initially deferred", ""),
    "a trigger": (
        "",
        """create function {s}.no() returns trigger language plpgsql as $$ begin
             if new.name = 'bad' then raise exception 'no such name'; end if; return new; end $$;
           create trigger t before insert or update on {t} for each row execute function {s}.no()""",
    ),
    "a value of json": ("j json", ""),
    "an index whose rows are shorter": ("", "create index on {t} (note)"),
}
# compressed it is longer than an index takes
LONG = "".join(random.Random(5).choices("abcdefghijklmnop", k=20_000))


@pytest.mark.parametrize("why", REFUSING)
def test_the_row_that_only_the_server_refuses_is_named_by_its_key(
    postgres: PostgresServer, why: str
) -> None:
    more, then = REFUSING[why]
    columns = "id bigint, day date, name text, note text, primary key (id, day)"
    name = table(postgres, ", ".join(filter(None, [columns, more])))
    if then:
        postgres.execute(then.format(s=name.partition(".")[0], t=name))
    sent = (
        SinkColumn("id", "bigint", True),
        SinkColumn("day", "date", True),
        SinkColumn("name", "string"),
    )
    sent += (SinkColumn("note", "string"), *([SinkColumn("j", "string")] if "json" in why else []))
    rows = [
        {
            "id": at,
            "day": dt.date(2026, 1, 2),
            "name": "good",
            "note": f"n\n{at}",
            "j": '"a"\n',
            FATE: "upsert",
        }
        for at in range(1, 1000)
    ]
    rows[712] |= {"name": "bad", "note": LONG if "index" in why else "n\n1", "j": "{"}
    texts = [(text, pa.string()) for text in ("name", "note", "j", FATE)]
    schema = pa.schema([("id", pa.int64()), ("day", pa.date32()), *texts])
    parts = pa.Table.from_pylist(rows, schema).to_batches(max_chunksize=400)
    target = sink(postgres, name)
    target.fence(5)
    error = fails(lambda: target.send(BATCH, sent, parts))
    assert isinstance(error, TerminalError) and error.code == "sink-refused"
    assert '{"id":713,"day":"2026-01-02"}' in error.found
    assert any("--key" in step for step in error.next)
    assert postgres.execute(f"select count(*) from {name}") == [(0,)] and target.has(BATCH) is None
    del rows[712]
    target.send(BATCH, sent, pa.Table.from_pylist(rows, schema).to_batches())
    assert postgres.execute(f"select count(*) from {name}") == [(998,)]
    target.close()


def test_the_search_for_a_refused_row_may_take_longer_than_one_statement(
    postgres: PostgresServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each attempt is a statement below `timeout`, and together they take several times as long."""
    monkeypatch.setattr(connection, "_SLACK", 0.5)
    name = table(postgres, "id bigint primary key, name text check (name <> 'bad'), note text")
    slow = "language plpgsql as $$ begin perform pg_sleep(0.4); return null; end $$"
    postgres.execute(f"create function {name}s() returns trigger {slow}")
    postgres.execute(
        f"create trigger s before insert on {name} for each statement execute function {name}s()"
    )
    many = {at: ("bad" if at == 19 else "a", None) for at in range(30)}
    target, began = sink(postgres, name, timeout=1), time.monotonic()
    target.fence(5)
    error = fails(lambda: target.send(BATCH, COLUMNS, contract.batches(contract.upserts(many))))
    target.close()
    assert error.code == "sink-refused" and 'key {"id":19}' in error.found
    assert time.monotonic() - began > 1.5


def test_a_table_is_not_locked_while_rows_come_and_its_collations_hold(
    postgres: PostgresServer,
) -> None:
    name = table(
        postgres,
        'id bigint, name text collate "C", note text collate "POSIX", primary key (id, name)',
    )
    columns = [COLUMNS[0], replace(COLUMNS[1], key=True), *COLUMNS[2:]]

    def rows() -> Iterator[pa.RecordBatch]:
        yield from contract.batches(contract.upserts({1: ("a", "n")}))
        postgres.execute(f"set lock_timeout = '2s'; alter table {name} add column more text")
        yield from contract.batches(contract.upserts({2: ("b", None)}))

    target = sink(postgres, name)
    target.fence(5)
    target.send(BATCH, columns, rows())
    target.close()
    assert postgres.execute(f"select id, name, note, more from {name} order by id") == [
        (1, "a", "n", None),
        (2, "b", None, None),
    ]


def test_a_row_may_be_named_by_a_struct_as_in_a_history(postgres: PostgresServer) -> None:
    name = table(postgres, "k bigint, s jsonb, v text check (v <> 'bad'), primary key (k, s)")
    columns = [SinkColumn("k", "bigint", True), SinkColumn("s", "struct<at:timestamp,n:int>", True)]
    columns += [SinkColumn("v", "string")]
    kind = pa.struct([("at", pa.timestamp("us", "UTC")), ("n", pa.int32())])
    schema = pa.schema([("k", pa.int64()), ("s", kind), ("v", pa.string()), (FATE, pa.string())])
    at = dt.datetime(2026, 3, 1, 0, 0, 0, 5, dt.UTC)
    found = sink(postgres, name)
    found.fence(5)
    found.check(columns)

    def send(number: int, *rows: tuple[int | None, str | None, str]) -> None:
        made = [{"k": 1, "s": {"at": at, "n": n}, "v": v, FATE: fate} for n, v, fate in rows]
        batch = replace(BATCH, number=number)
        found.send(batch, columns, [pa.RecordBatch.from_pylist(made, schema)])

    send(0, (1, "a", "upsert"), (2, "b", "upsert"), (None, "c", "upsert"))
    send(1, (1, "A", "upsert"), (2, None, "delete"), (None, "C", "upsert"))
    assert postgres.execute(f"select s->>'n', v from {name} order by v") == [
        ("1", "A"),
        (None, "C"),
    ]
    error = fails(lambda: send(2, (1, "B", "upsert"), (7, "bad", "upsert")))
    key = json.loads(error.found.removeprefix("key ").partition("}}")[0] + "}}")
    assert key == {"k": 1, "s": {"at": "2026-03-01T00:00:00.000005Z", "n": 7}}
    keys = pa.RecordBatch.from_pylist(
        [{"k": 1, "s": {"at": at, "n": 1}}], pa.schema([("k", pa.int64()), ("s", kind)])
    )
    assert found.retain(replace(BATCH, writer="fill:1", number=0), columns, [keys]) == 1
    found.close()


@pytest.mark.parametrize(
    ("columns", "code"),
    [
        ("id bigint primary key, name text", "sink-unfit"),
        ("id bigint, name text, note text", "sink-unfit"),
        ("id bigint primary key, name text, note int", "sink-unfit"),
        ("id bigint primary key, name text, note text, must text not null", "sink-unfit"),
        ("", "sink-missing"),
    ],
)
def test_a_table_that_does_not_fit_is_refused_before_anything_is_sent(
    postgres: PostgresServer, columns: str, code: str
) -> None:
    name = table(postgres, columns) if columns else "nowhere"
    error = fails(lambda: sink(postgres, name).check(COLUMNS))
    assert isinstance(error, TerminalError) and error.code == code


# the server of the tests has no ICU: a collation gets the mark that a case-insensitive one has
_LAX = """create collation {s}.lax from "C";
    update pg_collation set collisdeterministic = false where collnamespace = '{s}'::regnamespace"""
_KEYED, _BARE = "id text primary key, name text", "id text, name text"
_MERGING = {
    "a column's collation": ("id text collate {s}.lax primary key, name text", ""),
    "an index's collation": (_BARE, "create unique index on {t} (id collate {s}.lax)"),
    "blanks at the end": (_BARE, "create unique index on {t} (id bpchar_pattern_ops)"),
    "one more index": (_KEYED, "create unique index on {t} (lower(id))"),
    "one more collation": (_KEYED, "create unique index on {t} (id collate {s}.lax)"),
    "an index of some rows": (_KEYED, "create unique index on {t} (lower(id)) where id > ''"),
    "an exclusion": (_KEYED, "alter table {t} add exclude using btree (lower(id) with =)"),
    "json": ("id jsonb primary key, name text", ""),
    "uuid": ("id uuid primary key, name text", ""),
    "char(n)": ("id char(9) primary key, name text", ""),
    "a domain": ("id {s}.word primary key, name text", ""),
    "a domain with the name of a type": ("id {s}.text primary key, name text", ""),
    "a rule": (
        _KEYED,
        "create rule r as on insert to {t} where new.id <> lower(new.id) do instead nothing",
    ),
}


@pytest.mark.parametrize("why", _MERGING)
def test_what_makes_two_keys_one_is_found_before_anything_is_sent(
    postgres: PostgresServer, why: str
) -> None:
    columns, then = _MERGING[why]
    schema = table(postgres).partition(".")[0]
    postgres.execute(_LAX.format(s=schema))
    postgres.execute(
        f"create domain {schema}.word as char(9); create domain {schema}.text as char(9)"
    )
    name = f"{schema}.u"
    postgres.execute(
        f"create table {name} ({columns.format(s=schema)}); alter table {name} owner to {USER}"
    )
    if then:
        postgres.execute(then.format(s=schema, t=name))
    sent = [SinkColumn("id", "string", True), SinkColumn("name", "string")]
    error = fails(lambda: sink(postgres, name).check(sent))
    assert isinstance(error, TerminalError) and error.code == "sink-unfit"


_PAIR = "id text, sub text, name text, primary key (id, sub)"
_EXACT = {
    'id text collate "C", sub varchar(20), name text, primary key (id, sub)': "",
    "id text, sub text, name text, unique (id, sub, name)": "create unique index on {t} (id text_pattern_ops, sub)",
    "id text, sub varchar, name text": "create unique index on {t} (sub varchar_pattern_ops, id) include (name)",
    f"{_PAIR}, unique (name)": "create unique index on {t} (lower(id), name)",
    _PAIR: "create unique index on {t} (id) where name = 'one'",
    f"{_PAIR}, check (id > '')": "create unique index on {t} (id, sub) where id > ''; create index on {t} (lower(id))",
}


@pytest.mark.parametrize("columns", _EXACT)
def test_what_tells_all_keys_apart_fits(postgres: PostgresServer, columns: str) -> None:
    name = table(postgres, columns)
    if then := _EXACT[columns]:
        postgres.execute(then.format(t=name))
    keys = [SinkColumn("id", "string", True), SinkColumn("sub", "string", True)]
    found = sink(postgres, name)
    found.check([*keys, SinkColumn("name", "string")])
    found.close()


@pytest.mark.parametrize("of", ["id", "(id || sub)"])
def test_an_index_that_is_coarser_than_several_keys_is_named_and_can_be_dropped(
    postgres: PostgresServer, of: str
) -> None:
    name = table(postgres, _PAIR)
    postgres.execute(f"create unique index on {name} ({of})")
    columns = [
        SinkColumn("id", "string", True),
        SinkColumn("sub", "string", True),
        SinkColumn("name", "string"),
    ]
    error = fails(lambda: sink(postgres, name).check(columns))
    assert isinstance(error, TerminalError) and error.code == "sink-unfit"
    for step in error.next:
        postgres.execute(step)
    found = sink(postgres, name)
    found.check(columns)
    found.close()


@pytest.mark.parametrize("what", ["new.id := lower(new.id); return new", "return null"])
@pytest.mark.parametrize("others", [True, False])
def test_a_trigger_that_gives_rows_other_keys_ends_the_batch(
    postgres: PostgresServer, what: str, others: bool
) -> None:
    name = table(postgres, _KEYED)
    postgres.execute(
        f"create function {name}_low() returns trigger language plpgsql as $$ begin {what}; end $$;"
        f"create trigger low before insert on {name} for each row execute function {name}_low()"
    )
    columns = [
        SinkColumn("id", "string", True),
        *([SinkColumn("name", "string")] if others else []),
    ]
    rows = [{"id": key, "name": "n", FATE: "upsert"} for key in ("bob", "Ann")]
    schema = pa.schema([(column.name, pa.string()) for column in columns] + [(FATE, pa.string())])
    found = sink(postgres, name)
    found.fence(5)
    found.check(columns)
    error = fails(lambda: found.send(BATCH, columns, [pa.RecordBatch.from_pylist(rows, schema)]))
    assert isinstance(error, TerminalError) and error.code == "sink-unfit" and "low" in error.found
    assert postgres.execute(f"select * from {name}") == [] and found.has(BATCH) is None
    found.close()


def test_the_table_of_batches_is_made_by_the_first_driver(postgres: PostgresServer) -> None:
    name = table(postgres)
    there = f"select to_regclass('{name.partition('.')[0]}.draindown_sinks') is not null"
    found = sink(postgres, name)
    found.check(COLUMNS)
    assert postgres.execute(there) == [(False,)], "a plan makes nothing"
    found.fence(1)
    assert postgres.execute(there) == [(True,)]
    found.close()


def test_whoever_may_not_make_the_table_of_batches_is_told_how(postgres: PostgresServer) -> None:
    name = table(postgres)
    schema = name.partition(".")[0]
    postgres.execute(f"alter schema {schema} owner to current_user")
    postgres.execute(f"grant usage on schema {schema} to {USER}")
    for action in (
        lambda: sink(postgres, name).check(COLUMNS),
        lambda: sink(postgres, name).fence(1),
    ):
        error = fails(action)
        assert error.code == "sink-denied" and "this user can't create it" in error.found
    ddl, again = error.next
    assert again.startswith("draindown plan pay/payments")
    postgres.execute(ddl)
    postgres.execute(f"alter table {schema}.draindown_sinks owner to {USER}")
    found = sink(postgres, name)
    found.check(COLUMNS)
    found.fence(1)
    found.close()


def test_a_constraint_ends_the_batch_with_the_key_and_nothing_is_applied(
    postgres: PostgresServer,
) -> None:
    name = table(postgres, "id bigint primary key, name text unique, note text")
    found = sink(postgres, name)
    found.fence(5)
    rows = contract.upserts({1: ("same", None), 2: ("same", None)})
    error = fails(lambda: found.send(BATCH, COLUMNS, contract.batches(rows)))
    assert (
        isinstance(error, TerminalError)
        and error.code == "sink-refused"
        and "(name) = (same)" in error.found
    )
    assert postgres.execute(f"select * from {name}") == []


def test_rows_that_swap_a_unique_value_need_the_constraint_that_the_error_names(
    postgres: PostgresServer,
) -> None:
    name = table(postgres, "id bigint primary key, name text unique, note text")
    found = sink(postgres, name)
    found.fence(5)
    found.send(
        BATCH,
        COLUMNS,
        contract.batches(contract.upserts({1: ("a", None), 2: ("b", None), 3: ("c", None)})),
    )
    swapped = contract.upserts({1: ("b", None), 2: ("a", None)})
    error = fails(lambda: found.send(replace(BATCH, number=1), COLUMNS, contract.batches(swapped)))
    assert error.code == "sink-refused"
    (statement,) = (way for way in error.next if way.startswith("ALTER TABLE"))
    postgres.execute(statement)
    found.send(replace(BATCH, number=1), COLUMNS, contract.batches(swapped))
    assert postgres.execute(f"select id, name from {name} order by id") == [
        (1, "b"),
        (2, "a"),
        (3, "c"),
    ]
    same = contract.upserts({1: ("c", None)})
    assert (
        fails(lambda: found.send(replace(BATCH, number=2), COLUMNS, contract.batches(same))).code
        == "sink-refused"
    )
    found.close()


def test_a_wrong_password_is_named_and_no_secret_is_shown(
    postgres: PostgresServer, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    canary = "canary%/?@:word"
    wrong = fails(lambda: sink(postgres, "t", canary).check(COLUMNS))
    spec = PostgresSink(url="${secret:PG}", table="t")
    broken = PostgresTable(spec, PLACE, {"DRAINDOWN_SECRET_PG": f"postgresql://u:{canary}@[::1/x"})
    options = fails(lambda: broken.check(COLUMNS))
    assert (
        isinstance(wrong, TerminalError)
        and wrong.code == "sink-auth"
        and options.code == "sink-options"
    )
    shown = [str(wrong), str(options), repr(broken), repr(vars(broken)), spec.place, caplog.text]
    assert not [text for text in shown if "canary" in text]


@pytest.mark.parametrize(
    ("step", "changed"),
    [
        ("", NOT_BEGUN),
        ("locked", NOT_COMMITTED),
        ("applied", NOT_COMMITTED),
        ("recorded", UNCERTAIN),
    ],
)
def test_an_error_says_what_the_table_has_of_a_batch_by_where_it_was_raised(
    postgres: PostgresServer, step: str, changed: str
) -> None:
    found = sink(postgres, table(postgres))
    if not step:
        nowhere = sink(postgres, "t", url=postgres.url().replace(f":{postgres.port}", ":1"))
        error = fails(lambda: nowhere.check(COLUMNS))
    else:
        found.fence(5)
        ((own,),) = postgres.execute(
            "select max(pid) from pg_stat_activity where usename = %s", USER
        )
        end = "select pg_terminate_backend(%s)"
        found._reached = lambda at: postgres.execute(end, own) if at == step else None
        error = fails(
            lambda: found.send(BATCH, COLUMNS, contract.batches(contract.upserts({1: ("a", None)})))
        )
    assert isinstance(error, TransientError) and (error.code, error.changed) == (
        "sink-unreachable",
        changed,
    )
    found.close()


_SENDER = """
import os, sys
from tests.sinks import contract
from tests.tables import test_postgres_sink as at
from scripts.postgres_server import PostgresServer
from pathlib import Path
home, port, name, step = sys.argv[1:]
found = at.sink(PostgresServer(Path(home), int(port)), name)
found._reached = lambda at: os.kill(os.getpid(), 9) if at == step else None
found.fence(5)
found.send(contract.BATCH, contract.COLUMNS, contract.batches(contract.upserts({1: ("b", None), 2: ("c", None)})))
"""


@pytest.mark.full
@pytest.mark.parametrize("step", ["staged", "locked", "applied", "recorded"])
def test_a_killed_sender_leaves_nothing_and_the_next_applies_the_batch(
    postgres: PostgresServer, step: str
) -> None:
    name = table(postgres)
    words = [sys.executable, "-c", _SENDER, str(postgres.home), str(postgres.port), name, step]
    done = subprocess.run(
        words, check=False, capture_output=True, env={**os.environ, "PYTHONPATH": "."}, timeout=60
    )
    assert done.returncode == -signal.SIGKILL, done.stderr
    assert postgres.execute(f"select * from {name}") == []
    staged = "select 1 from pg_class where relname like 'draindown_g%%' and relpersistence = 't'"
    postgres.until(lambda: postgres.execute(staged.replace("%%", "%")) == [])
    found = sink(postgres, name)
    found.fence(6)
    rows = contract.upserts({1: ("b", None), 2: ("c", None)})
    found.send(replace(BATCH, epoch=6), COLUMNS, contract.batches(rows))
    found.close()
    assert postgres.execute(f"select id, name from {name} order by id") == [(1, "b"), (2, "c")]


def test_a_server_without_tls_is_named_where_the_url_asks_for_it(postgres: PostgresServer) -> None:
    """The server of the tests is built without TLS."""
    error = fails(
        lambda: sink(postgres, table(postgres), url=postgres.url(more="?sslmode=require")).check(
            COLUMNS
        )
    )
    assert isinstance(error, TerminalError) and error.code == "sink-tls"


def test_a_server_without_a_free_connection_is_tried_again_later(
    own_postgres: PostgresServer,
) -> None:
    name = table(own_postgres)
    own_postgres.execute(f"alter role {USER} connection limit 0")
    full = fails(lambda: sink(own_postgres, name).check(COLUMNS))
    own_postgres.execute(f"alter role {USER} connection limit -1")
    assert isinstance(full, TransientError) and full.code == "sink-full"
    found = sink(own_postgres, name)
    found.check(COLUMNS)
    found.close()


@pytest.mark.full
def test_a_server_that_is_frozen_or_stopped_is_tried_again_later(
    own_postgres: PostgresServer,
) -> None:
    name = table(own_postgres)
    found = sink(own_postgres, name, timeout=1)
    found.fence(5)
    with own_postgres.frozen():
        frozen = fails(lambda: found.send(BATCH, COLUMNS, [pa.RecordBatch.from_pylist([], SCHEMA)]))
    own_postgres.stop("immediate")
    stopped = fails(lambda: found.check(COLUMNS))
    own_postgres.start()
    assert isinstance(frozen, TransientError) and frozen.code == "sink-unreachable"
    assert isinstance(stopped, TransientError) and stopped.code == "sink-unreachable"
    found.send(BATCH, COLUMNS, contract.batches(contract.upserts({1: ("a", None)})))
    found.close()
    assert own_postgres.execute(f"select id from {name}") == [(1,)]
