"""Words that a pipeline file no longer takes, and words of other tools: what to write instead.

Nothing was released under the old words, so none of them is an alias: a file that has one is
refused, with the place and the new word.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import yaml

Place = tuple[str, ...]
ANY = "*"
"""In the place of a row: any name, such as that of a flow."""
_SINK = ("flows", ANY, "sinks|also_to", ANY)
_SOURCE = ("flows", ANY, "source")


@dataclass(frozen=True)
class Row:
    """A key that has another name, or none.

    Attributes:
        place: the path of the mapping that has the key. `ANY` matches any name, `a|b` two names.
        old: the key.
        new: the key that replaces it, by its path within the mapping; empty if none does.
        why: for people, what else there is to know; of a key without a new one, why it is gone.
        values: the new words for old values; others stay.
        silent: keys of the same mapping about which nothing else is said then.
        is_list: whether the new key takes a list where the old one may be written as a text.
    """

    place: Place
    old: str
    new: Place
    why: str = ""
    values: Mapping[str, object] = field(default_factory=dict)
    silent: Sequence[str] = ()
    is_list: bool = False

    @property
    def now(self) -> str:
        """What became of the key, without its value."""
        if not self.new:
            return f"is gone in version 1: {self.why}"
        return f"is `{'.'.join(self.new)}` in version 1"

    def message(self, value: object) -> str:
        """Return what to write instead of the key with `value`."""
        if not self.new:
            return self.now
        found = self.values.get(value, value) if isinstance(value, str) else value
        if self.is_list and isinstance(found, str):
            found = [found]
        shown = f"; write `{_nested(self.new, found)}`" if _is_short(found) else ""
        return f"{self.now}{shown}" + (f": {self.why}" if self.why else "")


_RECORDS = "draindown makes its own where it may; `draindown plan` says what to run if it may not"
_KEYS = "the keys of a sink are those of the target"
RENAMED: Sequence[Row] = (
    Row((), "retries", ("airflow", "retries")),
    Row((), "max_active_tasks", ("airflow", "max_active_tasks")),
    Row(("lease",), "form", ("mode",)),
    Row(("lease",), "expires", ("duration",)),
    Row(("environments", ANY, "lease"), "form", ("mode",)),
    Row(("environments", ANY, "lease"), "expires", ("duration",)),
    Row(("flows", ANY), "also_to", ("sinks",)),
    Row(("flows", ANY), "accept", ("allowed_lateness",)),
    Row(("flows", ANY), "per", ("query",), silent=["source"]),
    Row(("flows", ANY), "deadline", ("max_duration",)),
    Row(_SOURCE, "settle", ("min_file_age",)),
    Row(_SOURCE, "starting", ("kafka", "starting_offsets")),
    Row(_SOURCE, "transactional", ("kafka", "transactional")),
    Row(_SOURCE, "keep_raw", ("kafka", "keep_raw")),
    Row(_SOURCE, "pipeline", (), "a lake has one table of a name, so the name is enough"),
    Row(
        (*_SOURCE, "tables", ANY),
        "pipeline",
        (),
        "a lake has one table of a name, so the name is enough",
    ),
    Row((*_SOURCE, "kafka"), "pattern", ("topic_pattern",)),
    Row(("flows", ANY, "session"), "by", ("group_by",), is_list=True),
    Row(("flows", ANY, "top"), "by", ("group_by",), is_list=True),
    Row(
        ("flows", ANY, "top"),
        "ties",
        ("with_ties",),
        values={"all": True, "content": False},
    ),
    Row(("flows", ANY, "processor"), "by", ("group_by",), is_list=True),
    Row(("flows", ANY, "processor"), "expire", ("gap",)),
    Row(("flows", ANY, "processor"), "snapshot", ("state",)),
    Row(("flows", ANY, "drift"), "new", ("new_columns",), values={"refuse": "fail"}),
    Row(
        ("flows", ANY, "drift"),
        "missing",
        ("missing_columns",),
        values={"refuse": "fail", "accept": "allow"},
    ),
    Row(_SINK, "of", ("from",), values={"applied": "table", "quarantined": "quarantine"}),
    Row(
        _SINK,
        "delivery",
        ("kafka", "delivery"),
        "beside `postgres` leave it out, a batch is a transaction there",
        silent=["kafka"],
    ),
    Row((*_SINK, "kafka"), "keys", (), _KEYS),
    Row((*_SINK, "postgres"), "keys", (), _KEYS),
    Row((*_SINK, "kafka"), "create", (), _RECORDS),
    Row((*_SINK, "postgres"), "create", (), _RECORDS),
    Row((*_SINK, "kafka"), "markers", ("marker_topic",)),
    Row((*_SINK, "kafka"), "place_by", ("partition_by",)),
    Row((*_SINK, "kafka"), "compression", (), "messages are compressed by lz4"),
    Row((*_SINK, "kafka"), "delivery_timeout", (), "a message has two minutes"),
)
"""The keys of pipeline files before version 1."""
OLD_VALUES: Mapping[Place, Mapping[str, str]] = {
    ("flows", ANY, "drift", "new_columns"): {"refuse": "fail", "accept": "rescue"},
    ("flows", ANY, "drift", "missing_columns"): {"refuse": "fail", "accept": "allow"},
    (*_SINK, "from"): {"applied": "table", "quarantined": "quarantine"},
}
"""Values before version 1 of keys that bear their new name, and those of now."""
_DERIVED_KEYS = "`keys` of `target`: the newest row per key is kept; without them rows are appended"
_ORDER = "`sequence_by` of `target`, which orders the changes of a key"
_STARTS = "`starting_offsets` of `kafka`: earliest, latest, or a time"
_REBUILDS = "`draindown rebuild PIPELINE/FLOW` reads everything again beside the table"
_HISTORY = "`stored_as_scd_type: 2` of `target`"
_COMPARED = (
    "whole snapshots are not compared: of a key that one lacks nobody knows whether it is deleted or "
    "late. Append each with its time and its deletes as rows, and keep the history of that table: "
    "target: {keys: ..., sequence_by: ..., stored_as_scd_type: 2, apply_as_deletes: ...}"
)
_CHECKPOINT = "draindown keeps what it has read in the lake"
FOREIGN: Mapping[str, str] = {
    **dict.fromkeys(("primary_key", "primary_keys", "unique_key", "merge_key"), _DERIVED_KEYS),
    **dict.fromkeys(("cursor_field", "cursor", "incremental"), _ORDER),
    **dict.fromkeys(("write_disposition", "materialized", "incremental_strategy"), _DERIVED_KEYS),
    "watermark": "`allowed_lateness` of the derived flow, measured from the arrival of a row",
    **dict.fromkeys(("nullValue", "null_value"), "`null_marker`"),
    **dict.fromkeys(("sep", "separator"), "`delimiter`"),
    **dict.fromkeys(("subscribe", "topic_list"), "`topics` of `kafka`"),
    "subscribePattern": "`topic_pattern` of `kafka`",
    **dict.fromkeys(("startingOffsets", "auto_offset_reset", "scan_startup_mode"), _STARTS),
    **dict.fromkeys(("scd_type", "scd2"), _HISTORY),
    "tests": "`expectations`: the name of a suite in expectations/",
    **dict.fromkeys(("order_by", "version_column", "updated_at"), _ORDER),
    **dict.fromkeys(
        ("delete_when", "delete_where", "delete_condition", "delete_if"),
        "`apply_as_deletes` of `target`: a SQL condition",
    ),
    "exactly_once": "`kafka: {delivery: exactly_once}` of the sink",
    **dict.fromkeys(
        ("filter", "condition", "predicate"),
        "`where` of a sink, or `rules` of the flow: SQL conditions",
    ),
    **dict.fromkeys(
        ("dead_letter", "dead_letter_queue", "dlq"),
        "`sinks: {NAME: {from: quarantine, kafka: {...}}}` of the flow",
    ),
    **dict.fromkeys(
        ("raw_retention", "retention"), "`keep_raw` of `kafka`, or `retain` of `maintenance`"
    ),
    **dict.fromkeys(
        ("timeout", "time_limit", "stop_after", "max_runtime"), "`max_duration` of the flow"
    ),
    **dict.fromkeys(("pool", "queue"), "`airflow: {pool: ..., queue: ...}`"),
    "name": "`pipeline` of the file, or `table` of `target`",
    **dict.fromkeys(("session_window", "sessionize"), "`session: {time: ..., gap: ...}`"),
    **dict.fromkeys(("tumbling_window", "hopping_window"), "`window: {time: ..., size: ...}`"),
    **dict.fromkeys(
        ("aggregate", "aggregates", "aggregations"), "`measures` of `window` or `session`"
    ),
    "sql": "`query: {keys: [...], sql: ...}`",
    **dict.fromkeys(("left_on", "right_on"), "`on: {left column: right column}`"),
    **dict.fromkeys(("min_age", "quiet_period", "stable_for"), "`min_file_age` of `source`"),
    **dict.fromkeys(("path", "paths"), "`files` of `source`: a glob"),
    "extends": "`template`: a name in `templates` of draindown.yaml",
    "schema": "`columns` of the flow: name and type of each column",
    **dict.fromkeys(
        ("schema_evolution", "mergeSchema", "on_schema_change"),
        "`drift: {new_columns: rescue | add | fail}`",
    ),
    "sources": "one `source` per flow: a glob with braces takes several directories of one format",
}
"""What people write first who come from other tools: what to write instead."""
NEEDLESS: Mapping[str, str] = {
    **dict.fromkeys(("group_id", "group.id"), "draindown keeps its offsets in the lake"),
    **dict.fromkeys(("full_refresh", "full-refresh"), _REBUILDS),
    "backfill": "trigger a backfill of the DAG, or `draindown replay PIPELINE/FLOW`",
    **dict.fromkeys(("checkpoint", "checkpoint_location", "checkpointLocation"), _CHECKPOINT),
}
"""What people write too, and no key is: what does it."""
UNSUPPORTED: Mapping[str, str] = {
    "ignore_null_updates": "it is of flows that read files or topics. Append all events, and take the "
    "newest value of each in a `query`: "
    "(max(struct(updated_at, status)) filter (where status is not null)).status",
    **dict.fromkeys(
        ("snapshot", "snapshots", "from_snapshot", "auto_cdc_from_snapshot"), _COMPARED
    ),
    "as_of": "what a history says of a time is looked up: `lookup: {table: HISTORY, on: [...], as_of: "
    "<time column>}` gives each row the columns of the one row that was valid then",
}
"""What Spark has, or a part of another kind, and this one has not, each with what does it."""


def new_word(place: Sequence[str], old: str) -> str:
    """Return what to write instead of a key at a place; empty if nobody knows."""
    for row in RENAMED:
        if row.old == old and _is_at(place, row.place):
            return row.now
    return of_other_tools(old)


def of_other_tools(key: str) -> str:
    """Return what to write instead of a word of another tool; empty for any other key."""
    if key in UNSUPPORTED:
        return f"not supported: {UNSUPPORTED[key]}"
    if key in FOREIGN:
        return f"unknown key; write {FOREIGN[key]}"
    if key in NEEDLESS:
        return f"unknown key, and none is needed: {NEEDLESS[key]}"
    return ""


def _is_at(place: Sequence[str], wanted: Place) -> bool:
    return len(place) == len(wanted) and all(map(_matches, place, wanted))


def _matches(name: str, wanted: str) -> bool:
    return wanted == ANY or name in wanted.split("|")


def problems(document: object) -> Iterator[tuple[Place, str, Sequence[Place]]]:
    """Yield the old words of a document: path, what to write, and the paths about which no further
    problem says anything new.
    """
    replaced: list[Place] = []
    for path, flow in _found(document, ("flows", ANY)):
        for whole, message, silent in _reshaped(path, flow) if isinstance(flow, dict) else ():
            replaced += silent
            yield whole, message, silent
    for row in RENAMED:
        for path, parent in _found(document, row.place):
            whole = (*path, row.old)
            if any(whole[: len(part)] == part for part in replaced):
                continue  # the new block has none of it
            if isinstance(parent, dict) and row.old in parent:
                silent = [(*path, name) for name in row.silent]
                yield whole, row.message(parent[row.old]), [whole, (*path, *row.new), *silent]
    for place, words in OLD_VALUES.items():
        for path, value in _found(document, place):
            if isinstance(value, str) and value in words:
                yield path, f"`{value}` is `{words[value]}` in version 1", [path]


def _found(value: object, place: Sequence[str], path: Place = ()) -> Iterator[tuple[Place, Any]]:
    """Yield the values at a place of a document, each with its path."""
    if not place:
        yield path, value
        return
    members = dict(enumerate(value)) if isinstance(value, list) else value
    if not isinstance(members, dict):
        return
    for name, member in members.items():
        if _matches(str(name), place[0]):
            yield from _found(member, place[1:], (*path, str(name)))


def _reshaped(path: Place, flow: Mapping[str, Any]) -> Iterator[tuple[Place, str, Sequence[Place]]]:
    """Yield a join or a lookup that names its tables as before, with the new block."""
    source, join, lookup = (flow.get(key) for key in ("source", "join", "lookup"))
    tables = source.get("tables") if isinstance(source, dict) else None
    named = {_name(one): one for one in tables} if isinstance(tables, list) else {}
    silent = [(*path, "source"), (*path, "join"), (*path, "lookup")]
    old = {"left", "right", "times", "within", "between"}
    if isinstance(join, dict) and not old.isdisjoint(join):
        left, right = join.get("left", "LEFT"), join.get("right", "RIGHT")
        block = _paired(join, left, right, named)
        if "times" in join:
            first, second = (*_pair(join["times"]), "LEFT", "RIGHT")[:2]
            bound = join.get("between", ["0 minutes", join.get("within", "DURATION")])
            block["interval"] = {"left": first, "right": second, "between": bound}
        yield (*path, "join"), _new_block("join", left, block), silent
    elif isinstance(lookup, dict) and named:
        right = lookup.get("table", "TABLE")
        left = next((name for name in named if name != right), "TABLE")
        block = _paired(lookup, left, right, named)
        if block.get("as_of") == "latest":
            del block["as_of"]
        yield (*path, "lookup"), _new_block("lookup", left, block), silent


def _paired(
    part: Mapping[str, Any], left: object, right: object, named: Mapping[str, Any]
) -> dict[str, Any]:
    """Return the block of a part that names its second table; `on` names the columns of both."""
    own, theirs = (_keys(named.get(str(table))) for table in (left, right))
    on = part.get("on")
    if not isinstance(on, list) or not on:
        on = ["COLUMN"]
    if own or theirs:
        on = {str(own.get(name, name)): theirs.get(name, name) for name in map(str, on)}
    rest = {key: value for key, value in part.items() if key in _KEPT}
    return {"table": right, "on": on, **rest}


_KEPT = ("how", "columns", "as_of")
"""Keys of a join or a lookup that are as they were."""


def _new_block(kind: str, left: object, block: Mapping[str, Any]) -> str:
    new = f"source: {_flow({'table': left})}; {kind}: {_flow(block)}"
    return f"names each table once in version 1; write {new}"


def _name(table: object) -> str:
    return str(table.get("table")) if isinstance(table, dict) else str(table)


def _keys(table: object) -> Mapping[str, object]:
    """Return a source table's own columns by the keys that they are."""
    keys = table.get("keys") if isinstance(table, dict) else None
    return keys if isinstance(keys, dict) else {}


def _pair(value: object) -> list[object]:
    return list(value) if isinstance(value, list) else []


def _is_short(value: object) -> bool:
    """Return whether a value may be shown: one with mappings in it may have old words too."""
    members = list(value.values()) if isinstance(value, dict) else value
    if not isinstance(members, list):
        return True
    return not any(isinstance(one, dict) for one in members) and len(_flow(value)) <= 60


def _nested(path: Place, value: object) -> str:
    for key in reversed(path[1:]):
        value = {key: value}
    return f"{path[0]}: {_flow(value)}"


def _flow(value: object) -> str:
    """Return a value as YAML on one line."""
    text = yaml.safe_dump(value, default_flow_style=True, sort_keys=False, width=2**31)
    text = text.removesuffix("\n").removesuffix("\n...").strip()
    return text.replace("'on':", "on:")  # quoted for readers of YAML 1.1, to whom `on` is true
