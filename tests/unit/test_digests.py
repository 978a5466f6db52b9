"""The digests that a lake keeps: of a query, of a rebuild's contract, of a sink's spec.

Each is pinned: what changes one of them costs whoever has such a flow a reset, a rebuild or a
resync. A key of the pipeline file may be renamed, and the digests here stay.
"""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml

from draindown.base.digests import digest
from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.recovery import rebuild
from draindown.runs.request import Request

EVENTS = {
    "source": {"files": "landing/*.json", "format": "json"},
    "columns": {
        "id": "bigint not null",
        "user": "string",
        "at": "timestamp not null",
        "amount": "int",
        "updated": "timestamp",
    },
    "target": {"keys": ["id"], "sequence_by": ["at"]},
}
LOG = {name: part for name, part in EVENTS.items() if name != "target"}
USERS = {
    "source": {"files": "users/*.csv", "format": "csv", "delimiter": ";"},
    "columns": {"name": "string not null", "at": "timestamp not null", "country": "string"},
    "rules": {"known": "country is not null"},
    "target": {"keys": ["name"], "sequence_by": ["at"]},
}
PAST = USERS | {"target": USERS["target"] | {"stored_as_scd_type": 2}}
WINDOW = {"time": "at", "size": "1 hour", "group_by": ["user"], "measures": {"n": "count(*)"}}
SESSION = {"time": "at", "gap": "30 minutes", "group_by": ["user"], "measures": {"n": "count(*)"}}
QUERY = {"keys": ["user"], "sql": "select user, count(*) n from events group by user"}
FIRST = {"keys": ["user"], "sequence_by": ["at"]}
TOP = {"group_by": ["user"], "order_by": ["amount desc"], "rows": 3}
FOLD = {
    "class": "folds.Fold",
    "group_by": ["user"],
    "order_by": ["at"],
    "gap": "8 hours",
    "columns": {"n": "bigint"},
    "state": {"n": "bigint"},
}
HISTORY = {"keys": ["user"], "sequence_by": ["at"], "stored_as_scd_type": 2}
ONE: dict[str, Any] = {"table": "events"}
JOIN = {
    "table": "users",
    "on": {"user": "name"},
    "interval": {"left": "at", "right": "at", "between": ["0 minutes", "1 hour"]},
    "columns": {"name": "name", "at": "seen", "country": "country"},
}
LOOKUP = {"table": "users", "on": {"user": "name"}, "columns": ["country"]}
AT = {"table": "past", "on": {"user": "name"}, "columns": ["country"], "as_of": "at"}
KAFKA = {"topic": "spend", "bootstrap_servers": "broker:9092"}
POSTGRES = {"url": "postgresql://db/app", "table": "spend"}

DERIVED: dict[str, tuple[dict[str, Any], str]] = {
    "window": ({"source": {"table": "log"}, "window": WINDOW}, "b187d89c16adabc2"),
    "session": ({"source": ONE, "session": SESSION}, "d59423f829b4c986"),
    "query": ({"source": ONE, "query": QUERY}, "ef705bca2af9387d"),
    "deduplicate": ({"source": ONE, "deduplicate": FIRST}, "9e0d77b43aa9a797"),
    "top": ({"source": ONE, "top": TOP}, "1711709bd8a37b04"),
    "processor": ({"source": ONE, "processor": FOLD}, "5d17887dfba33aab"),
    "history": ({"source": {"table": "log"}, "target": HISTORY}, "dba85327a98b21e0"),
    "join": ({"source": ONE, "join": JOIN}, "5445c994566df9fa"),
    "lookup": ({"source": ONE, "lookup": LOOKUP}, "1a1e6b39fbec7cee"),
    "lookup at a time": ({"source": ONE, "lookup": AT}, "81b1e309feaa489a"),
}


def asked(home: Path, flow: dict[str, Any]) -> Request:
    flows = {"events": EVENTS, "users": USERS, "log": LOG, "past": PAST, "f": flow}
    file = home / "p.yaml"
    file.write_text(
        yaml.safe_dump({"pipeline": "p", "lake": "lake", "flows": flows}, sort_keys=False)
    )
    return Request(spec=loader.load(file, {}), flow="f", step="drain", run_id="r", root=str(home))


def query_digest(home: Path, flow: dict[str, Any]) -> str:
    found = asked(home, flow).declared
    assert isinstance(found, DerivedFlow)
    return found.source.derivation


def contract_digest(home: Path, flow: dict[str, Any]) -> str:
    return rebuild._contract(asked(home, flow))[:16]


def sink_digest(home: Path, flow: dict[str, Any]) -> str:
    found = asked(home, flow).declared
    (sink,) = found.sinks.values()
    return sink.fingerprint(found.target.row_keys, found.zone)


