"""Columns of raw records as text, for the audit: from a record's value, or from what it came in."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from draindown.audit import written
from draindown.audit.raw import FieldReader
from draindown.config.landing import FlowSpec

Fields = Callable[[Mapping[str, Any]], list[str | None]]
"""Reads columns of a raw record; None if one is missing or null. Raises ValueError where it can't
be read.
"""


def fields_of(flow: FlowSpec, names: Sequence[str]) -> Fields:
    """Return a reader of columns as text: from the value of a record, or from what it came in."""
    inside = [name for name in names if name in flow.fields]
    of_value = FieldReader(flow, inside, ())
    forms = {
        name: form
        for name in names
        if name not in inside and (form := written.reader_of(flow, name))
    }

    def fields(record: Mapping[str, Any]) -> list[str | None]:
        value = record["value"]
        cells = [None] * len(inside) if value is None or not inside else of_value(value)
        found = dict(zip(inside, cells, strict=True))
        for name in names:
            if name not in found:
                text = _taken(record, flow.columns[name].taken_from or "")
                found[name] = forms[name](text) if name in forms and text is not None else text
        return [found[name] for name in names]

    return fields


def _taken(record: Mapping[str, Any], place: str) -> str | None:
    head, _, name = place.partition(":")
    if head in ("topic", "partition"):
        topic, _, partition = str(record["input"]).rpartition("/")
        return topic if head == "topic" else partition
    if head in ("timestamp", "offset"):
        found = record["timestamp" if head == "timestamp" else "position"]
        return None if found is None else str(found)
    headers = record["headers"] or ()
    named = (
        header["value"] for header in reversed(headers) if header["key"] == name
    )  # the last one counts
    raw = record["key"] if head == "key" else next(named, None)
    return None if raw is None else str(raw, "utf-8")
