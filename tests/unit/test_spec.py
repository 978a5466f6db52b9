"""The models of a pipeline file: defaults, normal forms, and which combinations are refused."""

from __future__ import annotations

from copy import deepcopy
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from draindown.base.errors import TerminalError
from draindown.config.column_types import SCALARS, Column, normalise
from draindown.config.expressions import check_expression
from draindown.config.landing import FlowSpec
from draindown.config.lease import LeaseSpec
from draindown.config.models import PipelineSpec
from draindown.config.project import rooted
from draindown.config.schedule import check_schedule
from draindown.config.sources import FilesSource
from draindown.config.targets import RETAIN_FLOOR, Maintenance, Target
from draindown.config.tolerance import Drift
from draindown.config.units import parse_duration, parse_size, show_size

FLOW: dict[str, Any] = {
    "source": {"files": "landing/*.json", "format": "json"},
    "columns": {"id": "string not null", "at": "timestamp not null", "n": "int"},
    "target": {"keys": ["id"], "sequence_by": ["at"]},
}


def flow(**changes: Any) -> FlowSpec:
    return FlowSpec.model_validate({**deepcopy(FLOW), **changes})


def pipeline(**changes: Any) -> PipelineSpec:
    return PipelineSpec.model_validate(
        {"pipeline": "p", "lake": "lake", "flows": {"f": deepcopy(FLOW)}, **changes}
    )


def problems(error: ValidationError) -> dict[str, str]:
    """Path to message, for the problems of combinations."""
    found = {}
    for details in error.errors():
        assert details["type"] == "combination", details
        for path, message in details["ctx"]["problems"]:
            found[".".join(map(str, (*details["loc"], *path)))] = message
    return found


# sizes and durations


@pytest.mark.parametrize(
    ("text", "size"),
    [
        ("256mb", 256 * 1024**2),
        ("1 GB", 1024**3),
        ("4096", 4096),
        (4096, 4096),
        ("10b", 10),
        ("3 kb", 3072),
        ("1tb", 2**40),
    ],
)
def test_sizes(text: object, size: int) -> None:
    assert parse_size(text) == size


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        *(
            ("7 days", 604800),
            ("30 minutes", 1800),
            ("2 hours", 7200),
            ("90s", 90),
            ("1 week", 604800),
        ),
        *(("5m", 300), ("1 Day", 86400), ("0", 0), (15, 15), ("10 secs", 10), ("1 min", 60)),
    ],
)
def test_durations(text: object, seconds: int) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize(
    "text",
    ["", "mb", "-1mb", "1.5gb", "1 parsec", "9999999999tb", None, True, -5, 1.5, [], "1 mb x"],
)
def test_no_size(text: object) -> None:
    with pytest.raises(ValueError, match=r"must be a size|unknown unit|too large"):
        parse_size(text)


@pytest.mark.parametrize(
    "text", ["", "days", "-1 day", "1 month", "5ms", "1 year", "1h 30m", None, False, 0.5]
)
def test_no_duration(text: object) -> None:
    with pytest.raises(ValueError, match=r"must be a duration|unknown unit"):
        parse_duration(text)


@given(st.integers(0, 2**62))
def test_shown_sizes_read_back(size: int) -> None:
    assert parse_size(show_size(size)) == size


# column types


