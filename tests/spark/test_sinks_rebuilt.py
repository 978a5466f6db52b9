"""Sinks after a rebuild took the table's place: they are compared with the version from before.

The sinks are topics in memory, which can't delete what the table does not have, and a table in
memory, which can.
"""

from __future__ import annotations

import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import timedelta
from functools import partial
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyspark.sql import SparkSession

from draindown.base.clock import now
from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.flow import sink_columns
from draindown.flow.sink_state import SinkState
from draindown.ledger import rows as ledger_rows
from draindown.planning import compaction
from draindown.sinks import registry
from draindown.sinks.port import FATE, SinkBatch, SinkColumn
from draindown.sources.tables import registered
from draindown.sources.tables.registered import Reader
from draindown.spark.frames import relation
from draindown.spark.runs import sink_fill
from draindown.spark.runs.rebuild import rebuild
from draindown.spark.session import INTERPRETED, configured
from draindown.spark.targets import version_changes
from tests.ageing import age
from tests.landing import COLUMNS, Injected, Landing
from tests.sinks.fake import FakeServer, FakeSink
from tests.spark.test_sinks import record, sink, table


class Logged(FakeSink):
    """Notes what it is sent. One whose table is named `topic…` can't delete what the flow's table
    does not have.
    """

    def __init__(
        self, server: FakeServer, place: Any, log: list[tuple[str, str]], is_topic: bool
    ) -> None:
        super().__init__(server, place)
        self._log, self._is_topic = log, is_topic

    def send(self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Any) -> None:
        if self._is_new(batch):
            kept = [part.to_pylist() for part in rows]
            schema = pa.schema(
                [(c.name, pa.string() if c.key else pa.int32()) for c in columns]
                + [(FATE, pa.string())]
            )
            key = next(column.name for column in columns if column.key)
            self._log += [
                (row[key], row[FATE]) for part in kept for row in part
            ]  # the server dies after it took them
            super().send(
                batch, columns, [pa.RecordBatch.from_pylist(part, schema) for part in kept]
            )

    def retain(self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Any) -> int | None:
        found = super().retain(batch, columns, keys) if not self._is_topic else None
        if self._is_topic:
            super().send(batch, columns, ())
        return found


@pytest.fixture
def servers(monkeypatch: pytest.MonkeyPatch) -> Iterator[dict[str, FakeServer]]:
    found: dict[str, FakeServer] = {}

    def made(spec: Any, place: Any, environ: Mapping[str, str]) -> FakeSink:
        name = spec.postgres.table
        return Logged(
            found.setdefault(name, FakeServer()),
            place,
            LOG.setdefault(name, []),
            name.startswith("topic"),
        )

    LOG.clear()
    monkeypatch.setitem(registry.MAKERS, "postgres", made)
    yield found


@pytest.fixture(autouse=True)
def interpreted(spark: SparkSession) -> Iterator[None]:
    with configured(spark, INTERPRETED):
        yield


LOG: dict[str, list[tuple[str, str]]] = {}
ALSO_TO = {
    "every": sink("topic", columns=["id", "a"]),
    "flagged": sink("topic_flagged", where="a > 10", columns=["id", "a"]),
    "mirror": sink("mirror", where="a > 10", columns=["id", "a"]),
}
KINDS = {**COLUMNS, "part": "string not null"}
BEFORE = {"keys": ["id"], "sequence_by": ["seq"], "apply_as_deletes": "op = 'd'"}
AFTER = {"keys": ["id"], "sequence_by": ["part"], "apply_as_deletes": "op in ('d', 'x')"}
ROWS = (
    record("still", 1, part="1", a=20),
    record("same", 1, part="1", a=20),
    record("gone", 1, part="1", a=20, op="x"),
    record("low", 1, part="1", a=5, op="x"),  # no sink but one had it
    *(record("other", 2, part="1", a=50), record("other", 1, part="2", a=30)),
    *(record("leaves", 2, part="1", a=50), record("leaves", 1, part="2", a=5)),
    *(record("enters", 2, part="1", a=5), record("enters", 1, part="2", a=50)),
)


def becomes(flow: Landing, spark: SparkSession, target: Mapping[str, Any]) -> int:
    """Rebuild the table by another target. Return the version from before."""
    content = dict(flow.document["flows"]["f"], target=target)
    flow.spec = PipelineSpec.model_validate({**flow.document, "flows": {"f": content}})
    rebuild(flow.request(), spark, progress=lambda line: None)
    return (
        max(one.version for one in flow.layout.tables.target.commits() if ledger_rows.swap_of(one))
        - 1
    )


