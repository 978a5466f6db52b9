"""Joins of a `query` query that no drain can keep exact are refused by `validate`, in the words of
the drain.
"""

from __future__ import annotations

from typing import Any

import pytest

from draindown.config.derived import DerivedFlow
from draindown.config.expressions import check_query
from draindown.config.models import PipelineSpec

ON = "on x.k = y.k"


@pytest.mark.parametrize(
    ("join", "form"),
    [
        ("full join", "FULL"),
        ("full outer join", "FULL OUTER"),
        ("FULL  OUTER\n join", "FULL OUTER"),
        ("anti join", "ANTI"),
        ("left anti join", "LEFT ANTI"),
        ("left semi join", "LEFT SEMI"),
        ("right join", "RIGHT"),
        ("right outer join", "RIGHT OUTER"),
        ("cross join", "CROSS"),
        ("natural full outer join", "NATURAL FULL OUTER"),
    ],
)
def test_joins_that_work_beyond_the_keys(join: str, form: str) -> None:
    with pytest.raises(ValueError, match=rf"has a {form} JOIN: only INNER and LEFT joins"):
        check_query(f"select x.k from t x {join} u y {ON}")


@pytest.mark.parametrize(
    "sql",
    [
        *(
            f"select x.k from t x {join} u y {ON}"
            for join in ("join", "inner join", "left join", "left outer join")
        ),
        "select k, right(v, 2) r, left(v, 2) l from t",
        "select k, 'full outer join' as text, `cross` from t join u using (k)",
    ],
)
def test_joins_that_work_within_the_keys(sql: str) -> None:
    assert check_query(sql) == sql


@pytest.mark.parametrize(
    ("target", "keys"), [({}, ()), ({"keys": ["id"], "sequence_by": ["n"]}, ("id",))]
)
def test_a_source_knows_the_keys_of_its_rows(target: dict[str, Any], keys: tuple[str, ...]) -> None:
    columns = {"id": "bigint not null", "n": "int not null"}
    landing = {"source": {"files": "in/*", "format": "json"}, "columns": columns, "target": target}
    per = {"keys": ["n"], "sql": "select n, count(*) c from t group by n"}
    flows = {"t": landing, "d": {"source": {"table": "t"}, "query": per}}
    declared = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": "lake", "flows": flows}
    ).declared("d")
    assert isinstance(declared, DerivedFlow) and declared.source.read[0].row_keys == keys