@pytest.mark.parametrize(
    ("text", "normal"),
    [
        ("INTEGER", "int"),
        ("long", "bigint"),
        ("byte", "tinyint"),
        ("short", "smallint"),
        ("Decimal( 10 , 2 )", "decimal(10,2)"),
        (
            "array< map<string, struct<a: INT, b:decimal(3,0)>> >",
            "array<map<string,struct<a:int,b:decimal(3,0)>>>",
        ),
        ("struct<`a b`: int, größe: string>", "struct<`a b`:int,`größe`:string>"),
        ("struct<array: array<int>>", "struct<array:array<int>>"),
        (" JSON ", "json"),
        ("struct<json: int>", "struct<json:int>"),
    ],
)
def test_types_have_one_spelling(text: str, normal: str) -> None:
    assert normalise(text) == normal
    assert normalise(normal) == normal


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("strng", "did you mean 'string'"),
        ("varchar(10)", "use string"),
        ("decimal", "precision and scale"),
        ("decimal(39,2)", "1 to 38"),
        ("decimal(5,6)", "scale 0 to precision"),
        ("array", "array<string>"),
        ("array<int", "closing '>'"),
        ("array<int not null>", "whole columns only"),
        ("map<map<int,int>,int>", "key of a map"),
        ("struct<a int>", "colon"),
        ("struct<a: int, A: int>", "twice"),
        ("struct<>", "field name"),
        ("int int", "after the end"),
        ("int not", "whole columns only"),
        ("int; drop table x", "unexpected ';'"),
        ("array<json>", "whole column only"),
        ("json json", "whole column only"),
        ("", "expected a type"),
        ("array<" * 40 + "int" + ">" * 40, "levels deep"),
    ],
)
def test_types_outside_the_grammar_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        normalise(text)


_types = st.recursive(
    st.sampled_from(SCALARS)
    | st.builds("decimal({},{})".format, st.integers(20, 38), st.integers(0, 20)),
    lambda inner: (
        inner.map("array<{}>".format)
        | inner.map("map<string,{}>".format)
        | st.tuples(inner, inner).map(lambda two: f"struct<a:{two[0]},b:{two[1]}>")
    ),
    max_leaves=8,
)


@given(_types, st.booleans())
def test_columns_read_back_what_they_write(kind: str, nullable: bool) -> None:
    column = Column.model_validate(kind if nullable else f"{kind}  NOT  NULL ")
    assert (column.type, column.nullable) == (kind, nullable)
    assert Column.model_validate(str(column)) == column


@given(st.text(max_size=40))
def test_any_text_is_a_type_or_a_value_error(text: str) -> None:
    try:
        normal = normalise(text)
    except ValueError:
        return
    assert normalise(normal) == normal


# expressions