def stale(flow: Landing) -> list[str]:
    return [one.subject for one in sink_columns.findings(flow.request(), flow.layout)]


def assert_agree(flow: Landing, servers: Mapping[str, FakeServer]) -> None:
    rows = {row["id"]: row["a"] for row in table(flow.layout.tables.target.path)}
    for name, server in servers.items():
        wanted = {id_: a for id_, a in rows.items() if name == "topic" or a > 10}
        assert {row["id"]: row["a"] for row in server.rows.values()} == wanted, name


def kept_back(flow: Landing) -> str:
    return compaction.kept_back(flow.layout, 7 * 86_400, now() + timedelta(days=20))


@pytest.mark.full
@pytest.mark.parametrize(
    "names", [("flagged",), pytest.param(tuple(ALSO_TO), marks=pytest.mark.long)]
)
def test_after_a_rebuild_each_sink_gets_what_differs_from_the_version_before(
    spark: SparkSession,
    landing: Callable[..., Landing],
    servers: dict[str, FakeServer],
    monkeypatch: pytest.MonkeyPatch,
    names: tuple[str, ...],
) -> None:
    monkeypatch.setattr(version_changes, "PORTION", 3)
    flow = landing(
        {"columns": KINDS, "target": BEFORE, "sinks": {name: ALSO_TO[name] for name in names}}
    )
    flow.deliver(*ROWS)
    flow.drain(spark)
    assert stale(flow) == []
    assert_agree(flow, servers)
    base = becomes(flow, spark, AFTER)
    flow.deliver(record("new", 1, part="3", a=70), record("same", 1, part="3", a=21))
    flow.drain(spark)
    assert stale(flow) == list(names)
    # a fill that comes late still reads the version from before
    age(flow.layout.tables.target.path, days=8)
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]
    reader = Reader("p", "f", flow.layout.tables.target.id, base, snapshot=True, sinks=True)
    assert flow.layout.tables.target.properties["delta.logRetentionDuration"] == "interval 90 days"
    for name in names:
        assert registered.readers(flow.layout) == [reader]
        assert "p/f (its sinks)" in kept_back(flow)
        place = ALSO_TO[name]["postgres"]["table"]
        LOG[place].clear()
        fill = partial(sink_fill.fill, flow.request(), spark, name, progress=lambda line: None)
        began, server = servers[place].sent, servers[place]

        def dies(step: str, server: FakeServer = server, began: int = began) -> None:
            if step == "recorded" and server.sent == began + 2:
                raise Injected

        server.fault = dies
        with pytest.raises(Injected):
            fill()
        assert name in stale(flow), "the fill has not ended"
        server.fault = lambda step: None
        done = fill()
        assert (done.whole, done.compared, done.deleted) == (False, (base,), 0)
        assert name not in stale(flow)
    assert registered.readers(flow.layout) == []
    assert kept_back(flow) == ""
    assert_agree(flow, servers)
    upserts = [("enters", "upsert"), ("new", "upsert"), ("other", "upsert"), ("same", "upsert")]
    whole = [("gone", "delete"), ("low", "delete"), *upserts, ("leaves", "upsert")]
    part = [("gone", "delete"), ("leaves", "delete"), *upserts]
    for place in servers:
        assert sorted(LOG[place]) == sorted(whole if place == "topic" else part), (
            "nothing else, and nothing twice"
        )
        fates = [fate for _, fate in LOG[place]]
        assert fates == sorted(fates), "deletes come first"