def changed(flow: dict[str, Any], *path: str, to: Any) -> dict[str, Any]:
    """Return a copy of a flow with another value at a path; None: without the key."""
    copy = deepcopy(flow)
    at = copy
    for key in path[:-1]:
        at = at.setdefault(key, {})
    if to is None:
        del at[path[-1]]
    else:
        at[path[-1]] = to
    return copy


def turned(value: Any) -> Any:
    """Return a flow whose keys are in another order, those of measures and columns apart."""
    if not isinstance(value, dict):
        return value
    return {
        key: one if key in ("measures", "columns", "state") else turned(one)
        for key, one in reversed(value.items())
    }


@pytest.mark.parametrize("kind", DERIVED)
def test_the_digest_of_a_query_is_pinned(tmp_path: Path, kind: str) -> None:
    flow, pinned = DERIVED[kind]
    assert query_digest(tmp_path, flow) == pinned


CHANGES: list[tuple[str, tuple[str, ...], Any]] = [
    ("window", ("window", "time"), "updated"),
    ("window", ("window", "size"), "2 hours"),
    ("window", ("window", "size"), "1 month"),
    ("window", ("window", "slide"), "30 minutes"),
    ("window", ("window", "group_by"), ["user", "id"]),
    ("window", ("window", "measures"), {"n": "count(amount)"}),
    ("window", ("window", "measures"), {"m": "count(*)"}),
    ("window", ("allowed_lateness",), "2 days"),
    ("window", ("columns",), {"n": "int"}),
    ("session", ("session", "gap"), "31 minutes"),
    ("session", ("session", "group_by"), ["id"]),
    ("session", ("session", "measures"), {"n": "count(*)", "m": "max(at)"}),
    (
        "query",
        ("query",),
        QUERY | {"keys": ["id"], "sql": "select id, count(*) n from events group by id"},
    ),
    ("query", ("query", "sql"), "select user, count(id) n from events group by user"),
    ("deduplicate", ("deduplicate", "keys"), ["id"]),
    ("deduplicate", ("deduplicate", "sequence_by"), ["id"]),
    ("deduplicate", ("deduplicate", "keep"), "last"),
    ("top", ("top", "group_by"), ["id"]),
    ("top", ("top", "order_by"), ["amount"]),
    ("top", ("top", "rows"), 4),
    ("top", ("top", "with_ties"), True),
    ("processor", ("processor", "class"), "folds.Other"),
    ("processor", ("processor", "group_by"), ["id"]),
    ("processor", ("processor", "order_by"), ["at", "id"]),
    ("processor", ("processor", "gap"), "9 hours"),
    ("processor", ("processor", "columns"), {"n": "int"}),
    ("processor", ("processor", "state"), {"n": "int"}),
    ("history", ("target", "keys"), ["id"]),
    ("history", ("target", "sequence_by"), ["id"]),
    ("history", ("target", "track_history"), ["amount"]),
    ("history", ("target", "apply_as_deletes"), "amount = 0"),
    ("join", ("join", "interval", "between"), ["0 minutes", "2 hours"]),
    ("join", ("join", "how"), "left_outer"),
    ("join", ("join", "columns"), {"name": "name", "at": "then"}),
    ("lookup", ("lookup", "columns"), {"country": "land"}),
    ("lookup at a time", ("lookup", "as_of"), "updated"),
]


@pytest.mark.parametrize(("kind", "path", "to"), CHANGES)
def test_what_changes_a_query_changes_its_digest(
    tmp_path: Path, kind: str, path: tuple[str, ...], to: Any
) -> None:
    flow, _ = DERIVED[kind]
    assert query_digest(tmp_path, changed(flow, *path, to=to)) != query_digest(tmp_path, flow)


BESIDE: list[tuple[tuple[str, ...], Any]] = [
    (("expectations",), "suite"),
    (("max_duration",), "10 minutes"),
    (("max_batches",), 3),
    (("maintenance", "retain"), "14 days"),
    (("sinks",), {"s": {"postgres": POSTGRES}}),
]


@pytest.mark.parametrize("kind", DERIVED)
def test_what_says_nothing_of_a_query_leaves_its_digest(tmp_path: Path, kind: str) -> None:
    flow, _ = DERIVED[kind]
    known = query_digest(tmp_path, flow), contract_digest(tmp_path, flow)
    if kind == "window":  # that it is another table is told by its id
        other = changed(flow, "source", "table", to="events")
        assert query_digest(tmp_path, other) == known[0]
        assert contract_digest(tmp_path, other) != known[1]
    for path, to in BESIDE:
        other = changed(flow, *path, to=to)
        assert (query_digest(tmp_path, other), contract_digest(tmp_path, other)) == known, path
    other = turned(flow)
    assert (query_digest(tmp_path, other), contract_digest(tmp_path, other)) == known
    table = changed(flow, "target", "table", to="t")
    assert query_digest(tmp_path, table) == known[0]
    assert contract_digest(tmp_path, table) != known[1], "a rebuild writes another table"