@pytest.mark.parametrize(
    "text",
    [
        "status in ('scheduled','departed')",
        "note <> 'it is now() or never; -- really /* yes */'",
        "`rand` > 0 and `current_date` = d and `select` > 1",
        "rand > 0",
        "updated_at between '2000-01-01' and arrived_at + interval 1 day",
        r"name rlike '^[a-z\']+$'",
        'label = "current_date"',
        r"path not like r'C:\'",
        "unix_timestamp(updated_at) > 0",
        "x.current_date is not null",
        "exists(tags, t -> t = 'now open')",
        "category rlike '^today$' or category = 'tomorrowland'",
        "timestamp '2020-01-01' < updated_at",
        "selected and overdue",
        "a - -b > 0",
        "at > '2024-07-01 12:30:00' and gate = 'T12' and ratio = '16:9:1:1'",
        "slot rlike '^12:30$' or slot = '12:30 to 13:00'",
    ],
)
def test_expressions_about_the_row(text: str) -> None:
    assert check_expression(text) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("at < now()", r"now\(\).*use arrived_at"),
        ("at < NOW ( )", r"now\(\)"),
        ("at < `now`()", r"now\(\)"),
        ("at < system.builtin.now()", r"now\(\)"),
        ("at < current_timestamp", r"current_timestamp\(\)"),
        ("d = CURRENT_DATE", r"current_date\(\)"),
        ("rand() < 0.5", r"rand\(\)"),
        ("randn(3) < 0.5", r"randn\(\)"),
        ("length(uuid()) = 36", r"uuid\(\)"),
        ("monotonically_increasing_id() < 5", "monotonically"),
        ("input_file_name() like 'a%'", "input_file_name"),
        ("unix_timestamp() > 5", "clock"),
        ("at < timestamp 'now'", "clock"),
        ("at < 'now'", "clock.*rlike '.now"),
        ("d = to_date(' Today ')", "clock"),
        ("at < timestamp r'now'", "clock"),
        ("at < cast('yesterday Europe/Berlin' as timestamp)", "clock"),
        ("at < identifier('now')()", "hides a name"),
        ('at < date"today"', "clock"),
        ("at < '12:30'", "time of the current day.*rlike"),
        ("at < r' T1:2 '", "time of the current day"),
        ('at < "12:30:04.5+02:00"', "time of the current day"),
        ("at < timestamp '12:30:4 CET'", "time of the current day"),
        ("id in (select id from t)", "beyond the row"),
        ("row_number() over (order by id) = 1", "beyond the row"),
        ("reflect('java.lang.System', 'exit', 1) is null", "runs code"),
        ("a > 1; drop table t", "';'"),
        ("a > 1 -- later", "comment"),
        ("a /* b */ > 1", "comment"),
        ("a = 'x", "unclosed"),
        ("(a > 1", "parentheses"),
        ("a > 1) or (true", "parentheses"),
        ("a = '${env:HOME}'", "Spark would replace"),
        (" \n", "empty"),
        ("a" * 10_001, "longer"),
    ],
)
def test_expressions_beyond_the_row_are_refused(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_expression(text)


def test_rules_and_deletes_are_checked_alike() -> None:
    with pytest.raises(ValidationError, match="use arrived_at"):
        flow(rules={"fresh": "at < now()"})
    with pytest.raises(ValidationError, match="use arrived_at"):
        Target(keys=["id"], sequence_by=["at"], apply_as_deletes="rand() < 1")


# schedules


@pytest.mark.parametrize(
    "text",
    [
        "*/15 * * * *",
        "@daily",
        "0 6 * * mon-fri",
        "5,35 0-6/2 L 1-3 7",
        "0 0 1 jan *",
        "@quarterly",
    ],
)
def test_schedules(text: str) -> None:
    assert check_schedule(f" {text} ".replace(" ", "  ")) == text


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("@once", "by hand"),
        ("@continuous", "JVM"),
        ("@fortnightly", "unknown preset"),
        ("* * * *", "has 4"),
        ("0 * * * * *", "has 6"),
        ("", "has 0"),
        ("60 * * * *", "'60' is no minute: use .* 0 to 59"),
        ("* 0-24 * * *", "'0-24' is no hour: use .* 0 to 23"),
        ("* * 0 * *", "'0' is no day of month: use .* 1 to 31"),
        ("* * * foo *", "'foo' is no month: use .* 1 to 12"),
        ("* * * * */0", "is no day of week"),
        ("* * * * mon,8", "'mon,8' is no day of week"),
        ("a; * * * *", "is no minute"),
        ("R * * * *", "is no minute"),
        ("0 R(0-6) * * *", "is no hour"),
        ("H/5 * * * *", "is no minute"),
        ("0 0 0-99999999 * *", "is no day of month"),
        ("@midnight", "unknown preset"),
        ("0 3 30 2 *", "never comes: no month that it names has day 30"),
    ],
)
def test_no_schedules(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=reason):
        check_schedule(text)


@pytest.mark.parametrize("days", ["31", "31 4,6", "30 2", "30,31 feb", "30-31 2", "31 9,11"])
def test_a_schedule_that_never_comes_is_refused(days: str) -> None:
    """Airflow keeps no DAG of it."""
    day, month = f"{days} 2".split()[:2]
    with pytest.raises(ValueError, match=f"never comes: no month that it names has day {day}"):
        check_schedule(f"0 3 {day} {month} *")
    # a day of the week counts beside the day of the month
    assert check_schedule(f"0 3 {day} {month} mon")


@pytest.mark.parametrize("days", ["29 2", "31,L 2", "30 2,4", "31 2-12/2", "31-1 2", "L 2", "31 *"])
def test_a_schedule_that_comes_at_some_time_is_taken(days: str) -> None:
    assert check_schedule(f"0 3 {days} *") == f"0 3 {days} *"


# sources


def test_a_source_has_defaults() -> None:
    source = FilesSource(files="a/*.csv", format="csv")
    assert source.model_dump(exclude={"files", "format"}) == {
        "max_bytes_per_trigger": None,
        "max_files_per_trigger": None,
        "min_file_age": 0,
        "max_record_bytes": 8 * 1024**2,
        "header": True,
        "delimiter": ",",
        "multiline": False,
        "quote": '"',
        "escape": None,
        "null_marker": None,
        "timezone": "UTC",
        "decimal_separator": None,
        "thousands_separator": None,
    }


