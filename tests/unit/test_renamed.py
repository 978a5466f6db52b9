"""Words that a pipeline file no longer takes, and words of other tools: each is refused at its place
with what to write instead, and what is printed can be put into the file.
"""

from __future__ import annotations

import copy
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from random import Random
from typing import Any

import pytest
import yaml

from draindown.base.errors import TerminalError
from draindown.config import renamed
from draindown.config.loader import load
from draindown.config.renamed import ANY, FOREIGN, NEEDLESS, OLD_VALUES, RENAMED, UNSUPPORTED, Row

Path_ = tuple[str | int, ...]
BROKERS = {"bootstrap_servers": "k:9092"}
EVENTS: dict[str, Any] = {
    "source": {"files": "landing/*", "format": "json", "min_file_age": "30 seconds"},
    "columns": {"id": "string", "user": "string", "at": "timestamp", "n": "int"},
    "drift": {"new_columns": "fail", "missing_columns": "allow"},
    "max_duration": "10 minutes",
    "sinks": {
        "table": {"postgres": {"url": "${secret:URL}", "table": "events"}, "from": "table"},
        "dead": {
            "kafka": {
                **BROKERS,
                "topic": "dead",
                "delivery": "exactly_once",
                "marker_topic": "markers",
                "partition_by": ["reason"],
            },
            "from": "quarantine",
        },
    },
}
USERS = {
    "source": {
        "kafka": {
            **BROKERS,
            "topic_pattern": "users.*",
            "starting_offsets": "latest",
            "transactional": True,
            "keep_raw": "2 days",
        },
        "format": "json",
    },
    "columns": {
        "name": {"type": "string not null", "from": "key"},
        "seen": {"type": "timestamp not null", "from": "timestamp"},
        "country": "string",
    },
    "target": {"keys": ["name"], "sequence_by": ["seen"]},
}
NEW: dict[str, Any] = {
    "pipeline": "p",
    "lake": "lake",
    "airflow": {"retries": 3, "max_active_tasks": 2},
    "flows": {
        "events": EVENTS,
        "users": USERS,
        "sessions": {
            "source": {"table": "events"},
            "session": {
                "time": "at",
                "gap": "1 hour",
                "group_by": ["user"],
                "measures": {"c": "count(*)"},
            },
            "allowed_lateness": "2 days",
        },
        "longest": {
            "source": {"table": "events"},
            "top": {"group_by": ["user"], "order_by": ["n desc"], "rows": 3, "with_ties": True},
        },
        "folds": {
            "source": {"table": "events"},
            "processor": {
                "class": "folds.Fold",
                "group_by": ["user"],
                "order_by": ["at"],
                "gap": "1 hour",
                "columns": {"n": "bigint"},
                "state": {"n": "bigint"},
            },
        },
        "totals": {
            "source": {"tables": [{"table": "events"}]},
            "query": {"keys": ["user"], "sql": "select user, count(*) c from events group by user"},
        },
        "pairs": {
            "source": {"table": "events"},
            "join": {
                "table": "users",
                "on": {"user": "name"},
                "how": "left_outer",
                "columns": {"name": "who", "country": "country"},
                "interval": {"left": "at", "right": "seen", "between": ["0 minutes", "1 hour"]},
            },
        },
        "named": {
            "source": {"table": "events"},
            "lookup": {"table": "users", "on": {"user": "name"}, "columns": ["country"]},
        },
    },
}
PAIRS: dict[str, Any] = {
    "source": {"tables": ["events", {"table": "users", "keys": {"user": "name"}}]},
    "join": {
        "left": "events",
        "right": "users",
        "on": ["user"],
        "how": "left_outer",
        "columns": {"name": "who", "country": "country"},
        "times": ["at", "seen"],
        "within": "1 hour",
    },
}
NAMED: dict[str, Any] = {
    "source": {"tables": [{"table": "users", "keys": {"user": "name"}}, "events"]},
    "lookup": {"table": "users", "on": ["user"], "columns": ["country"], "as_of": "latest"},
}
"""The flows of the same names in old words."""
GONE = {"keys": ["id"], "create": True, "compression": "zstd", "delivery_timeout": 60}
"""Values of keys that are gone; `pipeline` has the name of one."""