def test_the_code_of_a_processor_is_of_its_query_and_not_of_a_rebuild(tmp_path: Path) -> None:
    flow, _ = DERIVED["processor"]
    known = query_digest(tmp_path, flow), contract_digest(tmp_path, flow)
    (tmp_path / "jobs/processors").mkdir(parents=True)
    (tmp_path / "jobs/processors/folds.py").write_text("class Fold: ...\n")
    assert query_digest(tmp_path, flow) != known[0]
    assert contract_digest(tmp_path, flow) == known[1]


LANDING: dict[str, tuple[dict[str, Any], str]] = {
    "json": (EVENTS | {"target": EVENTS["target"] | {"table": "other"}}, "4f62de020dd45567"),
    "csv": (USERS | {"target": USERS["target"] | {"table": "other"}}, "607c89d3fbf2effc"),
    "kafka": (
        {
            "source": {
                "kafka": {"topics": ["t"], "bootstrap_servers": "broker:9092"},
                "format": "json",
            },
            "columns": {"k": {"type": "string not null", "from": "key"}, "v": "decimal(10,2)"},
        },
        "d815f0116b951533",
    ),
}


@pytest.mark.parametrize("kind", LANDING)
def test_the_digest_of_a_contract_is_pinned(tmp_path: Path, kind: str) -> None:
    flow, pinned = LANDING[kind]
    assert contract_digest(tmp_path, flow) == pinned


OF_CONTRACT: list[tuple[str, tuple[str, ...], Any]] = [
    ("json", ("source", "multiline"), True),
    ("json", ("source", "timezone"), "Europe/Berlin"),
    ("json", ("source", "max_record_bytes"), "1mb"),
    ("json", ("source", "decimal_separator"), ","),
    ("json", ("source", "thousands_separator"), " "),
    ("json", ("columns", "amount"), "bigint"),
    ("json", ("columns", "amount"), "int not null"),
    ("json", ("columns", "amount"), {"type": "int", "from": "Amount"}),
    ("json", ("columns", "at"), {"type": "timestamp not null", "format": "yyyy/M/d"}),
    ("json", ("columns", "amount"), None),
    ("json", ("drift", "new_columns"), "add"),
    ("json", ("drift", "new_columns"), "fail"),
    ("json", ("drift", "missing_columns"), "fail"),
    ("json", ("transform",), "own.tidy"),
    ("json", ("target", "table"), "another"),
    ("json", ("target", "keys"), ["id", "at"]),
    ("json", ("target", "apply_as_deletes"), "amount = 0"),
    ("json", ("target", "stored_as_scd_type"), 2),
    ("json", ("target", "ignore_null_updates"), True),
    ("json", ("target", "ignore_null_updates"), ["amount"]),
    ("json", ("target", "partition_by"), ["id"]),
    ("csv", ("source", "delimiter"), ","),
    ("csv", ("source", "header"), False),
    ("csv", ("source", "quote"), "none"),
    ("csv", ("source", "escape"), "\\"),
    ("csv", ("source", "null_marker"), "\\N"),
    ("csv", ("rules",), None),
    ("csv", ("rules", "known"), "country <> ''"),
    ("kafka", ("source", "format"), "text"),
]


@pytest.mark.parametrize(("kind", "path", "to"), OF_CONTRACT)
def test_what_changes_rows_changes_the_digest_of_a_contract(
    tmp_path: Path, kind: str, path: tuple[str, ...], to: Any
) -> None:
    flow, _ = LANDING[kind]
    other = changed(flow, *path, to=to)
    if other["source"]["format"] == "text":
        other["columns"] = {"value": "string"}
    assert contract_digest(tmp_path, other) != contract_digest(tmp_path, flow)


NOT_OF_CONTRACT: list[tuple[str, tuple[str, ...], Any]] = [
    ("json", ("source", "files"), "elsewhere/*.json"),
    ("json", ("source", "min_file_age"), "1 minute"),
    ("json", ("source", "max_files_per_trigger"), 5),
    ("json", ("source", "max_bytes_per_trigger"), "1gb"),
    ("json", ("source", "multiline"), False),
    ("json", ("drift", "new_columns"), "rescue"),
    ("json", ("target", "ignore_null_updates"), False),
    ("json", ("target", "stored_as_scd_type"), 1),
    ("json", ("quarantine", "fail"), "20%"),
    ("kafka", ("source", "kafka", "topics"), ["other"]),
    ("kafka", ("source", "kafka", "keep_raw"), False),
    ("kafka", ("source", "kafka", "starting_offsets"), "latest"),
    ("kafka", ("source", "kafka", "transactional"), True),
    ("kafka", ("source", "max_offsets_per_trigger"), 5),
    *(("json", path, to) for path, to in BESIDE),
]