@pytest.mark.parametrize(
    ("written", "path"),
    [
        ("file:///x/*.json", "/x/*.json"),
        ("file:/x/*.json", "/x/*.json"),
        ("a:b/*.json", "a:b/*.json"),
    ],
)
def test_local_files(written: str, path: str) -> None:
    assert FilesSource(files=written, format="json").files == path


@pytest.mark.parametrize(
    "files",
    ["s3a://b/*.json", "S3://b", "hdfs:/x", "file://host/x", "", " x", "a\nb", "${secret:X}/a"],
)
def test_files_elsewhere_are_refused(files: str) -> None:
    with pytest.raises(
        ValidationError, match=r"only local paths|names a host|at least 1|blank|secret"
    ):
        FilesSource(files=files, format="json")


@pytest.mark.parametrize("zone", ["Europe/Berlin", "+02:00", "-05:30", "UTC"])
def test_zones(zone: str) -> None:
    assert FilesSource(files="a", format="json", timezone=zone).timezone == zone


@pytest.mark.parametrize(
    "zone", ["Mars/Olympus", "../../etc/passwd", "/etc/passwd", "+25:00", "a\x00b"]
)
def test_no_zones(zone: str) -> None:
    with pytest.raises(ValidationError, match="no time zone"):
        FilesSource(files="a", format="json", timezone=zone)


def test_limits_of_a_batch_exclude_each_other() -> None:
    with pytest.raises(ValidationError) as caught:
        FilesSource(files="a", format="json", max_bytes_per_trigger="1mb", max_files_per_trigger=2)  # type: ignore[arg-type]
    assert list(problems(caught.value)) == ["max_files_per_trigger"]


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("header", False),
        ("delimiter", ";"),
        ("quote", "'"),
        ("quote", "none"),
        ("escape", "\\"),
        ("null_marker", "\\N"),
    ],
)
def test_csv_keys_count_for_csv_only(key: str, value: object) -> None:
    fields = {"files": "a", key: value}
    assert getattr(FilesSource.model_validate({**fields, "format": "csv"}), key) == value
    with pytest.raises(ValidationError) as caught:
        FilesSource.model_validate({**fields, "format": "orc"})
    assert list(problems(caught.value)) == [key]


@pytest.mark.parametrize("delimiter", ["", "ab", '"', "\n", "\\", "a", "7"])
def test_no_delimiters(delimiter: str) -> None:
    with pytest.raises(ValidationError, match=r"delimiter"):
        FilesSource(files="a", format="csv", delimiter=delimiter)


@pytest.mark.parametrize(
    ("written", "named"),
    [
        ({"quote": ""}, "quote"),
        ({"quote": "None"}, "quote"),
        ({"quote": "a"}, "quote"),
        ({"quote": "\\"}, "quote"),
        ({"quote": "§"}, "quote"),
        ({"quote": "'", "delimiter": "'"}, "quote"),
        ({"escape": "/"}, "escape"),
        ({"escape": "\\", "quote": "none"}, "escape"),
        ({"null_marker": ""}, "null_marker"),
        ({"null_marker": 'a"'}, "null_marker"),
        ({"null_marker": "a,b"}, "null_marker"),
    ],
)
def test_no_dialects(written: dict[str, str], named: str) -> None:
    with pytest.raises(ValidationError) as caught:
        FilesSource.model_validate({"files": "a", "format": "csv", **written})
    assert [details["loc"] or (named,) for details in caught.value.errors()] == [(named,)]
    assert named in str(caught.value)


def test_a_backslash_may_be_written_as_yaml_shows_it() -> None:
    assert FilesSource(files="a", format="csv", escape="\\\\").escape == "\\"


# targets and flows