def at(document: Any, path: Path_) -> Any:
    for key in path:
        document = document[key]
    return document


def places(document: Any, place: tuple[str, ...], path: Path_ = ()) -> Iterator[Path_]:
    """The paths of the mappings of a document that a row is about."""
    if not place:
        yield path
        return
    members = dict(enumerate(document)) if isinstance(document, list) else document
    for name, member in members.items() if isinstance(members, dict) else ():
        if place[0] == ANY or name in place[0].split("|"):
            yield from places(member, place[1:], (*path, name))


def chances() -> Iterator[tuple[Row, Path_]]:
    """Each row with each mapping of `NEW` that may have its old key."""
    for row in RENAMED:
        for path in places(NEW, row.place):
            found: Any = at(NEW, path)
            for key in row.new:
                found = found.get(key) if isinstance(found, dict) else None
            if found is not None or not row.new:
                yield row, path


def aged(document: Any, row: Row, path: Path_) -> None:
    """Put the old key in the place of the new one."""
    parent = at(document, path)
    value = GONE.get(row.old, "q")
    if row.new:
        *above, last = row.new
        value = at(parent, tuple(above)).pop(last)
        words = {new: old for old, new in row.values.items()}
        value = words.get(value, value) if isinstance(value, str | bool) else value
    parent[row.old] = value


def refused(home: Path, document: Any) -> dict[str, str]:
    """The message at each place of a file, which must be where the text has the key."""
    path = home / "p.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    with pytest.raises(TerminalError) as raised:
        load(path, {})
    assert raised.value.code == "invalid-pipeline"
    found, text = {}, path.read_text().splitlines()
    for told in raised.value.found.splitlines():
        line, column, place, message = told.removeprefix(f"{path}:").split(":", 3)
        where, key = place.strip(), text[int(line) - 1][int(column) - 1 :].split(":")[0]
        assert where not in found and f".{where}".endswith(f".{key}"), told
        found[where] = message.strip()
    return found


def shown(path: Path_) -> str:
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path)[1:]


def loads(home: Path, document: Any) -> Any:
    path = home / "new.yaml"
    path.write_text(yaml.safe_dump(document, sort_keys=False))
    return load(path, {})


def merged(document: dict[str, Any], more: Mapping[str, Any]) -> None:
    for key, value in more.items():
        if isinstance(value, dict) and isinstance(document.get(key), dict):
            merged(document[key], value)
        else:
            document[key] = value


@pytest.mark.parametrize(
    ("row", "path"), [pytest.param(*one, id=shown((*one[1], one[0].old))) for one in chances()]
)
def test_an_old_key_is_refused_with_what_to_write(tmp_path: Path, row: Row, path: Path_) -> None:
    old = copy.deepcopy(NEW)
    aged(old, row, path)
    ((place, message),) = refused(tmp_path, old).items()
    assert place == shown((*path, row.old))
    if not row.new:
        assert message == f"is gone in version 1: {row.why}"
        at(old, path).pop(row.old)
    else:
        assert message.startswith(f"is `{'.'.join(row.new)}` in version 1")
        assert row.why in message
        value = at(old, path).pop(row.old)
        written = re.search(r"; write `(.*?)`(: |$)", message)
        merged(at(old, path), yaml.safe_load(written[1]) if written else {row.new[0]: value})
    assert old == NEW, "what is printed is the new word"
    assert loads(tmp_path, old) == loads(tmp_path, NEW)


def test_every_row_has_a_file() -> None:
    known = [row for row, _ in chances()]
    assert [row for row in RENAMED if row not in known and not _is_of_project(row)] == []


def _is_of_project(row: renamed.Row) -> bool:
    return row.place[:1] in (("lease",), ("environments",))


