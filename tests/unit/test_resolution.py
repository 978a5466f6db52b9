"""Names in SQL expressions, without Spark: what is certain to fail is named, and nothing else
is.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from draindown.base.errors import TerminalError
from draindown.config.expression_names import problems
from draindown.config.loader import load

COLUMNS = ("status", "id", "amount", "updated_at", "arrived_at", "tags", "m", "s")

WRONG = {
    "statuss in ('placed')": "there is no column 'statuss'; did you mean 'status'?",
    "`statuss` = 'a'": "there is no column 'statuss'; did you mean 'status'?",
    "length(Statuss) > 1": "there is no column 'Statuss'; did you mean 'status'?",
    "cast(amout as int) > 1": "there is no column 'amout'; did you mean 'amount'?",
    "exists(tags, x -> x > zzz)": f"there is no column 'zzz'; there are {', '.join(COLUMNS)}",
    "s.x > 1 and zzz.y > 1": f"there is no column 'zzz'; there are {', '.join(COLUMNS)}",
    "s.a[qqq] = 1": f"there is no column 'qqq'; there are {', '.join(COLUMNS)}",
    "amount > 0 andd": "'andd' can't stand there; did you mean 'and'?",
    "amount > 0 nonsense": "'nonsense' can't stand there",
    "status in ('a') and": "ends with 'and'",
    "amount > 0 OR": "ends with 'OR'",
    "status = 'a' not": "ends with 'not'",
    "amount > 0 andd id > 1": "'andd' can't stand there; did you mean 'and'?",
    "status inn ('a')": "'inn' can't stand there; did you mean 'in'?",
    "(amount > 0) orr id": "'orr' can't stand there; did you mean 'or'?",
    "amount >": "ends with '>'",
    "nosuchfn(id) > 1": "Spark has no function 'nosuchfn'",
    "lenght(status) > 1": "Spark has no function 'lenght'; did you mean 'length'?",
}

RIGHT = [
    "STATUS in ('a')",
    "exists(tags, x -> x > 1)",
    "aggregate(tags, 0, (acc, x) -> acc + x) > 0",
    "cast(s as struct<foo: int, bar: array<string>>) is null and id > 0",
    "cast(amount as decimal(10, 2)) > 0 and amount::int > 0",
    "extract(doy from updated_at) > 1",
    "date_add(DAY, 1, updated_at) > arrived_at",
    "timestampdiff(HOUR, updated_at, arrived_at) > 1",
    "updated_at between '2000-01-01' and arrived_at + interval 1 day",
    "interval '1' day < interval 2 days",
    "status collate utf8_lcase = 'a'",
    "x'1F' = status and date'2020-01-01' < updated_at",
    "s.foo.bar = 1 and m['k'] > 2",
    "status like any ('a%', 'b')",
    "case when amount > 1 then true else false end",
    "struct(id as foo).foo > 1",
    "mask(status, otherChar => 'd') = 'd'",
    "trim(both 'x' from status) = ''",
    "array_sort(tags, (l, r) -> case when l < r then -1 else 1 end)[0] = 1",
    "overlay(status placing '_' from 6) = 'a'",
    "system.builtin.length(status) > 1",
    "amount > 1e5 and amount < 10L",
    "user = 'a'",  # a keyword may be a column's name, or a function without parentheses: Spark tells
]


@pytest.mark.parametrize(("expression", "said"), WRONG.items())
def test_what_spark_is_certain_to_refuse_is_named(expression: str, said: str) -> None:
    assert list(problems(expression, COLUMNS)) == [said]


@pytest.mark.parametrize("expression", RIGHT)
def test_what_spark_may_accept_is_left_to_spark(expression: str) -> None:
    assert list(problems(expression, COLUMNS)) == []


PIPELINE = """\
pipeline: orders
lake: lake
flows:
  orders:
    source: {{files: in/*.json, format: json}}
    columns: {{id: string not null, n: int not null, status: string}}
    rules:
      right: n > 0
      wrong: {rule}
    target:
      keys: [id]
      sequence_by: [n]
      apply_as_deletes: {deletes}
"""


def test_a_file_is_refused_with_line_and_rule(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(
        PIPELINE.format(rule="statuss in ('placed')", deletes="arrived_at > '2020-01-01'")
    )
    with pytest.raises(TerminalError) as caught:
        load(path, {})
    assert caught.value.code == "invalid-pipeline"
    first, second = caught.value.found.splitlines()
    assert first.startswith(f"{path}:9:7: flows.orders.rules.wrong: there is no column 'statuss'")
    # the time a file was first seen judges rows, and deletes none
    assert second.startswith(
        f"{path}:13:7: flows.orders.target.apply_as_deletes: there is no column 'arrived_at'"
    )


def test_rules_may_look_at_the_time_their_file_was_first_seen(tmp_path: Path) -> None:
    path = tmp_path / "orders.yaml"
    path.write_text(
        PIPELINE.format(rule="n > 0 and arrived_at > '2020-01-01'", deletes="status = 'x'")
    )
    assert load(path, {}).flows["orders"].rules