@pytest.mark.parametrize(
    ("kind", "named"),
    [("struct<`a b`: int>", "a b"), ("map<string,array<struct<x: int, `y``=`: int>>>", "y`=")],
)
def test_a_name_that_no_table_takes_needs_a_transform(kind: str, named: str) -> None:
    plain = {"id": "string not null", "at": "timestamp not null"}
    columns = plain | {"n": kind}
    with pytest.raises(ValidationError) as caught:
        flow(columns=columns)
    assert repr(named) in problems(caught.value)["columns.n"]
    assert flow(columns=columns, transform="own.flat").columns["n"].unstored == named
    assert (
        flow(columns=plain | {"n": "struct<`a.b-c``d`: int, `e-f`: int>"}).columns["n"].unstored
        is None
    )


@pytest.mark.parametrize(
    ("target", "paths"),
    [
        ({"keys": ["id"]}, ["keys"]),
        ({"sequence_by": ["at"]}, ["sequence_by"]),
        ({"apply_as_deletes": "n = 1"}, ["apply_as_deletes"]),
        ({"keys": ["id", "ID"], "sequence_by": ["at"]}, ["keys"]),
        ({"partition_by": ["n", "n"], "sequence_by": ["at"]}, ["sequence_by", "partition_by"]),
    ],
)
def test_targets_that_cant_work(target: dict[str, Any], paths: list[str]) -> None:
    with pytest.raises(ValidationError) as caught:
        Target.model_validate(target)
    assert list(problems(caught.value)) == paths


@pytest.mark.parametrize(
    ("target", "reason"),
    [
        ({"stored_as_scd_type": 3}, "must be 1 or 2, not 3"),
        ({"stored_as_scd_type": 0}, "must be 1 or 2, not 0"),
        ({"stored_as_scd_type": 2}, "keys: is required by a history"),
        (
            {"keys": ["id"], "sequence_by": ["at"], "track_history": ["a"]},
            "is of a history: stored_as_scd_type: 2",
        ),
        ({"keys": ["id"], "sequence_by": ["id"], "stored_as_scd_type": 2}, "'id' is a key"),
        (
            {
                "keys": ["id"],
                "sequence_by": ["at"],
                "stored_as_scd_type": 2,
                "track_history": ["id"],
            },
            "'id' is a key",
        ),
    ],
)
def test_histories_that_cant_be_kept(target: dict[str, Any], reason: str) -> None:
    with pytest.raises(ValidationError, match=reason):
        Target.model_validate(target)


def test_a_history_is_known_by_its_keys_and_starts() -> None:
    target = Target(keys=["id"], sequence_by=["at"], stored_as_scd_type=2)
    assert target.row_keys == ["id", "__START_AT"] and target.essential == ["id", "at"]
    assert target.statistics == ["id", "__START_AT", "__END_AT"] and target.kind.addressable
    columns = {"id": "int not null", "at": "timestamp not null", "n": "int not null", "a": "string"}
    source = {"files": "x/*", "format": "json"}
    flow = FlowSpec.model_validate(
        {"source": source, "columns": columns, "target": target.model_dump()}
    )
    assert flow.known_columns is not None and flow.known_columns["__END_AT"] == "timestamp"
    two = target.model_copy(update={"sequence_by": ["at", "n"]})
    flow = FlowSpec.model_validate(
        {"source": source, "columns": columns, "target": two.model_dump()}
    )
    assert (
        flow.known_columns is not None
        and flow.known_columns["__START_AT"] == "struct<at: timestamp, n: int>"
    )
    for name, place in (("b", "target.track_history.0"), ("sinks", "sinks.s")):
        wrong = {"track_history": ["b"]} if name == "b" else {}
        sinks = {"s": {"postgres": {"url": "x", "table": "t"}}} if name == "sinks" else {}
        content = {
            "source": source,
            "columns": columns,
            "target": target.model_dump() | wrong,
            "sinks": sinks,
        }
        with pytest.raises(ValidationError) as caught:
            FlowSpec.model_validate(content)
        assert place in str(caught.value)