@pytest.mark.parametrize("row", [row for row in RENAMED if _is_of_project(row)], ids=str)
def test_an_old_key_of_the_project_file_is_refused_with_the_new_one(row: renamed.Row) -> None:
    document: dict[str, Any] = {row.old: "60s"}
    for key in reversed(row.place):
        document = {"dev" if key == renamed.ANY else key: document}
    ((path, message, _),) = renamed.problems(document)
    assert path == (*("dev" if key == renamed.ANY else key for key in row.place), row.old)
    assert message == f"is `{row.new[0]}` in version 1; write `{row.new[0]}: 60s`"


def _old_values() -> Iterator[tuple[Path_, str, str]]:
    for place, words in OLD_VALUES.items():
        for path in places(NEW, place):
            yield from ((path, old, new) for old, new in words.items())


@pytest.mark.parametrize(("path", "old", "new"), list(_old_values()))
def test_an_old_value_is_refused_with_the_new_one(
    tmp_path: Path, path: Path_, old: str, new: str
) -> None:
    document = copy.deepcopy(NEW)
    at(document, path[:-1])[path[-1]] = old
    assert refused(tmp_path, document) == {shown(path): f"`{old}` is `{new}` in version 1"}
    at(document, path[:-1])[path[-1]] = new
    loads(tmp_path, document)


_UNKNOWN: dict[str, tuple[Path_, ...]] = {
    "flow": (("flows", "events"), ("flows", "sessions")),
    "source": (("flows", "events", "source"), ("flows", "users", "source", "kafka")),
    "target": (("flows", "users", "target"),),
    "pipeline": ((),),
}


_INSTEAD = {word: f"; write {text}" for word, text in FOREIGN.items()} | {
    word: f", and none is needed: {text}" for word, text in NEEDLESS.items()
}


@pytest.mark.parametrize("word", _INSTEAD)
@pytest.mark.parametrize("where", _UNKNOWN)
def test_a_word_of_another_tool_is_refused_with_ours(tmp_path: Path, where: str, word: str) -> None:
    for path in _UNKNOWN[where]:
        document = copy.deepcopy(NEW)
        at(document, path)[word] = "x"
        assert refused(tmp_path, document) == {shown((*path, word)): f"unknown key{_INSTEAD[word]}"}


@pytest.mark.parametrize("word", UNSUPPORTED)
def test_what_spark_has_and_draindown_has_not_is_refused_with_a_way(
    tmp_path: Path, word: str
) -> None:
    document = copy.deepcopy(NEW)
    document["flows"]["past"] = {
        "source": {"table": "events"},
        "target": {"keys": ["id"], "sequence_by": ["n"], "stored_as_scd_type": 2, word: "x"},
    }
    assert refused(tmp_path, document) == {
        f"flows.past.target.{word}": f"not supported: {UNSUPPORTED[word]}"
    }


def _block(message: str) -> dict[str, Any]:
    """The new block of a join or lookup that a message prints."""
    start = "names each table once in version 1; write "
    assert message.startswith(start)
    source, part = message.removeprefix(start).split("; ", 1)
    found: dict[str, Any] = {**yaml.safe_load(source), **yaml.safe_load(part)}
    return {key: _on(value) for key, value in found.items()}


def _on(part: dict[Any, Any]) -> dict[str, Any]:
    return {"on" if key is True else key: value for key, value in part.items()}


