"""Values of Arrow columns as JSON: the texts of a column are those of its values, one by one."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from datetime import UTC, date, datetime, timedelta
from decimal import Decimal
from itertools import product
from typing import Any

import pyarrow as pa
import pytest

from draindown.sinks.kafka.messages import Messages
from draindown.sinks.port import FATE, SinkBatch, SinkColumn, SinkPlace
from draindown.sinks.values import JSON, ready, texts

CHANCE = random.Random(40)
START = datetime(2026, 3, 1, tzinfo=UTC)
FLOATS = [0.0, -0.0, 1.5, 1e300, float("nan"), float("inf"), float("-inf")]
TEXTS = ["", 'a"\\\n\x00\x1f', "é😀\u2028\u2029", "\x7f", "</script>"]


def moment() -> datetime:
    return START + timedelta(microseconds=CHANCE.randrange(10**15))


KINDS: dict[str, tuple[pa.DataType, Callable[[], Any]]] = {
    "text": (pa.string(), lambda: CHANCE.choice(TEXTS)),
    "large text": (pa.large_string(), lambda: CHANCE.choice(TEXTS)),
    "bigint": (pa.int64(), lambda: CHANCE.randrange(-(2**63), 2**63)),
    "tinyint": (pa.int8(), lambda: CHANCE.randrange(-128, 128)),
    "boolean": (pa.bool_(), lambda: CHANCE.random() < 0.5),
    "double": (pa.float64(), lambda: CHANCE.choice(FLOATS)),
    "float": (pa.float32(), lambda: CHANCE.choice([1.5, 0.1, float("inf")])),
    "date": (pa.date32(), lambda: date(2026, 1, 1) + timedelta(days=CHANCE.randrange(999))),
    "timestamp": (pa.timestamp("us", "UTC"), moment),
    "timestamp_ntz": (pa.timestamp("us"), lambda: moment().replace(tzinfo=None)),
    "decimal": (
        pa.decimal128(20, 3),
        lambda: Decimal(CHANCE.randrange(-(10**9), 10**9)).scaleb(-3),
    ),
    "binary": (pa.binary(), lambda: CHANCE.randbytes(3)),
    "array": (pa.list_(pa.float64()), lambda: [CHANCE.choice(FLOATS), None]),
    "struct": (
        pa.struct([("n", pa.int64()), ("t", pa.string())]),
        lambda: {"n": 1, "t": CHANCE.choice(TEXTS)},
    ),
    "map": (
        pa.map_(pa.string(), pa.decimal128(5, 2)),
        lambda: [("a", Decimal("1.50")), ("b", None)],
    ),
}


@pytest.fixture(autouse=True)
def same_draws() -> None:
    """Makes the values of a test the same, whichever tests drew before it."""
    CHANCE.seed(40)


@pytest.mark.parametrize("kind", KINDS)
def test_the_texts_of_a_column_are_those_of_its_values(kind: str) -> None:
    form, made = KINDS[kind]
    column = pa.array([None if CHANCE.random() < 0.2 else made() for _ in range(500)], form)
    found = texts(column)
    assert found == [JSON(value) for value in ready(column)]
    assert [json.loads(text) for text in found] == ready(column)


def _far(form: pa.DataType, text: str) -> pa.Array:
    number = pa.types.is_date(form)
    days = {"10001-02-04": 2_933_297, "0001-01-01": -719_162}[text]
    return pa.array(
        [days if number else days * 86_400_000_000, None], pa.int32() if number else pa.int64()
    ).cast(form)


@pytest.mark.parametrize("day", ["10001-02-04", "0001-01-01"])
@pytest.mark.parametrize("form", [pa.date32(), pa.timestamp("us", "UTC"), pa.timestamp("us")])
def test_dates_and_times_within_nested_values_may_be_any_that_spark_has(
    form: pa.DataType, day: str
) -> None:
    values = _far(form, day)
    zone = "Z" if pa.types.is_timestamp(form) and form.tz else ""
    text = day if pa.types.is_date(form) else f"{day}T00:00:00.000000{zone}"
    listed = pa.ListArray.from_arrays([0, 2], values)
    assert ready(listed) == [[text, None]]
    structs = pa.StructArray.from_arrays([values, values], ["a", "b"])
    assert ready(structs) == [{"a": text, "b": text}, {"a": None, "b": None}]
    assert ready(pa.MapArray.from_arrays([0, 1], values[:1], listed)) == [{text: [text, None]}]


def test_times_within_nested_values_are_those_of_top_level() -> None:
    berlin = pa.timestamp("us", "Europe/Berlin")
    column = pa.array([moment() for _ in range(200)], berlin)
    assert [one for (one,) in ready(pa.ListArray.from_arrays(range(201), column))] == ready(column)
    assert ready(pa.array([date(2026, 1, 2), None])) == ["2026-01-02", None]


KEYS: dict[str, tuple[pa.DataType, list[Any]]] = {
    "string": (
        pa.string(),
        ["a", "A", "a ", "", "1", "null", "\u00e9", "e\u0301", '"', "\\", "\n"],
    ),
    "bigint": (pa.int64(), [0, 1, -1, 10, 2**63 - 1]),
    "decimal(5,2)": (
        pa.decimal128(5, 2),
        [Decimal("1.00"), Decimal("1.10"), Decimal("0.01"), Decimal("-0.01")],
    ),
    "boolean": (pa.bool_(), [True, False]),
    "binary": (pa.binary(), [b"", b"\0", b"\0\0", b"a", b"A"]),
    "date": (pa.date32(), [date(1, 1, 1), date(11, 1, 1), date(999, 9, 9), date(9999, 12, 31)]),
    "timestamp": (
        pa.timestamp("us", "UTC"),
        [
            datetime.min.replace(tzinfo=UTC),
            datetime(11, 1, 1, tzinfo=UTC),
            datetime.max.replace(tzinfo=UTC),
        ],
    ),
    "timestamp_ntz": (pa.timestamp("us"), [datetime.min, datetime(111, 1, 1), datetime.max]),
}


@pytest.mark.parametrize("kinds", [*product(KEYS), *product(KEYS, repeat=2)], ids=" ".join)
def test_keys_that_differ_are_messages_with_keys_that_differ(kinds: tuple[str, ...]) -> None:
    columns = [SinkColumn(f"k{at}", kind, key=True) for at, kind in enumerate(kinds)]
    keys = list(product(*(KEYS[kind][1] for kind in kinds)))
    arrays = [pa.array([key[at] for key in keys], KEYS[kind][0]) for at, kind in enumerate(kinds)]
    fates = pa.array(["upsert"] * len(keys))
    rows = pa.RecordBatch.from_arrays(
        [*arrays, fates], names=[*(column.name for column in columns), FATE]
    )
    batch = SinkBatch(SinkPlace("l", "p", "f", "s"), "w", 0, 1, "drain", 0, 1, len(keys), "00")
    sent = list(Messages(batch, columns).of(rows))
    assert (
        len({message.key for message in sent})
        == len({message.row for message in sent})
        == len(keys)
    )