@pytest.mark.parametrize(
    ("changes", "expected"),
    [
        ({"columns": {"id": "int", "at": "timestamp not null"}}, {"target.keys.0": "can be null"}),
        (
            {"columns": {"id": "int not null", "at": "timestamp"}},
            {"target.sequence_by.0": "can be null"},
        ),
        (
            {"columns": {"id": "array<int> not null", "at": "date not null"}},
            {"target.keys.0": "plain types"},
        ),
        (
            {"columns": {"Id": "int not null", "at": "date not null"}},
            {"target.keys.0": "did you mean 'Id'"},
        ),
        ({"target": {"partition_by": ["month"]}}, {"target.partition_by.0": "no transform"}),
        (
            {"target": {"partition_by": ["b"]}, "columns": {"a": "int", "b": "binary"}},
            {"target.partition_by.0": "Delta names partitions by text"},
        ),
        ({"target": {"partition_by": ["id", "at", "n"]}}, {"target.partition_by": "every column"}),
        (
            {"columns": {"id": "json not null", "at": "date not null"}},
            {"target.keys.0": "plain types"},
        ),
        *[
            (
                {
                    "target": {},
                    "source": {"files": "a", "format": form},
                    "columns": {"a": "json", "b": "int"},
                },
                {"columns.a": why},
            )
            for form, why in (
                ("csv", "use string"),
                ("parquet", "type of its values"),
                ("orc", "type of its values"),
            )
        ],
        ({"target": {}, "columns": {"a": "int", "A": "int"}}, {"columns.A": "case"}),
        ({"target": {}, "columns": {"\u0131": "int", "i": "int"}}, {"columns.i": "case"}),
        ({"target": {}, "source": {"files": "a", "format": "text"}}, {"columns": "value: string"}),
        (
            {
                "target": {},
                "source": {"files": "a", "format": "csv", "header": False},
                "drift": {"new_columns": "add", "missing_columns": "fail"},
            },
            {
                "drift.new_columns": "no names that could be added",
                "drift.missing_columns": "no names that could be missed",
            },
        ),
        (
            {
                "target": {},
                "source": {"files": "a", "format": "csv"},
                "columns": {"a": "array<int>", "b": "int"},
            },
            {"columns.a": "csv cell"},
        ),
    ],
)
def test_flows_that_cant_work(changes: dict[str, Any], expected: dict[str, str]) -> None:
    with pytest.raises(ValidationError) as caught:
        flow(**changes)
    found = problems(caught.value)
    assert list(found) == list(expected)
    for path, reason in expected.items():
        assert reason in found[path]


def test_drift_is_rescued_and_accepted_unless_said_otherwise() -> None:
    assert flow().drift == Drift(new_columns="rescue", missing_columns="allow")
    headless = flow(
        target={},
        source={"files": "a", "format": "csv", "header": False},
        drift={"new_columns": "fail"},
    )
    assert (headless.drift.new_columns, headless.drift.missing_columns) == ("fail", "allow")
    for wrong in (
        {"new_columns": "ignore"},
        {"missing_columns": "add"},
        {"renamed": "add"},
        {"new_columns": True},
    ):
        with pytest.raises(ValidationError):
            flow(drift=wrong)


def test_a_transform_may_make_keys_and_partitions() -> None:
    target = {"keys": ["made"], "sequence_by": ["at"], "partition_by": ["month"]}
    assert flow(target=target, transform="flights.tidy").target.partition_by == ["month"]


def test_text_has_one_column() -> None:
    text = flow(
        source={"files": "a", "format": "text"}, columns={"value": "string not null"}, target={}
    )
    assert not text.columns["value"].nullable


@pytest.mark.parametrize(
    "name",
    ["_id", "_rescued_data", "arrived_at", "Arrived_At", "a b", "a.b", "a`b", "a\n", "", "x" * 256],
)
def test_no_column_names(name: str) -> None:
    with pytest.raises(ValidationError, match=r"reserved|can't be a column"):
        flow(columns={name: "int"}, target={})


@pytest.mark.parametrize("name", ["Größe", "a-b", "2013", "select", "$x"])
def test_column_names(name: str) -> None:
    assert name in flow(columns={name: "int"}, target={}).columns


