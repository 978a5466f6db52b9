"""A file that was taken in and lost before it was read is given up; its batch goes on without
it.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from draindown.audit.recount import audit
from draindown.base.clock import now
from draindown.base.exits import Exit
from draindown.flow import discards
from draindown.sources.registry import source_of


@pytest.mark.full
@pytest.mark.parametrize("keyed", [False, pytest.param(True, marks=pytest.mark.long)])
def test_a_lost_file_that_was_given_up_stops_nobody(
    landing: Callable[[Any], Any], keyed: bool
) -> None:
    target = {"keys": ["id"], "sequence_by": ["n"]} if keyed else {}
    columns = {"id": "string not null", "n": "int not null"}
    source = {"format": "json", "max_files_per_trigger": 1}
    flow = landing({"source": source, "columns": columns, "target": target})
    flow.land("0.json", b'{"id": "a", "n": 1}\n')
    lost = flow.land("1.json", b'{"id": "b", "n": 1}\n')
    flow.land("2.json", b'{"id": "c", "n": 1}\n')

    def lose(step: str) -> None:
        if step == "recorded":
            lost.unlink(missing_ok=True)

    report, code = flow.attempt(reached=lose)
    assert (code, report.error["code"]) == (Exit.NEEDS_PERSON, "input-changed")
    assert f"--file {lost}" in report.error["next"][1]
    discards.discard_input(
        source_of(flow.request()), flow.layout, [str(lost)], by="me", note="", at=now()
    )
    report, code = flow.attempt()
    assert code == Exit.DONE
    assert sorted(row["id"] for row in flow.rows()) == ["a", "c"]
    assert [row["inputs"] for row in report.drain.batches] == [0, 1]
    assert list(audit(flow.spec, "f", root=flow.home).residues) == []
