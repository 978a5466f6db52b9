"""What another engine does to a table, and the printed commands that help, with Spark as that
engine.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.lake import features
from draindown.planning.plan import plan
from draindown.recovery import reset
from draindown.spark.runs.rebuild import rebuild
from tests.flowfiles import AT

Make = Callable[[Mapping[str, Any]], Any]
COLUMNS = {"id": "int not null", "n": "int not null", "v": "string"}
KEYED = {"keys": ["id"], "sequence_by": ["n"]}
MAPPED = "ALTER TABLE {t} SET TBLPROPERTIES ('delta.columnMapping.mode' = 'name')"


def row(number: int, text: str, n: int = 1) -> str:
    return json.dumps({"id": number, "n": n, "v": text})


def altered(here: Any, *statements: str) -> None:
    for statement in statements:
        here.spark.sql(statement.format(t=f"delta.`{here.layout.tables.target.path}`"))


def named(here: Any, code: str) -> tuple[str, ...]:
    """The ways out that both the plan and the drain name."""
    with pytest.raises(TerminalError) as caught:
        plan(here.request(), AT)
    report, ended = here.attempt()
    assert (caught.value.code, report.error["code"], ended) == (code, code, Exit.NEEDS_PERSON)
    return caught.value.next


def statement(way: str) -> str:
    """A printed statement of Spark SQL without what is said of it."""
    return way.partition("   #")[0]


def test_a_renamed_column_loses_no_value(landing: Make) -> None:
    here = landing({"columns": COLUMNS, "target": KEYED})
    here.deliver(row(1, "a"))
    assert here.attempt()[1] == Exit.DONE
    altered(here, MAPPED, "ALTER TABLE {t} RENAME COLUMN v TO w")
    here.deliver(row(2, "b"))
    ways = named(here, "table-altered")
    assert {r["id"]: r["w"] for r in here.rows()} == {1: "a"}
    here.spark.sql(statement(ways[0]))
    assert here.attempt()[1] == Exit.DONE
    assert {r["id"]: r["v"] for r in here.rows()} == {1: "a", 2: "b"}


@pytest.mark.full
def test_what_no_alter_takes_back_is_restored_or_rebuilt(landing: Make) -> None:
    here = landing({"columns": COLUMNS, "target": KEYED})
    here.deliver(row(1, "a"))
    assert here.attempt()[1] == Exit.DONE
    again = (MAPPED, "ALTER TABLE {t} DROP COLUMN v", "ALTER TABLE {t} ADD COLUMNS (v STRING)")
    altered(here, *again)
    here.deliver(row(2, "b"))
    ways = named(here, "table-altered")
    here.spark.sql(statement(ways[0]))
    assert here.attempt()[1] == Exit.DONE
    assert {r["id"]: r["v"] for r in here.rows()} == {1: "a", 2: "b"}
    altered(here, *again)
    assert named(here, "table-altered")[-1].startswith("draindown rebuild ")
    rebuild(here.request("rebuilt"), here.spark, progress=lambda line: None)
    here.deliver(row(3, "c"))
    assert here.attempt()[1] == Exit.DONE
    assert {r["id"]: r["v"] for r in here.rows()} == {1: "a", 2: "b", 3: "c"}


@pytest.mark.full
def test_a_feature_that_deltalake_lacks_goes_by_the_statement(landing: Make) -> None:
    here = landing({"columns": COLUMNS, "target": KEYED})
    here.deliver(row(1, "a"))
    assert here.attempt()[1] == Exit.DONE
    altered(here, "ALTER TABLE {t} SET TBLPROPERTIES ('delta.enableTypeWidening' = 'true')")
    here.deliver(row(2, "b"))
    ways = named(here, "table-feature")
    with pytest.raises(TerminalError) as caught:
        rebuild(here.request("rebuilt"), here.spark, progress=lambda line: None)
    assert caught.value.code == "table-feature"
    here.spark.sql(statement(ways[0]))
    assert here.attempt()[1] == Exit.DONE
    assert {r["id"]: r["v"] for r in here.rows()} == {1: "a", 2: "b"}


@pytest.mark.full
@pytest.mark.parametrize("keys", [["id"], []], ids=["upsert", "append"])
def test_a_lost_file_is_read_again_after_the_reset(landing: Make, keys: list[str]) -> None:
    here = landing({"columns": COLUMNS, "target": KEYED if keys else {}})
    here.deliver(row(1, "a"))
    assert here.attempt()[1] == Exit.DONE
    next(Path(here.layout.tables.target.path).glob("*.parquet")).unlink()
    with pytest.raises(TerminalError) as caught:
        plan(here.request(), AT)
    assert caught.value.code == "table-damaged" and "removed" in caught.value.found
    assert caught.value.next[0].startswith("draindown reset ")
    reset.begin(here.request(), reset.plan(here.request()), by="me", accept_missing=False)
    assert here.attempt()[1] == Exit.DONE
    assert {r["id"]: r["v"] for r in here.rows()} == {1: "a"}


def test_the_features_that_spark_writes_and_drops_are_those_of_the_lists(
    spark: SparkSession,
) -> None:
    known = (
        spark._jvm.org.apache.spark.sql.delta.TableFeature.allSupportedFeaturesMap()
        .values()
        .iterator()
    )
    names, removable = set(), set()
    while known.hasNext():
        feature = known.next()
        names.add(feature.name())
        if feature.isRemovable():
            removable.add(feature.name())
    assert (names, removable) == (features._WRITTEN_BY_SPARK, features._DROPPED_BY_SPARK)


@pytest.mark.full
def test_a_checkpoint_of_the_second_form_is_read(landing: Make) -> None:
    here = landing({"columns": COLUMNS, "target": KEYED})
    here.deliver(row(1, "a"))
    assert here.attempt()[1] == Exit.DONE
    policy = "'delta.checkpointPolicy' = 'v2', 'delta.checkpointInterval' = '1'"
    altered(here, f"ALTER TABLE {{t}} SET TBLPROPERTIES ({policy})")
    here.deliver(row(2, "b"))
    assert here.attempt()[1] == Exit.DONE
    assert list(Path(here.layout.tables.target.path, "_delta_log", "_sidecars").glob("*.parquet"))
    assert here.layout.tables.target.row_count == 2
