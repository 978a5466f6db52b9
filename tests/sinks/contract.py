"""What every sink must do, as functions over a `Bench`: a sink's server with one empty target for
each test.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import duckdb
import pyarrow as pa
import pytest

from draindown.base.errors import TransientError
from draindown.sinks.port import FATE, Sink, SinkBatch, SinkColumn, SinkPlace

PLACE = SinkPlace("lake-1", "pay", "payments", "alerts")


def place_of(name: str) -> SinkPlace:
    """The place of a sink of its own: two of one place exclude each other, also those of tests at
    once.
    """
    return replace(PLACE, sink=name)


COLUMNS = (
    SinkColumn("id", "bigint", key=True),
    SinkColumn("name", "string"),
    SinkColumn("note", "string"),
)
SCHEMA = pa.schema(
    [("id", pa.int64()), ("name", pa.string()), ("note", pa.string()), (FATE, pa.string())]
)
BATCH = SinkBatch(PLACE, "pay:payments:0001:drain", 0, 1, "drain", 0, epoch=5, rows=0, digest="00")

Rows = Mapping[int, tuple[str | None, str | None]]


@dataclass(frozen=True)
class Bench:
    """A sink under test: makes sinks of one target, and reads what the target holds, by id.

    `records` says whether the sink remembers batches. `texts` is what a text can't hold there.
    """

    make: Callable[[], Sink]
    rows: Callable[[], dict[int, tuple[str | None, str | None]]]
    records: bool = True


def upserts(rows: Rows) -> list[dict[str, Any]]:
    return [
        {"id": key, "name": name, "note": note, FATE: "upsert"}
        for key, (name, note) in rows.items()
    ]


def deletes(*keys: int) -> list[dict[str, Any]]:
    return [{"id": key, "name": None, "note": None, FATE: "delete"} for key in keys]


def batches(rows: list[dict[str, Any]], at_once: int = 2) -> Iterable[pa.RecordBatch]:
    for start in range(0, len(rows), at_once):
        yield pa.RecordBatch.from_pylist(rows[start : start + at_once], SCHEMA)


def send(
    bench: Bench, number: int, rows: list[dict[str, Any]], epoch: int = 5, digest: str = "00"
) -> None:
    sink = bench.make()
    try:
        sink.fence(epoch)
        sink.check(COLUMNS)
        said = {
            "number": number,
            "batch": number,
            "epoch": epoch,
            "rows": len(rows),
            "digest": digest,
        }
        sink.send(replace(BATCH, **said), COLUMNS, batches(rows))
    finally:
        sink.close()


def recorded(bench: Bench, batch: SinkBatch) -> SinkBatch | None:
    sink = bench.make()
    try:
        return sink.has(batch)
    finally:
        sink.close()


def upserts_and_deletes_are_applied(bench: Bench) -> None:
    send(bench, 0, upserts({1: ("a", None), 2: ("b", ""), 3: ('"\\.\n,\r\n\\N', "é€😀")}))
    assert bench.rows() == {1: ("a", None), 2: ("b", ""), 3: ('"\\.\n,\r\n\\N', "é€😀")}
    send(bench, 1, [*upserts({1: ("A", "x"), 4: ("d", "d")}), *deletes(2, 9)])
    assert bench.rows() == {1: ("A", "x"), 3: ('"\\.\n,\r\n\\N', "é€😀"), 4: ("d", "d")}


def a_batch_that_was_sent_changes_nothing_where_batches_are_recorded(bench: Bench) -> None:
    sent = replace(BATCH, rows=1, digest="ab")
    assert recorded(bench, sent) is None
    send(bench, 0, upserts({1: ("a", None)}))
    if bench.records:
        send(bench, 0, upserts({1: ("other", None)}))
        newest = recorded(bench, sent)
        assert newest is not None and (newest.number, newest.rows, newest.epoch) == (0, 1, 5)
        assert recorded(bench, replace(sent, writer="another")) is None
    else:
        send(bench, 0, upserts({1: ("a", None)}))
        assert recorded(bench, sent) is None
    assert bench.rows() == {1: ("a", None)}


def other_rows_under_the_number_of_a_batch_that_was_given_up_are_applied(bench: Bench) -> None:
    send(bench, 0, upserts({1: ("a", None), 2: ("b", None)}))
    sink = bench.make()
    sink.fence(5)
    sink.send(replace(BATCH, rows=1, digest="ff"), COLUMNS, batches(upserts({1: ("other", None)})))
    sink.close()
    assert bench.rows() == {1: ("other", None), 2: ("b", None)}


def an_earlier_batch_is_one_of_a_restored_lake_and_is_applied(bench: Bench) -> None:
    send(bench, 7, upserts({1: ("a", None), 2: ("b", None)}))
    send(bench, 3, upserts({1: ("again", None)}), epoch=6)
    assert bench.rows() == {1: ("again", None), 2: ("b", None)}
    send(bench, 7, upserts({2: ("again", None)}), epoch=6, digest="00" if bench.records else "07")
    assert bench.rows() == {1: ("again", None), 2: ("again", None)}, (
        "what it has of the earlier lake is not this batch"
    )


def a_lower_epoch_is_refused_where_epochs_are_kept(bench: Bench) -> None:
    if not bench.records:
        return
    zombie = bench.make()
    zombie.fence(5)
    send(bench, 0, upserts({1: ("new", None)}), epoch=6)
    late = replace(BATCH, number=1, epoch=5)
    for attempt in (
        lambda: zombie.send(late, COLUMNS, batches(upserts({1: ("old", None)}))),
        lambda: zombie.fence(5),
    ):
        with pytest.raises(TransientError) as raised:
            attempt()
        assert raised.value.code == "sink-fenced"
    assert bench.rows() == {1: ("new", None)}


def what_is_not_kept_is_deleted(bench: Bench) -> None:
    send(bench, 0, upserts(dict.fromkeys(range(5), ("a", None))))
    sink, fill = bench.make(), replace(BATCH, writer="fill:1", number=7)
    keys = pa.RecordBatch.from_pylist([{"id": 1}, {"id": 3}], pa.schema([("id", pa.int64())]))
    deleted = sink.retain(fill, COLUMNS, [keys])
    if deleted is None:
        assert len(bench.rows()) == 5
    else:
        assert deleted == 3 and set(bench.rows()) == {1, 3}
        assert sink.retain(fill, COLUMNS, []) == 0 and set(bench.rows()) == {1, 3}
    sink.close()


def a_sink_without_a_key_is_refused(bench: Bench) -> None:
    with pytest.raises(Exception, match="key"):
        bench.make().check([replace(column, key=False) for column in COLUMNS])


def rows_that_no_condition_names_are_accepted(bench: Bench) -> None:
    good = upserts({1: ("a", "\x01"), 2: (None, None), 3: ("\\u0000", "x" * 10_000)})
    assert refused(bench.make(), good) == {}
    send(bench, 0, good)
    assert bench.rows() == {1: ("a", "\x01"), 2: (None, None), 3: ("\\u0000", "x" * 10_000)}


def refused(
    sink: Sink, rows: list[dict[str, Any]], columns: Any = COLUMNS, schema: pa.Schema = SCHEMA
) -> dict[str, int]:
    """Count the rows that each condition names, as DuckDB judges it."""
    conditions = sink.unsendable(columns)
    sink.close()
    engine = duckdb.connect()
    engine.execute("set timezone = 'UTC'")
    engine.execute("create macro rlike(a, b) as regexp_matches(a, b)")
    engine.execute("create macro replaced(a, b, c) as regexp_replace(a, b, c, 'g')")
    engine.register("sent", pa.Table.from_pylist(rows, schema))
    found = {}
    for reason, condition in conditions.items():
        text = condition.replace("`", '"').replace("\\\\", "\\")
        text = text.replace("octet_length(", "strlen(").replace("regexp_replace(", "replaced(")
        (number,) = engine.execute(f"select count(*) from sent where {text}").fetchone() or (0,)
        found |= {reason: number} if number else {}
    return found


EVERY = (
    upserts_and_deletes_are_applied,
    a_batch_that_was_sent_changes_nothing_where_batches_are_recorded,
    other_rows_under_the_number_of_a_batch_that_was_given_up_are_applied,
    an_earlier_batch_is_one_of_a_restored_lake_and_is_applied,
    a_lower_epoch_is_refused_where_epochs_are_kept,
    what_is_not_kept_is_deleted,
    a_sink_without_a_key_is_refused,
    rows_that_no_condition_names_are_accepted,
)
