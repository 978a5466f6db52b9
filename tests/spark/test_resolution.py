"""Expressions that only Spark can judge end a drain before it reads or writes; what needs no Spark,
it refuses too.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit
from draindown.config.expression_names import problems
from draindown.config.expressions import check_expression
from draindown.config.loader import load
from draindown.config.sql_words import FUNCTIONS, KEYWORDS
from draindown.runs.request import Again, Request
from draindown.spark.job.main import attempt
from draindown.spark.runs import rebuild, replay_input, replay_rows
from draindown.spark.runs.drain import drain

PIPELINE = """\
pipeline: p
lake: {root}/lake
flows:
  f:
    source: {{files: {root}/landing/*, format: json}}
    columns: {{id: string not null, n: int not null, s: "struct<a: int>"}}
    rules:
      right: n > 0 and s.a is null and arrived_at > '2000-01-01'
      {rule}
    target: {{keys: [id], sequence_by: [n], apply_as_deletes: "{deletes}"}}
"""

ONLY_SPARK_TELLS = {
    "function arguments": "date_add(n) > '2020-01-01'",
    "types": "map(1, 2) = n",
    "no condition": "n + 1",
    "a field that is not there": "s.b > 1",
    "a keyword that is no column": "type = 'x'",
    "an aggregate": "sum(n) > 1",
    "syntax": "n > > 1",
}


def request(root: Path, rule: str = "", deletes: str = "n < 0", **more: Any) -> Request:
    path = root / "p.yaml"
    written = f'wrong: "{rule}"' if rule else ""
    path.write_text(PIPELINE.format(root=root, rule=written, deletes=deletes))
    (root / "landing").mkdir(exist_ok=True)
    (root / "landing" / "1.json").write_text('{"id": "a", "n": 1}\n')
    return Request(spec=load(path, {}), flow="f", step="drain", run_id="r", root=str(root), **more)


@pytest.mark.parametrize("name", ONLY_SPARK_TELLS)
def test_a_rule_that_spark_refuses_ends_the_drain_before_it_begins(
    spark: SparkSession, tmp_path: Path, name: str, capfd: pytest.CaptureFixture[str]
) -> None:
    asked = Request.decode(request(tmp_path, ONLY_SPARK_TELLS[name]).encode())
    report, code = attempt(asked, lambda stop: drain(asked, spark, stop=stop))
    assert code == Exit.NEEDS_PERSON
    assert report.error is not None and report.error["code"] == "invalid-pipeline"
    (line,) = str(report.error["found"]).splitlines()
    assert line.startswith(f"{tmp_path}/p.yaml:9:7: flows.f.rules.wrong: ")
    assert "SQLSTATE" not in line and "Exception" not in line
    assert (
        not Path(asked.layout.tables.target.path).exists()
        and not Path(asked.layout.tables.intake(1).path).exists()
    )
    said = capfd.readouterr()
    assert "Traceback" not in said.err + said.out


def test_every_expression_that_is_wrong_is_named(spark: SparkSession, tmp_path: Path) -> None:
    asked = request(tmp_path, "s.b > 1", deletes="s.c = 1")
    with pytest.raises(TerminalError) as caught:
        drain(asked, spark)
    rule, deletes = caught.value.found.splitlines()
    assert ":9:7: flows.f.rules.wrong: " in rule and "flows.f.target.apply_as_deletes: " in deletes


@pytest.mark.parametrize("rule", ["n > 0 as x", "n > 0 as `and`"])
def test_a_name_for_the_result_is_no_part_of_a_condition(
    spark: SparkSession, tmp_path: Path, rule: str
) -> None:
    with pytest.raises(TerminalError) as caught:
        drain(request(tmp_path, rule), spark)
    assert (
        caught.value.code == "invalid-pipeline"
        and "would only name the result" in caught.value.found
    )


def test_the_loggers_that_are_silenced_are_pysparks_own() -> None:
    """In a process that has logged nothing yet: PySpark calls them with arguments that another
    logger refuses.
    """
    code = (
        "import logging; from draindown.spark.contract import analysis; from pyspark.logger import PySparkLogger\n"
        "with analysis._unlogged(): pass\n"
        "print(type(logging.getLogger('SQLQueryContextLogger')) is PySparkLogger)"
    )
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert told.stdout.strip() == "True"


@pytest.mark.parametrize("how", ["replay", "rows", "rebuild"])
def test_replays_and_rebuilds_refuse_them_too(
    spark: SparkSession, tmp_path: Path, how: str
) -> None:
    asked = request(tmp_path, "s.b > 1")
    work = {
        "replay": lambda: replay_input.replay(
            asked.model_copy(update={"replay": Again(units=("1.json",))}), spark
        ),
        "rows": lambda: replay_rows.replay(
            asked.model_copy(update={"quarantine_ids": ("x",)}), spark
        ),
        "rebuild": lambda: rebuild.rebuild(asked, spark),
    }
    with pytest.raises(TerminalError) as caught:
        work[how]()
    assert caught.value.code == "invalid-pipeline"


def test_what_spark_resolves_drains(spark: SparkSession, tmp_path: Path) -> None:
    assert drain(request(tmp_path), spark).outcome == "done"


# What resolution.py knows of Spark.


@pytest.mark.full
def test_the_words_are_those_of_this_spark(spark: SparkSession) -> None:
    keywords = {
        row["keyword"].lower() for row in spark.sql("select keyword from sql_keywords()").collect()
    }
    assert keywords == KEYWORDS
    functions = {row[0] for row in spark.sql("show system functions").collect()}
    assert {name for name in functions if re.fullmatch(r"[a-z_]\w*", name)} == FUNCTIONS


_AROUND = (
    "a {} 'b'",
    "a not {} 'b'",
    "a {} b",
    "a {} (b)",
    "a {} (b, c)",
    "a not {} (b)",
    "a {} any ('b')",
    "a {} b and c",
)
_AROUND += ("a is {}", "a is not {}", "a is {} from b", "{} a", "{} 'a'", "a {} 'b' escape 'c'")
_SIGNS = (
    "=",
    "==",
    "<=>",
    "<>",
    "!=",
    "<",
    "<=",
    ">",
    ">=",
    "+",
    "-",
    "*",
    "/",
    "%",
    "||",
    "&",
    "|",
    "^",
    "<<",
    ">>",
    ">>>",
)


@pytest.mark.long
def test_every_operator_and_predicate_of_spark_is_taken(spark: SparkSession) -> None:
    """Each word of Spark in each place around operands: where Spark reads more than a name for the
    result.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()  # type: ignore[attr-defined]
    symbols = spark._jvm.org.apache.spark.sql.catalyst.parser.SqlBaseLexer.VOCABULARY  # type: ignore[union-attr]
    tokens = {symbols.getSymbolicName(at) for at in range(symbols.getMaxTokenType() + 1)} - {None}
    words = (
        {name.lower() for name in tokens if re.fullmatch("[A-Z_]+", name)} | FUNCTIONS | KEYWORDS
    )
    parsed = set()
    for text in (
        form.format(word) for form in _AROUND for word in sorted({*words, *_SIGNS, "!", "~"})
    ):
        try:
            kind = parser.parseExpression(text).getClass().getSimpleName()
        except Exception:  # noqa: BLE001  Spark refuses it
            continue
        if kind != "Alias":
            parsed.add(text)
    assert {
        "a rlike 'b'",
        "a regexp 'b'",
        "a not rlike 'b'",
        "a ilike any ('b')",
        "a is distinct from b",
    } <= parsed
    assert {
        text: found for text in parsed if (found := list(problems(text, ["a", "b", "c"])))
    } == {}


@pytest.mark.parametrize("text", ["a rlike", "a regexp", "a ilike", "a div", "a rlik 'b'"])
def test_an_operator_needs_what_it_stands_between(text: str) -> None:
    assert list(problems(text, ["a"]))


_WITHOUT_EXAMPLES = frozenset(
    {"case", "collations", "python_worker_logs", "range", "sql_keywords", "variant_explode"}
) | {"variant_explode_outer"}


def test_nothing_that_spark_accepts_is_refused(spark: SparkSession) -> None:
    """Spark's own examples of its functions: 800 expressions that it accepts by its own tests."""
    session = spark._jsparkSession.sessionState().catalog()  # type: ignore[attr-defined]
    of = spark._jvm.org.apache.spark.sql.catalyst.FunctionIdentifier  # type: ignore[union-attr]
    seen = 0
    for name in sorted(FUNCTIONS - _WITHOUT_EXAMPLES):
        for found in re.finditer(
            r"^\s*> SELECT (.*);\s*$", session.lookupFunctionInfo(of(name)).getExamples(), re.M
        ):
            text = found[1]
            try:
                check_expression(text)
            except ValueError:
                continue
            seen += 1
            if list(problems(text, ["col", "a", "b", "c"])):
                assert not _accepts(spark, text), text
    assert seen > 700


def _accepts(spark: SparkSession, text: str) -> bool:
    try:
        spark.sql("select 1 as col, 1 as a, 1 as b, 1 as c").select(F.expr(text))
    except PySparkException:
        return False
    return True
