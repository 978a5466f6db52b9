"""What of a table's columns is other than its spec says, without Spark."""

from __future__ import annotations

import pytest
from pyspark.sql.types import ArrayType, IntegerType, LongType, StringType, StructField, StructType

from draindown.spark.targets.table_schema import differences, nullable, other_form


def _origin(
    *, unit: bool = True, position: bool = True, number: LongType | IntegerType | None = None
) -> StructType:
    return StructType(
        [
            StructField("input", StringType(), unit),
            StructField("position", number or LongType(), position),
        ]
    )


def _one(
    kind: StructType | ArrayType | LongType | StringType, name: str = "_origin", null: bool = True
) -> StructType:
    return StructType([StructField(name, kind, null)])


@pytest.mark.parametrize("held", [_origin(), _origin(unit=False), _origin(position=False)])
@pytest.mark.parametrize(
    "wanted", [_origin(), _origin(unit=False), _origin(unit=False, position=False)]
)
@pytest.mark.parametrize("null", [True, False])
def test_whether_a_value_may_be_missing_is_no_difference(
    held: StructType, wanted: StructType, null: bool
) -> None:
    assert list(differences(_one(held), _one(wanted, null=null))) == []
    assert list(differences(_one(ArrayType(held, True)), _one(ArrayType(wanted, False)))) == []


def test_types_and_case_are() -> None:
    (told,) = differences(_one(_origin()), _one(_origin(number=IntegerType())))
    assert told.startswith(
        "column _origin is struct<input:string,position:bigint> in the table and "
    )
    assert list(differences(_one(LongType(), "a"), _one(StringType(), "a"))) == [
        "column a is bigint in the table and string in the spec"
    ]
    assert list(differences(_one(LongType(), "A"), _one(LongType(), "a"))) == [
        "column a is spelled A in the table"
    ]
    assert list(differences(_one(LongType(), "a"), _one(StringType(), "b"))) == []


def test_rows_that_were_appended_are_not_merged_by_keys() -> None:
    keyed = _one(StringType(), "id")
    appended = StructType([*keyed, *_one(_origin())])
    assert list(other_form(appended, keyed)) == [
        "the table's rows were appended without keys, and the spec has keys"
    ]
    assert list(other_form(appended, appended)) == list(other_form(keyed, keyed)) == []
    assert list(other_form(keyed, appended)) == [], "the table says that it has keys"


def test_a_table_takes_missing_values_at_any_depth() -> None:
    made = nullable(_one(ArrayType(_origin(unit=False, position=False), False), null=False))
    assert made == _one(ArrayType(_origin(), True))
