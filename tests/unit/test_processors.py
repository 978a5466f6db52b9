"""The fold of a processor without Spark: any division of a key's rows, from any kept state on,
gives the same rows.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import pyarrow as pa
import pytest
import yaml

from draindown.base.errors import TerminalError, TransientError
from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.config.project import rooted
from draindown.processors import loading, plain, stream
from draindown.processors.fold import Calls, Failed, KeyFold, Made, Shape, State
from draindown.processors.values import exact, record, unheld
from draindown.runs.request import Request
from draindown.testing import Processor

ROOT = Path(__file__).resolve().parents[2]
MINUTE = 60_000_000
Timed = tuple[int, dict[str, Any]]


class Running:
    """Gives a row for each third row, and one at the end, with what was seen of the segment."""

    def process(
        self, state: dict[str, Any] | None, rows: list[dict[str, Any]]
    ) -> tuple[Any, dict[str, Any]]:
        state, found = dict(state or {"n": 0, "seen": []}), []
        for row in rows:
            state["n"] += 1
            state["seen"] = [*state["seen"][-2:], row["v"]]
            if state["n"] % 3 == 0:
                found.append({"n": state["n"], "sum": sum(one or 0 for one in state["seen"])})
        rows.clear()  # what it is given is its own
        return iter(found), state

    def running(self, state: dict[str, Any]) -> Iterator[dict[str, Any]]:
        state["seen"].append(-1)
        yield {"n": -state["n"], "sum": len(state["seen"])}


def shape(make: type = Running, every: int = 4) -> Shape:
    return Shape(
        make,
        30 * MINUTE,
        {"n": "bigint", "sum": "bigint"},
        {"n": "bigint", "seen": "array<bigint>"},
        every,
    )


def _rows(draw: Random, most: int) -> list[Timed]:
    times = [
        draw.choice((0, 1, 30, 31, 60, draw.randrange(300))) * MINUTE
        for _ in range(draw.randint(0, most))
    ]
    return _in_order([(at, {"v": draw.choice((None, 1, 2, 5))}) for at in times])


def _folded(
    rows: Sequence[Timed], draw: Random, since: State | None = None
) -> tuple[list[Made], list[State]]:
    """Fold rows that are fed in random pieces."""
    made, states = list[Made](), list[State]()
    fold = KeyFold(Calls(shape()), made, states, since)
    cuts = sorted(draw.randint(0, len(rows)) for _ in range(draw.randint(0, 4)))
    for begin, end in pairwise([0, *cuts, len(rows)]):
        fold.feed([at for at, _ in rows[begin:end]], [dict(row) for _, row in rows[begin:end]])
    fold.end()
    return made, states


def _whole(rows: Sequence[Timed], most: int = 1) -> list[Made]:
    return list(plain.folded(Calls(shape()), [(at, dict(row)) for at, row in rows], most))


@pytest.mark.parametrize("seed", range(8))
def test_any_division_and_any_kept_state_give_the_same_rows_and_states(seed: int) -> None:
    draw, resumed, ended = Random(seed), 0, 0
    for _ in range(250):
        rows = _rows(draw, 25)
        expected, (made, states) = _whole(rows), _folded(rows, draw)
        assert made == expected == _whole(rows, draw.randint(2, 30))
        again, states_again = _folded(rows, draw)
        assert (again, states_again) == (made, states), "states are a function of the rows"
        # a table has its rows and states from earlier rows; then rows come or go, and the fold goes
        # on before them
        old = _in_order([*(one for one in rows if draw.random() < 0.7), *_rows(draw, 2)])
        now, then = (Counter((at, row["v"]) for at, row in some) for some in (rows, old))
        changed = [at for at, _ in (*(now - then), *(then - now))]
        if not changed:
            continue
        _, kept = _folded(old, draw)
        before = [one for one in kept if one.at < min(changed)]
        since = max(before, key=lambda one: one.at, default=None)
        after = [one for one in rows if since is None or one[0] > since.at]
        made, states_now = _folded(after, draw, since)
        floor = (-1, 0) if since is None else (since.start, since.position)
        assert made == [one for one in expected if (one.start, one.position) > floor]
        assert states_now == [one for one in states if since is None or one.at >= since.at]
        resumed, ended = (
            resumed + (since is not None),
            ended + (since is not None and not since.stays),
        )
    assert resumed > 15 and ended > 2


def _in_order(rows: Sequence[Timed]) -> list[Timed]:
    """Order rows by time, then by content."""
    return sorted(rows, key=lambda one: (one[0], one[1]["v"] is None, one[1]["v"] or 0))


def test_a_key_without_rows_after_its_state_ends_with_it() -> None:
    _, states = _folded(_rows(Random(5), 25), Random(5))
    made, again = _folded([], Random(1), states[-1])
    assert again == [states[-1]] and [one.row["n"] for one in made] == [-states[-1].number]


VALUES: list[tuple[str, Any, Any]] = [
    ("bigint", 2**63 - 1, pa.int64()),
    ("tinyint", -128, pa.int8()),
    ("double", 0.1, pa.float64()),
    ("double", 3, pa.float64()),
    ("boolean", True, pa.bool_()),
    ("string", "\u00e9", pa.string()),
    ("binary", b"\xff", pa.binary()),
    ("date", date(2026, 3, 1), pa.date32()),
    ("timestamp", datetime(2026, 3, 1, 5, tzinfo=UTC), pa.timestamp("us", "UTC")),
    ("timestamp_ntz", datetime(1, 1, 1), pa.timestamp("us")),
    ("decimal(10,2)", Decimal("1.5"), pa.decimal128(10, 2)),
    ("decimal(38,0)", 10**37, pa.decimal128(38, 0)),
    ("array<int>", (1, None), pa.list_(pa.int32())),
    (
        "struct<a:int,`b,<`:array<struct<c:string>>>",
        {"a": 1, "b,<": [{"c": "x"}]},
        pa.struct([("a", pa.int32()), ("b,<", pa.list_(pa.struct([("c", pa.string())])))]),
    ),
]


@pytest.mark.parametrize(("kind", "value", "arrow"), VALUES)
def test_a_value_goes_on_as_it_comes_back_from_a_table(
    kind: str, value: Any, arrow: pa.DataType
) -> None:
    found = exact(kind)(value)
    (back,) = pa.array([found], arrow).to_pylist()
    assert back == found == exact(kind)(back) and repr(exact(kind)(back)) == repr(found)


@pytest.mark.parametrize(
    ("kind", "value", "why"),
    [
        ("bigint", 1.0, "no bigint"),
        ("bigint", True, "no bigint"),
        ("int", 2**31, "beyond int"),
        ("double", 2**60, "no double"),
        ("string", b"x", "no string"),
        ("string", "\ud800", "surrogate"),
        ("timestamp", datetime(2026, 1, 1), "no timestamp, a datetime with a time zone"),
        ("timestamp_ntz", datetime(2026, 1, 1, tzinfo=UTC), "without a time zone"),
        ("date", datetime(2026, 1, 1), "no date"),
        ("decimal(4,2)", Decimal("1.005"), "round it"),
        ("decimal(4,2)", Decimal("100"), "beyond"),
        ("decimal(4,2)", 1.5, "no decimal"),
        ("array<int>", "12", "no list"),
        ("struct<a:int>", {"b": 1}, "does not declare"),
    ],
)
def test_a_value_that_would_come_back_as_another_is_refused(
    kind: str, value: Any, why: str
) -> None:
    with pytest.raises(ValueError, match=why):
        exact(kind)(value)


def test_columns_are_those_declared() -> None:
    check = record({"a": "int", "b": "string"}, "a row")
    assert check({"b": "x"}) == {"a": None, "b": "x"}
    with pytest.raises(ValueError, match="a row has c, which the pipeline file does not declare"):
        check({"c": 1})
    with pytest.raises(ValueError, match="a of a row is 'x'"):
        check({"a": "x"})
    with pytest.raises(ValueError, match="must be a dict"):
        check([1])
    assert (
        unheld("array<float>")
        and unheld("map<string,int>")
        and unheld("json")
        and not unheld("double")
    )


class _Fails(Running):
    def process(self, state: Any, rows: list[dict[str, Any]]) -> Any:
        return (
            {"list": [], "none": None, "raises": 1 / rows[0]["v"]}["list"]
            if rows[0]["v"]
            else 1 / 0
        )


@pytest.mark.parametrize(
    ("v", "why"), [(0, "process: ZeroDivisionError"), (1, "must return .rows, state.")]
)
def test_a_fold_that_fails_says_why(v: int, why: str) -> None:
    with pytest.raises(Failed, match=why):
        list(plain.folded(Calls(shape(_Fails)), [(0, {"v": v})]))


def test_a_class_is_loaded_from_its_file_as_it_is_now(tmp_path: Path) -> None:
    (tmp_path / "jobs" / "processors").mkdir(parents=True)
    path = loading.path_of(str(tmp_path), "shop.Basket")
    assert (
        path == tmp_path / "jobs" / "processors" / "shop.py"
        and loading.digest(str(tmp_path), "shop.Basket") == ""
    )
    for text, code in (
        (None, "processor-missing"),
        ("class Basket: pass", "processor-missing"),
        ("Basket = 1", "processor-missing"),
        ("1 / 0", "processor-failed"),
        ("class Basket(", "processor-failed"),
    ):
        if text is not None:
            path.write_text(text)
        with pytest.raises(TerminalError) as error:
            loading.load(str(tmp_path), "shop.Basket", loading.digest(str(tmp_path), "shop.Basket"))
        assert error.value.code == code and str(path) in f"{error.value.tried} {error.value.found}"
    seen = set()
    for number in (1, 2):
        path.write_text(
            f"class Basket:\n    n = {number}\n    def process(self, state, rows): return [], None\n"
        )
        code = loading.digest(str(tmp_path), "shop.Basket")
        found, _ = loading.load(str(tmp_path), "shop.Basket", code)
        assert found.n == number and not seen.intersection([code])
        for earlier in seen:
            with pytest.raises(TransientError, match="derivation-changed"):
                loading.load(str(tmp_path), "shop.Basket", earlier)
        seen.add(code)


def test_plain_rows_are_ordered_by_time_then_content() -> None:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    given = [
        {"k": key, "at": start + timedelta(minutes=at) if at is not None else None, "v": v}
        for key, at, v in [
            (None, 0, 2),
            ("a", 0, 5),
            (None, 0, None),
            (None, 0, 1),
            ("a", None, 9),
            (None, 31, 7),
        ]
    ]
    rows = plain.by_key(shape(), given, ["k"], ["at"])
    assert rows == plain.by_key(shape(), given[::-1], ["k"], ["at"], most=3)
    sums = {
        (row["k"], row["session_start"], row["position"]): (row["n"], row["sum"]) for row in rows
    }
    assert sums == {
        (None, start, 1): (3, 3),
        (None, start, 2): (-3, 4),
        (None, start + timedelta(minutes=31), 1): (-1, 2),
        ("a", start, 1): (-1, 2),
    }


EXAMPLE = ROOT / "examples" / "user_events" / "sessions.yaml"
SESSIONS: dict[str, Any] = yaml.safe_load(EXAMPLE.read_text())["flows"]["user_sessions"][
    "processor"
]
CLASS = SESSIONS.pop("class")
SESSIONS["order_by"] = SESSIONS["order_by"][:1]


def test_the_example_is_a_pipeline_of_this_project() -> None:
    spec = rooted(loader.load_alone(EXAMPLE, ROOT, {}), ROOT)
    flow = spec.flows["user_sessions"]
    assert isinstance(flow, DerivedFlow) and flow.kind == "processor" and flow.source.lacking == ""
    assert flow.stored_columns == [
        "user_id",
        "session_start",
        "position",
        "session_end",
        "events",
        "items",
    ]
    request = Request(spec=spec, flow="user_sessions", step="drain", run_id="r", root=str(ROOT))
    again = Request.decode(request.encode())
    assert again == request and again.declared.source.derivation == flow.source.derivation
    elsewhere = Request.decode(
        request.model_copy(update={"root": "/elsewhere"}).encode()
    ).declared.source
    assert elsewhere.lacking.startswith("no file /elsewhere/jobs/processors/sessions.py")
    assert elsewhere.derivation != flow.source.derivation


def _events(draw: Random, number: int) -> list[dict[str, Any]]:
    start = datetime(2026, 3, 1, tzinfo=UTC)
    return [
        {
            "user_id": draw.choice((None, "a", "b")),
            "happened_at": start + timedelta(minutes=draw.choice((0, 30, 31, draw.randrange(400)))),
            "item": draw.choice((None, "x", "y", "z")),
        }
        for _ in range(number)
    ]


def test_the_example_is_a_sessionizer() -> None:
    make, _ = loading.load(str(ROOT), CLASS, loading.digest(str(ROOT), CLASS))
    sessions, events = Processor(make, **SESSIONS), _events(Random(1), 200)
    sessions.check(events)
    expected = []
    for user in (None, "a", "b"):
        own = sorted(
            (one for one in events if one["user_id"] == user), key=lambda one: one["happened_at"]
        )
        runs: list[list[dict[str, Any]]] = []
        for one in own:
            if not runs or one["happened_at"] - runs[-1][-1]["happened_at"] > timedelta(minutes=30):
                runs.append([])
            runs[-1].append(one)
        for run in runs:
            row = {"user_id": user, "session_start": run[0]["happened_at"], "position": 1}
            row["session_end"] = run[-1]["happened_at"] + timedelta(minutes=30)
            items = {one["item"] for one in run} - {None}
            expected.append({**row, "events": len(run), "items": len(items)})
    assert len(expected) > 5 and sorted(map(repr, sessions.rows(events))) == sorted(
        map(repr, expected)
    )


class _Remembers(Running):
    seen: list[Any] = []  # noqa: RUF012 - the mistake

    def process(self, state: Any, rows: list[dict[str, Any]]) -> Any:
        self.seen.extend(rows)
        return [{"n": len(self.seen), "sum": 0}], None


class _PerCall(Running):
    def process(self, state: Any, rows: list[dict[str, Any]]) -> Any:
        return [{"n": len(rows), "sum": 0}], None


class _Forgets(Running):
    def process(self, state: Any, rows: list[dict[str, Any]]) -> Any:
        return [], {"n": (state["n"] if state else 0) + len(rows), "seen": [len(rows)]}


@pytest.mark.parametrize("make", [_Remembers, _PerCall, _Forgets])
def test_a_class_that_depends_on_more_than_state_and_rows_is_found(make: type) -> None:
    part = {
        **SESSIONS,
        "columns": {"n": "bigint", "sum": "bigint"},
        "state": {"n": "bigint", "seen": "array<bigint>"},
    }
    found = Processor(make, **part)
    if make is _Forgets:  # what `running` says of the last call
        found._shape.make.running = lambda self, state: [{"n": state["n"], "sum": state["seen"][0]}]
    with pytest.raises(AssertionError, match="depends on more than state and rows"):
        found.check(_events(Random(2), 60))


def test_what_the_file_would_refuse_is_refused() -> None:
    with pytest.raises(ValueError, match="is the name of another column of the result"):
        Processor(Running, **{**SESSIONS, "columns": {"position": "int"}})


def test_a_time_that_python_does_not_have_is_named_with_its_key() -> None:
    times = pa.array([0, 253_402_300_800_000_000], pa.int64()).cast(pa.timestamp("us", "UTC"))
    with pytest.raises(stream.Beyond) as error:
        stream.pylist(times)
    assert error.value.at == 1 and "years 1 to 9999" in str(error.value)