@pytest.mark.parametrize("name", ["Known", "1st", "a-b", "a b", "", "x\n", "x" * 64])
def test_rules_are_named_like_identifiers(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a name"):
        flow(rules={name: "n > 1"})


@pytest.mark.parametrize("name", ["tidy", "a.b; x", "../a.b", "a.b()", "a.b\n"])
def test_no_transforms(name: str) -> None:
    with pytest.raises(ValidationError, match=r"module\.function"):
        flow(transform=name)


@pytest.mark.parametrize("name", ["../x", "a.json", "a/b", ""])
def test_no_suites(name: str) -> None:
    with pytest.raises(ValidationError, match="name of a suite"):
        flow(expectations=name)


@pytest.mark.parametrize(
    ("key", "value"),
    [("max_duration", "0s"), ("max_batches", 0), ("max_batches", "3"), ("max_batches", True)],
)
def test_no_bounds(key: str, value: object) -> None:
    with pytest.raises(ValidationError, match=key):
        flow(**{key: value})


@pytest.mark.parametrize(
    ("key", "value"),
    [("retain", "6 days"), ("target_file_size", "1kb"), ("target_file_size", "5gb")],
)
def test_maintenance_has_floors(key: str, value: str) -> None:
    with pytest.raises(ValidationError, match="must be"):
        Maintenance.model_validate({key: value})
    assert Maintenance().retain == RETAIN_FLOOR == 7 * 86400


@pytest.mark.parametrize(("given", "size"), [(0, 0), ("0", 0), ("0kb", 0), ("16mb", 16 * 1024**2)])
def test_of_sizes_only_copy_on_write_may_be_none(given: object, size: int) -> None:
    assert Maintenance.model_validate({"copy_on_write": given}).copy_on_write == size
    if not size:
        with pytest.raises(ValidationError, match="max_bytes_per_trigger"):
            flow(source={**FLOW["source"], "max_bytes_per_trigger": given})


# pipelines


def test_a_pipeline_has_defaults() -> None:
    spec = pipeline()
    assert (spec.schedule, spec.owner, spec.tags, spec.airflow.retries, spec.description) == (
        None,
        "draindown",
        [],
        2,
        "",
    )


def test_flows_know_their_table_and_paths() -> None:
    spec = pipeline(flows={"f": FLOW, "g": {**FLOW, "target": {"table": "t"}}}, lake="/data/lake/")
    assert [spec.flows[name].table_name(name) for name in spec.flows] == ["f", "t"]
    assert [one.target.kind.name for one in spec.flows.values()] == ["upsert", "append"]
    assert spec.layout("g").tables.target.path == "/data/lake/tables/t"
    assert spec.layout("g").tables.quarantine.path == "/data/lake/quarantine/g"
    with pytest.raises(TerminalError) as caught:
        spec.layout("ff")
    assert caught.value.code == "unknown-flow"
    assert "f, g; did you mean 'f'?" in caught.value.found


def test_a_table_has_one_writer() -> None:
    with pytest.raises(ValidationError) as caught:
        pipeline(flows={"f": FLOW, "g": {**FLOW, "target": {"table": "f"}}})
    assert list(problems(caught.value)) == ["flows.g.target.table"]


@pytest.mark.parametrize(
    "lake",
    [
        "",
        " ",
        "/",
        "s3a://b/x",
        "hdfs:/x",
        "file:///",
        "file://host/x",
        "a/../b",
        "x\n",
        "${secret:LAKE}",
    ],
)
def test_no_lakes(lake: str) -> None:
    with pytest.raises(ValidationError, match="lake"):
        pipeline(lake=lake)


@pytest.mark.parametrize("lake", ["file:///data/lake", "file:/data/lake/", "/data/lake"])
def test_a_lake_is_a_directory_of_this_machine(lake: str) -> None:
    assert pipeline(lake=lake).layout("f").lease.startswith("/data/lake/")


@pytest.mark.parametrize(
    "name", ["job%2Fbranch", "a%20b", "%c3", "a[1]b", "a]", "a\\b", "a^b", "a|b"]
)
def test_a_lake_whose_real_path_deltalake_misreads_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / name).mkdir()
    (tmp_path / "link").symlink_to(tmp_path / name)
    for root, lake in (
        (tmp_path / name, "lake"),
        (tmp_path, f"{tmp_path}/{name}/lake"),
        (tmp_path / "link", "lake"),
    ):
        with pytest.raises(TerminalError) as caught:
            rooted(pipeline(lake=lake), root)
        assert (
            caught.value.code == "lake-misread" and f"{tmp_path}/{name}/lake" in caught.value.found
        )
    assert rooted(pipeline(lake=f"{tmp_path}/plain"), tmp_path / name).lake == f"{tmp_path}/plain"