@pytest.mark.long
def test_a_sink_that_was_stale_before_or_twice_rebuilt_gets_every_row_and_what_is_gone(
    spark: SparkSession, landing: Callable[..., Landing], servers: dict[str, FakeServer]
) -> None:
    flow = landing({"columns": KINDS, "target": BEFORE, "sinks": ALSO_TO})
    flow.deliver(*ROWS)
    flow.drain(spark)
    first = becomes(flow, spark, AFTER)
    flow.deliver(record("same", 1, part="4", a=99), record("later", 1, part="3", a=12, op="y"))
    flow.drain(spark)
    second = becomes(flow, spark, {**AFTER, "apply_as_deletes": "op in ('x', 'y')"})
    fill = partial(sink_fill.fill, flow.request(), spark, progress=lambda line: None)
    LOG["topic"].clear()
    done = fill("every")
    assert (done.whole, done.compared, done.deleted, done.gone) == (True, (first, second), None, 3)
    assert {key for key, fate in LOG["topic"] if fate == "delete"} == {"gone", "low", "later"}
    assert registered.readers(flow.layout)[0].version == first, "the other sinks need it"

    log = flow.layout.tables.target
    old = {row["path"] for row in log.at(first).files()} - {
        row["path"] for row in log.at(second).files()
    }
    (Path(flow.layout.tables.target.path) / next(iter(old))).unlink()
    before = SinkState.read(flow.layout, "flagged")
    with pytest.raises(TerminalError, match=f"version {first}") as raised:
        fill("flagged")
    assert raised.value.code == "history-gone"
    assert "--accept-missing" in str(raised.value.next)
    assert SinkState.read(flow.layout, "flagged") == before
    done = fill("flagged", accept_missing=True)
    assert (done.whole, done.compared) == (True, (second,))
    kept = {key for (key,) in servers["topic_flagged"].rows} - {
        row["id"] for row in table(flow.layout.tables.target.path)
    }
    assert kept == {"gone"}, "nobody can say of it any more that it was there"
    done = fill("mirror", accept_missing=True)
    assert done.deleted == 1
    servers.pop("topic_flagged")
    assert_agree(flow, servers)
    assert (registered.readers(flow.layout), stale(flow)) == ([], [])


def test_what_differs_between_two_versions_is_what_a_model_says(spark: SparkSession) -> None:
    """2,000 keys with NULL among them, in both versions, one or none; values that are NULL, NaN,
    equal or not.
    """
    chance = random.Random(40)
    values = [None, 0.0, 1.5, float("nan")]

    def version() -> dict[tuple[Any, Any], tuple[Any, Any]]:
        keys = [(chance.choice([None, *range(9)]), at) for at in range(2_000)]
        return {
            key: (chance.choice(values), chance.choice(["a", None]))
            for key in keys
            if chance.random() < 0.7
        }

    old = version()
    new = {
        key: value if chance.random() < 0.7 else (chance.choice(values), "b")
        for key, value in old.items()
    }
    new = {key: value for key, value in new.items() if chance.random() < 0.8} | {
        (None, 9_999): (None, None)
    }

    def frame(rows: Mapping[Any, Any], text: str) -> Any:
        kinds = {"k": pa.int64(), "n": pa.int64(), "x": pa.float64(), text: pa.string()}
        return relation(spark, kinds, [(*key, *value) for key, value in rows.items()])

    def found(base: Any, sent: Sequence[str]) -> dict[tuple[Any, Any], tuple[Any, ...]]:
        rows = version_changes.changed(base, frame(new, "t"), ["k", "n"], sent).collect()
        assert len(rows) == len({(row["k"], row["n"]) for row in rows})
        return {(row["k"], row["n"]): (str(row["x"]), row["t"], row[FATE]) for row in rows}

    gone = dict.fromkeys(old.keys() - new.keys(), ("None", None, "delete"))
    upserts = {key: (str(x), t, "upsert") for key, (x, t) in new.items()}
    same = {key for key in new.keys() & old.keys() if str(new[key]) == str(old[key])}
    same_x = {key for key in new.keys() & old.keys() if str(new[key][0]) == str(old[key][0])}
    assert len(gone) > 100 and len(same) > 100
    base = frame(old, "t")
    assert found(base, ["k", "n", "x", "t"]) == gone | {
        k: v for k, v in upserts.items() if k not in same
    }
    assert found(base, ["k", "n", "x"]) == gone | {
        k: v for k, v in upserts.items() if k not in same_x
    }
    assert found(frame(old, "renamed"), ["k", "n", "x", "t"]) == gone | upserts, (
        "a column that is new differs"
    )
    typed = base.withColumn("t", base["t"].cast("binary"))
    assert found(typed, ["k", "n", "x", "t"]) == gone | upserts, "a column of another type differs"
    every = version_changes.deleted([base, base], frame(new, "t"), ["k", "n"]).collect()
    assert sorted(str((row["k"], row["n"])) for row in every) == sorted(map(str, gone))