@pytest.mark.parametrize(("kind", "path", "to"), NOT_OF_CONTRACT)
def test_what_leaves_rows_as_they_are_leaves_the_digest_of_a_contract(
    tmp_path: Path, kind: str, path: tuple[str, ...], to: Any
) -> None:
    flow, _ = LANDING[kind]
    known = contract_digest(tmp_path, flow)
    assert contract_digest(tmp_path, changed(flow, *path, to=to)) == known
    assert contract_digest(tmp_path, turned(flow)) == known


SINKS: dict[str, tuple[dict[str, Any], str]] = {
    "postgres": (
        EVENTS | {"sinks": {"s": {"postgres": POSTGRES, "where": "amount > 0"}}},
        "ad15ef760c6b29f1",
    ),
    "kafka": (
        EVENTS | {"sinks": {"s": {"kafka": KAFKA, "columns": ["id", "amount"]}}},
        "ca5d0a993551b777",
    ),
}


@pytest.mark.parametrize("kind", SINKS)
def test_the_digest_of_a_sink_is_pinned(tmp_path: Path, kind: str) -> None:
    flow, pinned = SINKS[kind]
    assert sink_digest(tmp_path, flow) == pinned


OF_SINK: list[tuple[str, tuple[str, ...], Any]] = [
    ("postgres", ("sinks", "s", "postgres", "url"), "postgresql://db/other"),
    ("postgres", ("sinks", "s", "postgres", "table"), "other"),
    ("postgres", ("sinks", "s", "where"), "amount > 1"),
    ("postgres", ("sinks", "s", "where"), None),
    ("postgres", ("sinks", "s", "columns"), {"id": "number"}),
    ("postgres", ("source", "timezone"), "Europe/Berlin"),
    ("postgres", ("target", "keys"), ["id", "at"]),
    ("kafka", ("sinks", "s", "kafka", "topic"), "other"),
    ("kafka", ("sinks", "s", "kafka", "bootstrap_servers"), "other:9092"),
    ("kafka", ("sinks", "s", "columns"), ["id"]),
    ("kafka", ("sinks", "s"), {"kafka": KAFKA, "from": "quarantine"}),
]


@pytest.mark.parametrize(("kind", "path", "to"), OF_SINK)
def test_what_changes_the_rows_of_a_sink_changes_its_digest(
    tmp_path: Path, kind: str, path: tuple[str, ...], to: Any
) -> None:
    flow, _ = SINKS[kind]
    assert sink_digest(tmp_path, changed(flow, *path, to=to)) != sink_digest(tmp_path, flow)


NOT_OF_SINK: list[tuple[str, tuple[str, ...], Any]] = [
    ("postgres", ("sinks", "s", "postgres", "timeout"), "10 seconds"),
    ("postgres", ("columns", "more"), "string"),
    ("postgres", ("rules",), {"some": "amount > 0"}),
    ("kafka", ("sinks", "s", "kafka", "delivery"), "exactly_once"),
    ("kafka", ("sinks", "s", "kafka", "request_timeout"), "10 seconds"),
    ("kafka", ("sinks", "s", "columns"), {"id": "id", "amount": "amount"}),
    ("kafka", ("source", "timezone"), "Europe/Berlin"),
]


@pytest.mark.parametrize(("kind", "path", "to"), NOT_OF_SINK)
def test_what_leaves_the_rows_of_a_sink_leaves_its_digest(
    tmp_path: Path, kind: str, path: tuple[str, ...], to: Any
) -> None:
    flow, _ = SINKS[kind]
    known = sink_digest(tmp_path, flow)
    assert sink_digest(tmp_path, changed(flow, *path, to=to)) == known
    assert sink_digest(tmp_path, turned(flow)) == known


def test_a_word_that_says_nothing_is_left_out_and_the_order_of_lists_counts() -> None:
    assert digest({"a": 1, "b": None}) == digest({"a": 1})
    assert digest({"a": {"b": None, "c": 1}}) == digest({"a": {"c": 1}})
    assert digest({"a": 1, "b": 2}) == digest({"b": 2, "a": 1})
    assert digest({"a": [1, 2]}) != digest({"a": [2, 1]})
    assert digest({"a": (1, 2)}) == digest({"a": [1, 2]})
    assert digest({"a": ""}) != digest({})
    with pytest.raises(TypeError):
        digest({"a": {1, 2}})
