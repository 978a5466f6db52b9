"""What a table can't hold: partitions that Delta stores as others, and writes that somebody forbade
it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from typing import Any

import pytest
from deltalake import DeltaTable

from draindown.audit.recount import audit
from draindown.base.exits import Exit
from draindown.spark.runs.replay_rows import replay

Make = Callable[[Mapping[str, Any]], Any]
COLUMNS = {"id": "int not null", "n": "int not null", "p": "string", "gone": "boolean"}
KEYED = {"keys": ["id"], "sequence_by": ["n"], "apply_as_deletes": "gone"}
LONGEST = {"plain": "x" * 253, "two bytes": "é" * 126, "escaped": "/" * 84}
"""As long as the name of a directory `p=...` can be: 255 bytes, and three for a character that is
escaped.
"""
NONE = {
    "nothing": "",
    "what stands for NULL": "__HIVE_DEFAULT_PARTITION__",
    "NUL": "a\0b",
    **{f"{name}, too long": text + text[0] for name, text in LONGEST.items()},
}
FINE = [*LONGEST.values(), None, "x", "__hive_default_partition__", " ", "a=b%2F\n\"'\\\\"]


def row(number: int, text: str | None, **more: Any) -> str:
    return json.dumps({"id": number, "n": 1, "p": text, **more})


@pytest.mark.full
@pytest.mark.parametrize(
    "keys", [["id"], *(pytest.param(keys, marks=pytest.mark.long) for keys in ([], ["id", "p"]))]
)
def test_a_text_that_would_be_another_partition_is_refused_by_row(
    landing: Make, keys: list[str]
) -> None:
    columns = COLUMNS | ({"p": "string not null"} if "p" in keys else {})
    target = (KEYED | {"keys": keys} if keys else {}) | {"partition_by": ["p"]}
    here = landing({"columns": columns, "target": target})
    fine = [text for text in FINE if text is not None or "p" not in keys]
    here.deliver(
        *[row(at, text) for at, text in enumerate(fine)], *[row(90, text) for text in NONE.values()]
    )
    report, code = here.attempt()
    assert code == Exit.DONE, report.error
    assert {r["id"]: r["p"] for r in here.rows()} == dict(enumerate(fine))
    refused = here.refused()
    wanted = {len(fine) + 1 + at: ("partition", "p") for at in range(len(NONE))}
    assert {at: (r["reason"], r["field"]) for (_, at), r in refused.items()} == wanted
    assert "Delta stores it as NULL" in next(iter(refused.values()))["detail"]
    assert {json.loads(r["raw"])["p"] for r in refused.values()} == set(NONE.values())
    left = dict(enumerate(fine))
    if keys == ["id"]:  # a delete stores no partition
        texts = ("", "__HIVE_DEFAULT_PARTITION__")
        here.deliver(
            *[row(at, text, n=2, gone=True) for at, text in enumerate(texts)], row(2, "moved", n=2)
        )
        assert here.attempt()[1] == Exit.DONE
        left = {at: text for at, text in left.items() if at > 1} | {2: "moved"}
        assert {r["id"]: r["p"] for r in here.rows()} == left
    replay(
        here.request("again", quarantine_ids=[r["quarantine_id"] for r in refused.values()]),
        here.spark,
    )
    assert {at for _, at in here.refused()} == set(wanted)
    assert audit(here.spec, "f", root=here.home).residues == []
    assert {r["id"]: r["p"] for r in here.rows()} == left


@pytest.mark.full
def test_a_table_that_takes_no_such_row_is_named_with_the_way_out(landing: Make) -> None:
    here = landing({"columns": COLUMNS, "target": KEYED})
    here.deliver(row(1, "a"))
    assert here.attempt_batches()[1] == Exit.DONE

    def alter() -> Any:
        return DeltaTable(here.layout.tables.target.path).alter

    here.deliver(json.dumps({"id": 1, "n": 7, "p": "c"}))
    alter().set_table_properties({"delta.appendOnly": "true"})
    report, code = here.attempt_batches()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "table-restricted")
    assert "UNSET TBLPROPERTIES ('delta.appendOnly')" in report.error["next"][0]
    alter().set_table_properties({"delta.appendOnly": "false"})
    alter().add_constraint({"small": "n < 5"})
    report, code = here.attempt_batches()
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "table-restricted")
    assert "DROP CONSTRAINT small " in report.error["next"][0]
    alter().drop_constraint("small")
    assert here.attempt_batches()[1] == Exit.DONE
    assert [(r["id"], r["n"], r["p"]) for r in here.rows()] == [(1, 7, "c")]
