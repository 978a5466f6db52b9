"""What a share of quarantined records means: bounds, windows, and the hint that a quarantined record
gets.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from draindown.base.errors import TerminalError
from draindown.base.formatting import percent
from draindown.config.landing import FlowSpec
from draindown.config.loader import load
from draindown.config.models import PipelineSpec
from draindown.config.tolerance import QuarantineBounds
from draindown.config.units import parse_share, show_share
from draindown.flow.hints import hint
from draindown.flow.quarantined_share import LEAST, Window, windows, worst
from draindown.gate import published, refusal, suite
from draindown.lake.home import FlowHome
from draindown.ledger.rows import BatchRow, quarantined_share
from draindown.runs.card import card, verdict
from draindown.runs.report import Expectation
from tests.unit.test_card import checked, drained, step

BOUNDS = QuarantineBounds()


def batch(number: int, records: int, refused: int, run: str = "a", kind: Any = "drain") -> BatchRow:
    return BatchRow("p", "f", 1, number, run, kind=kind, records=records, quarantined=refused)


@pytest.mark.parametrize(
    ("records", "refused", "still_open", "state"),
    [
        (1000, 0, 0, ""),
        (1000, 9, 9, ""),
        (1000, 10, 10, "warned"),
        (1000, 499, 499, "warned"),
        (1000, 500, 500, "failed"),
        (LEAST, LEAST - 1, LEAST - 1, "failed"),
        (LEAST - 1, LEAST - 2, LEAST - 2, ""),
        (1, 1, 1, "failed"),
        (5, 5, 1, "failed"),
        (5, 5, 0, ""),
        (1000, 1000, 999, "failed"),
        (1000, 600, 499, "warned"),
        (0, 0, 0, ""),
    ],
)
def test_what_a_share_means(records: int, refused: int, still_open: int, state: str) -> None:
    assert Window(records, refused, still_open).state(BOUNDS) == state


def test_bounds_of_the_pipeline_file_decide() -> None:
    strict, lax = QuarantineBounds(warn="0%", fail="0%"), QuarantineBounds(warn="100%", fail="100%")  # type: ignore[arg-type]
    assert Window(1000, 1, 1).state(strict) == "failed"
    assert Window(1000, 0, 0).state(strict) == ""
    assert Window(1000, 999, 999).state(lax) == ""
    assert Window(1000, 1000, 1000).state(lax) == "failed", "all refused always fails"


def state(*rows: BatchRow) -> str:
    return worst(BOUNDS, list(windows(rows)))[0]


def test_good_input_that_comes_later_does_not_make_a_red_share_green() -> None:
    bad = batch(0, 1000, 1000)
    assert state(bad) == state(bad, batch(1, 10**6, 0, "b")) == "failed"


def test_a_run_that_refused_everything_fails_whatever_waited_before_it() -> None:
    assert state(batch(0, 10**6, 0), batch(1, 30, 30, "b")) == "failed"


def test_small_runs_count_together_and_stay_red() -> None:
    small = [batch(n, 10, 9, f"run {n}") for n in range(2)]
    assert state(small[0]) == ""
    assert state(*small) == state(*small, batch(2, 10**6, 0, "later")) == "failed"


def test_the_size_of_batches_decides_nothing() -> None:
    halves = [batch(0, 500, 400), batch(1, 500, 0)]
    assert state(*halves) == state(*reversed(halves)) == state(batch(0, 1000, 400)) == "warned"


@pytest.mark.parametrize("kind", ["replay", "release", "withdraw"])
def test_replays_and_withdrawals_do_not_count(kind: str) -> None:
    rows = [batch(0, 100, 0), batch(0, 1000, 1000, "b", kind)]
    assert state(*rows) == "" and quarantined_share(rows) == 0
    assert quarantined_share(rows[1:]) is None


@given(
    st.lists(st.tuples(st.integers(0, 50), st.integers(0, 50), st.sampled_from("abc")), max_size=8)
)
def test_what_failed_fails_whatever_follows(made: list[tuple[int, int, str]]) -> None:
    rows = [batch(n, max(a, b), min(a, b), run) for n, (a, b, run) in enumerate(made)]
    ends = [
        at
        for at in range(len(rows) + 1)
        if at in (0, len(rows)) or rows[at - 1].run_id != rows[at].run_id
    ]
    states = [state(*rows[:at]) for at in ends]
    assert states == sorted(states, key=["", "warned", "failed"].index)


def test_the_worst_is_told_by_the_run_that_made_it() -> None:
    found = worst(
        BOUNDS, list(windows([batch(0, 1000, 20), batch(1, 100, 90, "b"), batch(2, 1000, 0, "c")]))
    )
    assert found == ("failed", Window(100, 90, 90, "b"))


@pytest.mark.parametrize(
    ("text", "share"), [("1%", 0.01), ("0.5 %", 0.005), ("100%", 1.0), ("0%", 0.0)]
)
def test_a_share_is_written_in_percent(text: str, share: float) -> None:
    assert parse_share(text) == share == parse_share(show_share(share))


@pytest.mark.parametrize("value", [1, 0.5, "1", "101%", "-1%", "1 percent", True, None, "%"])
def test_what_could_mean_two_things_is_no_share(value: object) -> None:
    with pytest.raises(ValueError, match="1%"):
        parse_share(value)


@pytest.mark.parametrize(
    ("share", "shown"),
    [
        (0, "0%"),
        (1, "100%"),
        (0.5, "50%"),
        (0.01, "1%"),
        (0.99999, "99.9%"),
        (0.00001, "<0.1%"),
        (0.123, "12.3%"),
    ],
)
def test_a_share_is_never_rounded_to_all_or_to_none(share: float, shown: str) -> None:
    assert percent(share) == shown


PIPELINE = """\
pipeline: p
lake: lake
flows:
  f:
    source: {files: landing/*, format: json}
    columns: {id: string}
"""


def load_text(home: Path, text: str) -> PipelineSpec:
    path = home / "p.yaml"
    path.write_text(text)
    return load(path, {})


def test_the_bounds_are_read_and_written_again(tmp_path: Path) -> None:
    spec = load_text(tmp_path, f"{PIPELINE}    quarantine: {{warn: 2%, fail: 12.5%}}\n")
    assert spec.flows["f"].quarantine == QuarantineBounds(warn="2%", fail="12.5%")  # type: ignore[arg-type]
    assert type(spec).model_validate_json(spec.model_dump_json()) == spec
    assert load_text(tmp_path, PIPELINE).flows["f"].quarantine == BOUNDS


@pytest.mark.parametrize("bounds", ["{warn: 60%, fail: 50%}", "{fail: 2}", "{failing: 2%}"])
def test_bounds_that_cannot_be_meant_are_refused(tmp_path: Path, bounds: str) -> None:
    with pytest.raises(TerminalError) as caught:
        load_text(tmp_path, f"{PIPELINE}    quarantine: {bounds}\n")
    assert caught.value.code == "invalid-pipeline"


def test_the_name_of_the_verdict_is_no_suites() -> None:
    named = {"type": "expect_x", "meta": {"draindown": {"name": published.QUARANTINED_SHARE}}}
    assert published.QUARANTINED_SHARE not in suite.names({"expectations": [named]})


def flow(form: str = "json", **columns: str) -> FlowSpec:
    return FlowSpec.model_validate(
        {
            "source": {"files": "landing/*", "format": form},
            "columns": columns or {"id": "string not null"},
        }
    )


@pytest.mark.parametrize(
    ("kind", "cell", "word"),
    [
        ("date", "2012/01/01", "how it is written: format: 'yyyy/M/d'"),
        ("date", "2010/01/01 00:00", "how it is written: format: 'yyyy/M/d HH:mm'"),
        ("date", "2010/01/01 08:26", "declare timestamp with format: 'yyyy/M/d HH:mm'"),
        ("timestamp", "2012/01/01 10:00", "format: 'yyyy/M/d HH:mm'"),
        ("timestamp", "12/1/2010 8:26", "'M/d/yyyy H:mm' or format: 'd/M/yyyy H:mm', whichever"),
        ("timestamp", "12/31/2010 8:26:01 PM", "written: format: 'M/d/yyyy h:mm:ss a'"),
        ("timestamp", "31.12.2010T08:26:01.5+02:00", "format: \"d.M.yyyy'T'HH:mm:ss.SXXX\""),
        ("timestamp not null", "31.12.2012", "format: 'd.M.yyyy'"),
        ("date", "20120101", "format: 'yyyyMMdd'"),
        ("date", "3 Jan 2020", "format: 'd MMM yyyy'"),
        ("date", "2012-01-01T10:00:00", "timestamp"),
        ("timestamp", "1700000000", "timestamp_seconds"),
        ("timestamp", "1700000000123", "timestamp_millis"),
        ("int", "18.0", "double or decimal"),
        ("int", "4.7", "double or decimal"),
        ("int", "3000000000", "declare bigint"),
        ("bigint", "1,234", 'written: thousands_separator: ","'),
        ("double", "1,234", 'decimal_separator: "," or thousands_separator: ",", whichever'),
        ("double", "1,5", 'written: decimal_separator: ","'),
        ("decimal(9,2)", "1.234,50", 'written: decimal_separator: ",", thousands_separator: "."'),
        ("decimal(9,2)", "1,234.50", 'written: thousands_separator: ","'),
        ("decimal(5,2)", "1234567.25", "more digits"),
        ("double", "$12", "currency"),
        ("int", "N/A", "stands for no value"),
        ("boolean", "yes", "true and false"),
        ("string", '{"a": 1}', "nested"),
    ],
)
def test_a_cell_that_fits_no_type_gets_a_hint(kind: str, cell: str, word: str) -> None:
    row = {"reason": "type", "field": "c", "detail": f"{cell} is no {kind.split()[0]}", "raw": ""}
    assert word in hint(flow(c=kind), row)


@pytest.mark.parametrize(
    ("kind", "cell"), [("date", "2016/13/45"), ("timestamp", "2012/01/01 25:00")]
)
def test_a_form_that_does_not_read_the_value_is_not_named(kind: str, cell: str) -> None:
    row = {"reason": "type", "field": "c", "detail": f"{cell} is no {kind}", "raw": ""}
    assert "format" not in hint(flow(c=kind), row)


@pytest.mark.parametrize(
    ("form", "reason", "detail", "raw", "word"),
    [
        (
            "json",
            "malformed",
            "not one JSON object",
            '[{"id": "1"},',
            "one object a line is wanted",
        ),
        ("json", "malformed", "not one JSON object", "[", "multiline: true"),
        ("json", "malformed", "not one JSON object", "{", "spans several lines"),
        ("json", "malformed", "not one JSON object", '  "id": 1,', "spans several lines"),
        ("json", "malformed", "not one JSON object", "id,name", "format: csv"),
        (
            "csv",
            "malformed",
            "the header names no column of the contract",
            "id;name",
            'delimiter: ";"',
        ),
        (
            "csv",
            "malformed",
            "the header names no column of the contract",
            "ID,Name",
            "as the header does",
        ),
        (
            "csv",
            "malformed",
            "the header names no column of the contract",
            '{"id": 1}',
            "format: json",
        ),
        ("csv", "malformed", "the header names no column of the contract", "1,x", "header: false"),
        ("csv", "malformed", "a quote where none can stand", r'1,"a\"b"', "say escape: '\\'"),
        ("csv", "malformed", "a quote where none can stand", '1, "a,b"', "without blanks"),
        ("csv", "malformed", "a quote is not closed", '1,5" disk', "quote: none"),
        ("csv", "malformed", "3 cells under a header of 2", "1,a,b", "quoted"),
        (
            "csv",
            "malformed",
            "the header names no column of the contract",
            "Invoice No,Net",
            'from: "Invoice No"',
        ),
        ("json", "malformed", "not valid UTF-8", "?", "iconv"),
        (
            "json",
            "malformed",
            "half of a surrogate pair, which is no Unicode text",
            "{}",
            "cut between characters",
        ),
        (
            "parquet",
            "malformed",
            "not valid UTF-8 in column id",
            "{}",
            "declare the column as binary",
        ),
        (
            "json",
            "partition",
            "'' is no value of a partition: Delta stores it as NULL",
            "{}",
            "partition_by",
        ),
        ("json", "not_null", None, '{"Id": "1"}', "if 'Id' is meant"),
        ("json", "not_null", None, '{"id": null}', "not null"),
        ("json", "too_large", "9 bytes; at most 8", "", "max_record_bytes"),
        ("json", "rule:known", "id in ('1')", "{}", "rule known"),
    ],
)
def test_a_record_that_is_none_gets_a_hint(
    form: str, reason: str, detail: str | None, raw: str, word: str
) -> None:
    field = "id" if reason in ("not_null", "partition") else None
    assert word in hint(
        flow(form), {"reason": reason, "field": field, "detail": detail, "raw": raw}
    )


@given(
    st.text(),
    st.text(),
    st.sampled_from(["type", "malformed", "not_null", "rule:x", "too_large", "?"]),
)
def test_whatever_a_record_holds_a_hint_is_no_error(raw: str, cell: str, reason: str) -> None:
    row = {"reason": reason, "field": "c", "detail": f"{cell} is no int", "raw": raw}
    for form in ("json", "csv"):
        for kind in (
            "int",
            "date",
            "boolean",
            "decimal(5,2)",
            "array<int>" if form == "json" else "double",
        ):
            assert isinstance(hint(flow(form, c=kind), row), str)


def test_a_drain_that_refused_everything_is_not_called_ok() -> None:
    all_refused = drained(quarantined_share=1.0, over_limit="failed")
    assert verdict([all_refused]).startswith("OVER LIMIT") and "100% quarantined" in verdict(
        [all_refused]
    )
    assert verdict([drained(quarantined_share=0.02, over_limit="warned")], whole=False).startswith(
        "OK"
    )
    waived = Expectation(
        name=published.QUARANTINED_SHARE,
        success=False,
        waived=True,
        scope="input",
        judged=9,
        unexpected=9,
    )
    assert verdict([all_refused, checked(waived)]).startswith("OK"), "someone decided"


def test_a_failed_share_names_the_way_on() -> None:
    share = Expectation(
        name=published.QUARANTINED_SHARE, success=False, scope="input", judged=9, unexpected=9
    )
    part = checked(share, published=None).check
    assert part is not None
    error = refusal.refusal(FlowHome("lake", "p", "f", "f"), part, keyed=True)
    assert error.next == (
        "draindown quarantine list p/f",
        "draindown quarantine release p/f --yes   # once the contract or a rule is corrected: lets them in",
        "draindown quarantine discard p/f --yes   # gives them up; the next check no longer counts them",
        'draindown gate waive p/f quarantined_share --for "1 day" --note TEXT',
    )
    text = card([step("check", 1, "failed", check=part, error=error.as_dict())])
    assert "failed  quarantined_share  9 of 9 input rows" in text