@pytest.mark.parametrize(
    "name", ["100%", "a%zz", "a% b", "a b", "ünï", "a#b", "a?b", "a{1}b", "a;b+c=d", "~a"]
)
def test_a_lake_of_any_other_path_is_taken(tmp_path: Path, name: str) -> None:
    assert rooted(pipeline(lake="lake"), tmp_path / name).lake == f"{tmp_path}/{name}/lake"


@pytest.mark.parametrize("name", ["Flights", "1x", "a-b", "a" * 64, "", "a\n", "a/../b"])
def test_names_are_identifiers(name: str) -> None:
    with pytest.raises(ValidationError, match="is not a name"):
        pipeline(pipeline=name)
    with pytest.raises(ValidationError, match="is not a name"):
        pipeline(flows={name: FLOW})


def test_leases_are_local_unless_said_otherwise() -> None:
    assert (pipeline().lease.mode, pipeline().lease.duration) == ("local", 60)
    shared = pipeline(lease={"mode": "shared", "duration": "2 minutes"})
    assert (shared.lease.mode, shared.lease.duration) == ("shared", 120)
    assert PipelineSpec.model_validate_json(shared.model_dump_json()) == shared
    for lease in ({"mode": "shared", "duration": "4s"}, {"mode": "remote"}, {"owner": "me"}):
        with pytest.raises(ValidationError):
            pipeline(lease=lease)
    with pytest.raises(ValidationError) as caught:
        pipeline(lease={"duration": "2 minutes"})
    assert list(problems(caught.value)) == ["lease.duration"]


def test_specs_survive_their_own_dump() -> None:
    spec = pipeline(flows={"f": {**FLOW, "max_duration": "10 minutes", "transform": "a.b"}})
    assert PipelineSpec.model_validate_json(spec.model_dump_json()) == spec
    assert PipelineSpec.model_validate(spec.model_dump()) == spec
    assert spec.model_dump()["flows"]["f"]["columns"]["id"] == "string not null"


def test_specs_are_frozen() -> None:
    with pytest.raises(ValidationError, match="frozen"):
        pipeline().owner = "me"


@pytest.mark.parametrize(
    "model", [PipelineSpec, LeaseSpec, FlowSpec, FilesSource, Target, Maintenance]
)
def test_every_key_is_described(model: Any) -> None:
    assert [name for name, field in model.model_fields.items() if not field.description] == []


def test_columns_take_only_text() -> None:
    with pytest.raises(ValidationError, match="must be a type"):
        TypeAdapter(Column).validate_python(5)


def test_a_json_column_is_stored_as_text() -> None:
    column = Column.model_validate("json not null")
    assert (str(column), column.stored) == ("json not null", "string")
    assert Column.model_validate("array<int>").stored == "array<int>"


@pytest.mark.parametrize(
    ("wrong", "likely"),
    [
        ("DD.MM.YYYY", "dd.MM.yyyy"),
        ("YYYY-MM-dd", "yyyy-MM-dd"),
        ("D/M/YY kk:mm", "d/M/yy HH:mm"),
        ("u-M-d", "yyyy-M-d"),
    ],
)
def test_letters_of_other_patterns_get_the_pattern_that_works(wrong: str, likely: str) -> None:
    with pytest.raises(ValidationError) as error:
        Column.model_validate({"type": "timestamp", "format": wrong})
    assert f"did you mean {likely!r}?" in str(error.value)
    assert Column.model_validate({"type": "timestamp", "format": likely}).format == likely


def test_a_comma_that_braces_take_for_their_own_is_explained() -> None:
    with pytest.raises(ValidationError) as error:
        Column.model_validate(yaml.safe_load("{type: decimal(10,2), from: Betrag}"))
    assert 'write it in quotes: "decimal(10,2)"' in str(error.value)
