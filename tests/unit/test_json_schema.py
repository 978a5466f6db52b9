"""Combinations of keys that can't work: the schema marks them in an editor, and the loader refuses
them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from draindown.base.errors import TerminalError
from draindown.config.json_schema import schema
from draindown.config.loader import load

FILES = {"files": "landing/*", "format": "json"}
KAFKA = {"bootstrap_servers": "k:9092"}
COLUMNS = {"id": "string not null", "n": "int not null", "at": "timestamp", "v": "string"}
KEYED = {"keys": ["id"], "sequence_by": ["n"]}
WINDOW = {"time": "at", "size": "1 hour", "measures": {"rows": "count(*)"}}
SESSION = {"time": "at", "gap": "1 hour", "group_by": ["id"], "measures": {"rows": "count(*)"}}
QUERY = {"keys": ["id"], "sql": "select id, count(*) as rows from f group by id"}
PAST = {**KEYED, "stored_as_scd_type": 2}
POSTGRES = {"url": "${secret:URL}", "table": "alerts"}
TOPIC = {**KAFKA, "topic": "alerts"}


def landing(**parts: Any) -> dict[str, Any]:
    return {"f": {"source": FILES, "columns": COLUMNS, **parts}}


def files(**more: Any) -> dict[str, Any]:
    return landing(source={**FILES, **more})


def topics(**more: Any) -> dict[str, Any]:
    return landing(source={"kafka": {**KAFKA, **more}, "format": "json"})


def derived(**parts: Any) -> dict[str, Any]:
    return landing() | {"d": {"source": {"table": "f"}, **parts}}


def sink(**parts: Any) -> dict[str, Any]:
    return landing(sinks={"s": parts})


@pytest.mark.parametrize(
    ("flows", "valid"),
    [
        (landing(target=KEYED), True),
        (landing(target={"keys": [], "sequence_by": []}), True),
        (landing(target={"keys": ["id"]}), False),
        (landing(target={"keys": ["id"], "sequence_by": []}), False),
        (landing(target={"sequence_by": ["n"]}), False),
        (landing(target={"apply_as_deletes": "n < 0"}), False),
        (landing(target={**KEYED, "apply_as_deletes": "n < 0"}), True),
        (landing(target=PAST), True),
        (landing(target={"stored_as_scd_type": 2}), False),
        (landing(target={**PAST, "track_history": ["v"]}), True),
        (landing(target={**KEYED, "track_history": ["v"]}), False),
        (landing(target={**KEYED, "track_history": None}), True),
        (landing(target={**KEYED, "ignore_null_updates": True}), True),
        (landing(target={**KEYED, "ignore_null_updates": ["v"]}), True),
        (landing(target={**PAST, "ignore_null_updates": True}), False),
        (landing(target={**PAST, "ignore_null_updates": {"except": ["v"]}}), False),
        (landing(target={**PAST, "ignore_null_updates": False}), True),
        (files(multiline=True), True),
        (files(format="csv", delimiter=";", null_marker="-"), True),
        (files(format="csv", multiline=True), False),
        (files(format="csv", multiline=False), True),
        (files(format="parquet", header=False), False),
        (files(format="parquet", header=True, delimiter=",", escape=None), True),
        *((files(**{key: "'"}), False) for key in ("delimiter", "quote", "null_marker")),
        (files(escape="\\"), False),
        (files(max_bytes_per_trigger="1mb", max_files_per_trigger=None), True),
        (files(max_bytes_per_trigger="1mb", max_files_per_trigger=1), False),
        (topics(topics=["a"]), True),
        (topics(topic_pattern="a.*"), True),
        (topics(topics=["a"], topic_pattern="a.*"), False),
        (topics(topics=["a"], topic_pattern=None), True),
        (topics(topics=[], topic_pattern="a.*"), True),
        (topics(topics=[]), False),
        (topics(), False),
        (derived(window=WINDOW), True),
        (derived(window=WINDOW, session=None), True),
        (derived(window=WINDOW, session=SESSION), False),
        (derived(window=WINDOW, target=PAST), False),
        (derived(window=WINDOW, target={"table": "x", "stored_as_scd_type": None}), True),
        (derived(window=WINDOW, target={"keys": ["id"]}), False),
        (derived(window=WINDOW, target={"track_history": ["v"]}), False),
        (derived(target=PAST), True),
        (derived(target={"stored_as_scd_type": 2, "keys": ["id"]}), False),
        (derived(target={"table": "x"}), False),
        (derived(), False),
        (derived(source={"tables": ["f"]}, query=QUERY), True),
        (derived(source={"table": "f", "tables": []}, query=QUERY), True),
        (derived(source={"table": "f", "tables": ["f"]}, query=QUERY), False),
        (derived(source={"tables": []}, query=QUERY), False),
        (derived(source={"tables": ["f"]}, window=WINDOW), False),
        (sink(postgres=POSTGRES), True),
        (sink(kafka=TOPIC, postgres=None), True),
        (sink(kafka=TOPIC, postgres=POSTGRES), False),
        (sink(where="n > 1"), False),
        (sink(kafka={**TOPIC, "delivery": "exactly_once", "marker_topic": "m"}), True),
        (sink(kafka={**TOPIC, "marker_topic": "m"}), False),
        (sink(kafka={**TOPIC, "delivery": "at_least_once", "transaction_timeout": 30}), False),
        (sink(kafka={**TOPIC, "marker_topic": "draindown-sinks"}), True),
    ],
)
def test_editors_and_the_loader_refuse_the_same(
    tmp_path: Path, flows: dict[str, Any], valid: bool
) -> None:
    document = {"pipeline": "p", "lake": "lake", "flows": flows}
    path = tmp_path / "p.yaml"
    path.write_text(yaml.safe_dump(document))
    assert Draft202012Validator(schema()).is_valid(document) is valid
    if valid:
        load(path, {})
        return
    with pytest.raises(TerminalError) as raised:
        load(path, {})
    assert raised.value.code == "invalid-pipeline"


def test_a_value_that_the_environment_gives_is_left_to_the_loader() -> None:
    validator = Draft202012Validator(schema())
    for more in ({"format": "${FORMAT}", "header": False}, {"delimiter": "${CELLS:-,}"}):
        assert validator.is_valid({"pipeline": "p", "lake": "lake", "flows": files(**more)})
