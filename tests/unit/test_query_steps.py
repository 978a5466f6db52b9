"""What every run refuses of a query or a rule is refused by the file, with what does it instead."""

from __future__ import annotations

import pytest

from draindown.config.expressions import check_expression, check_measure, check_query
from draindown.config.generators import GENERATORS
from draindown.config.query_names import problems

TABLE = {"t": ["k", "g", "a", "b", "pivot", "items"]}


def told(query: str) -> list[str]:
    try:
        check_query(query)
    except ValueError as error:
        return [str(error)]
    return list(problems(query, ["k", "g"], TABLE))


@pytest.mark.parametrize("name", sorted(GENERATORS))
def test_a_function_that_makes_several_rows_of_one_is_refused_wherever_it_stands(name: str) -> None:
    for check in (check_expression, check_measure):
        with pytest.raises(ValueError, match=rf"{name}\(\) makes several rows"):
            check(f"{name.upper()}(items)")
    for query in (
        f"select k, g, {name}(items) from t",
        f"select k, g from t lateral view outer {name}(items) e as z",
    ):
        assert len(told(query)) == 1 and f"{name}() makes several rows" in told(query)[0]


@pytest.mark.parametrize(
    ("query", "step"),
    [
        ("select k, g from t, lateral (select 1 as z)", "LATERAL"),
        ("select k, g from t lateral view some_rows(items) e as z", "LATERAL VIEW"),
        ("select * from t pivot (sum(a) for b in (1, 5))", "PIVOT"),
        ("select * from t unpivot (v for n in (a, b))", "UNPIVOT"),
        ("select * from t unpivot include nulls (v for n in (a, b))", "UNPIVOT INCLUDE"),
        ("select k, g from t tablesample (10 percent)", "TABLESAMPLE"),
        ("select k, g from t intersect select k, g from t", "INTERSECT"),
        ("select k, g from t except all select k, g from t", "EXCEPT ALL"),
        ("select k, g from t minus select k, g from t", "MINUS"),
        ("select k, g, count(*) c from t group by rollup(k, g)", "ROLLUP"),
        ("select k, g, count(*) c from t group by cube(k, g)", "CUBE"),
        ("select k, g, count(*) c from t group by grouping sets ((k, g), (k))", "GROUPING SETS"),
        ("select k, g from t where a in (select a from t)", "IN"),
        ("select k, g from t where exists (select 1 from t)", "EXISTS"),
        ("select k, g from range(3)", "range()"),
        ("select k, g from t join range(3) r on t.k = r.id", "range()"),
    ],
)
def test_a_step_that_does_not_work_within_the_keys_is_refused_by_the_file(
    query: str, step: str
) -> None:
    assert any(step in line for line in told(query)), told(query)


@pytest.mark.parametrize(
    "query",
    [
        "select * except (a) from t",
        "select k, g, pivot from t",
        "select k, g, t.pivot from t where a in (1, 2)",
        "select k, g, exists(items, i -> i > 1) as some, size(filter(items, i -> i > 1)) as n from t",
        "select k, g, extract(year from to_date(a)) as y, trim(both 'x' from upper(b)) as u from t",
        "select k, g from t where a is distinct from coalesce(b, 1)",
        "select distinct k, g from t union all select k, g from t",
    ],
)
def test_what_works_is_left_alone(query: str) -> None:
    assert told(query) == []
