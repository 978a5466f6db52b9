"""A hint is given where it is certain; where it might be wrong, none is."""

from __future__ import annotations

from typing import Any

import pytest

from draindown.config.landing import FlowSpec
from draindown.flow.hints import NULLED, hint


def flow(**more: Any) -> FlowSpec:
    columns = {"id": "string not null", "n": "int not null", "day": "date not null"}
    target = {"keys": ["id"], "sequence_by": ["n"]}
    source = {"files": "x", "format": "json"}
    return FlowSpec.model_validate({"source": source, "columns": columns, "target": target} | more)


def missing(
    field: str, raw: str = '{"id": null, "n": null, "day": null}', detail: str | None = None
) -> dict[str, Any]:
    return {"reason": "not_null", "field": field, "detail": detail, "raw": raw}


@pytest.mark.parametrize(
    "raw", ['{"id": "A-5", "status": "pla', '{"id": "A-5",', '{"id": 1]', "{'id': 1"]
)
def test_broken_json_on_one_line_is_not_called_several_lines(raw: str) -> None:
    row = {"reason": "malformed", "field": None, "detail": "", "raw": raw}
    assert "jq" not in hint(flow(), row)


@pytest.mark.parametrize("raw", ["{", "}", '"id": 1,'])
def test_a_line_that_is_a_piece_of_an_object_is(raw: str) -> None:
    assert "several lines" in hint(
        flow(), {"reason": "malformed", "field": None, "detail": "", "raw": raw}
    )


def test_a_time_with_nanoseconds_is_no_missing_value() -> None:
    detail = (
        "2026-01-01T00:00:00.123456789 has more than microseconds, which a timestamp can't hold"
    )
    told = hint(flow(), {"reason": "type", "field": "n", "detail": detail, "raw": "{}"})
    assert "empty" not in told and "six digits" in told


def test_who_lacks_a_value_is_advised_what_can_help() -> None:
    assert "leave out `not null`" in hint(flow(), missing("day"))
    for field in ("id", "n"):  # a key and a sequence can't be null
        assert "not null" not in hint(flow(), missing(field)) and field in hint(
            flow(), missing(field)
        )
    made = flow(transform="orders.typed")
    told = hint(made, missing("id", '{"id": "A-1"}', NULLED))
    assert "orders.typed" in told and "delivered" not in told and "not null" not in told


def test_a_field_that_the_record_has_under_another_name_is_taken_from_it() -> None:
    told = hint(flow(), missing("day", '{"id": "a", "n": 1, "Day": "2026-01-01"}'))
    assert "'Day'" in told and "`from:`" in told
    of_csv = flow(source={"files": "x", "format": "csv"})
    assert "`from:`" in hint(of_csv, missing("day", "a,1,2026-01-01"))
    bare = flow(source={"files": "x", "format": "csv", "header": False})
    assert "`from:`" not in hint(bare, missing("day", "a,1,")), (
        "without a header there are no names"
    )