@pytest.mark.parametrize(
    ("old", "changes", "new"),
    [
        (PAIRS, {}, {}),
        (
            PAIRS,
            {"within": None, "between": ["-10 minutes", "1 hour"]},
            {"interval": {"left": "at", "right": "seen", "between": ["-10 minutes", "1 hour"]}},
        ),
        (PAIRS, {"within": None, "times": None}, {"interval": None}),
        (
            PAIRS,
            {"within": 1800},
            {"interval": {"left": "at", "right": "seen", "between": ["0 minutes", 1800]}},
        ),
        (NAMED, {}, {}),
        (NAMED, {"as_of": None}, {}),
        (NAMED, {"as_of": "at"}, {"as_of": "at"}),
    ],
)
def test_the_printed_block_of_two_tables_can_be_put_into_the_file(
    tmp_path: Path, old: dict[str, Any], changes: dict[str, Any], new: dict[str, Any]
) -> None:
    kind = "join" if "join" in old else "lookup"
    name = "pairs" if kind == "join" else "named"
    document, wanted = copy.deepcopy(NEW), copy.deepcopy(NEW)
    if changes.get("as_of") == "at":  # asks a history
        for one in (document, wanted):
            one["flows"]["users"]["target"]["stored_as_scd_type"] = 2
            del one["flows"]["pairs"]
    document["flows"][name] = copy.deepcopy(old)
    for part, more in (
        (document["flows"][name][kind], changes),
        (wanted["flows"][name][kind], new),
    ):
        part |= more
        for key in [key for key, value in part.items() if value is None]:
            del part[key]
    (message,) = refused(tmp_path, document).values()
    document["flows"][name] = _block(message)
    assert document == wanted
    assert loads(tmp_path, document) == loads(tmp_path, wanted)


def test_a_key_of_the_left_table_under_another_name_is_named_as_the_table_has_it(
    tmp_path: Path,
) -> None:
    document, old = copy.deepcopy(NEW), copy.deepcopy(PAIRS)
    old["source"] = {
        "tables": [
            {"table": "events", "keys": {"key": "user"}},
            {"table": "users", "keys": {"key": "name"}},
        ]
    }
    old["join"]["on"] = ["key"]
    document["flows"]["pairs"] = old
    (message,) = refused(tmp_path, document).values()
    assert _block(message) == NEW["flows"]["pairs"]


def _in_old_words(draw: Random) -> tuple[dict[str, Any], dict[str, str]]:
    """A file with some old words, and what is said of each by its place."""
    document, wanted, taken = copy.deepcopy(NEW), dict[str, str](), set[Path_]()
    chosen = draw.sample(list(chances()), draw.randint(1, 9))
    # the mapping around another one is renamed last, so that paths within it hold
    for row, path in sorted(chosen, key=lambda one: -len(one[1])):
        target = {(*path, row.old), (*path, *row.new)}
        if target & taken:
            continue
        taken |= target
        aged(document, row, path)
        wanted[shown((*path, row.old))] = ".".join(row.new) or "is gone"
    if draw.random() < 0.3:
        document["flows"]["pairs"] = copy.deepcopy(PAIRS)
        if draw.random() < 0.5:
            document["flows"]["pairs"]["source"]["tables"][1]["pipeline"] = "p"
        wanted["flows.pairs.join"] = "interval"
        wanted.pop("flows.pairs.source.pipeline", None)
    if draw.random() < 0.3:
        document["flows"]["named"] = copy.deepcopy(NAMED)
        wanted["flows.named.lookup"] = "source: {table: events}"
        wanted.pop("flows.named.source.pipeline", None)
    if draw.random() < 0.3:
        word = draw.choice(list(_INSTEAD))
        document["flows"]["longest"][word] = "x"
        wanted[f"flows.longest.{word}"] = _INSTEAD[word]
    return document, wanted


@pytest.mark.parametrize("seed", range(200))
def test_all_old_words_of_a_file_are_told_at_once_and_nothing_else_of_them(
    tmp_path: Path, seed: int
) -> None:
    document, wanted = _in_old_words(Random(seed))
    if "also_to" in document["flows"]["events"]:
        wanted = {
            place.replace("events.sinks.", "events.also_to."): word
            for place, word in wanted.items()
        }
    found = refused(tmp_path, document)
    assert found.keys() == wanted.keys()
    assert [place for place, word in wanted.items() if word not in found[place]] == []


def test_no_old_word_is_a_word_of_now() -> None:
    """Else a file that is right would be refused."""
    assert list(renamed.problems(NEW)) == []
    loads_in_words = {row.old for row in RENAMED} & {row.new[-1] for row in RENAMED if row.new}
    assert loads_in_words <= {
        "transactional",
        "keep_raw",
        "delivery",
        "retries",
        "max_active_tasks",
    }, "they moved"
