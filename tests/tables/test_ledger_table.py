"""The ledger as a table: rows of earlier versions are read as what they mean, and rows of this one follow them."""

from __future__ import annotations

from pathlib import Path

import pyarrow as pa
from deltalake import DeltaTable, write_deltalake

from draindown.audit.recount import audit
from draindown.lake.table_log import TableLog
from draindown.ledger import table as ledger_table
from draindown.ledger.rows import BatchRow
from tests.flowfiles import drained


def test_a_ledger_whose_slices_were_called_cuts_is_read_and_goes_on(tmp_path: Path) -> None:
    asked = drained(tmp_path)
    before = ledger_table.recent(asked.layout, 9)
    _as_of_earlier_versions(asked.layout.ledger)
    assert "slice" not in TableLog(asked.layout.ledger).rows("select * from t")[0]
    assert ledger_table.recent(asked.layout, 9) == before
    assert {row.slice for row in ledger_table.of_source(asked.layout, "true")} == {1, 2}
    assert not audit(asked.spec, asked.flow, root=tmp_path).residues
    ledger_table.record(asked.layout, [BatchRow("p", "f", 1, 2, "r", slice=3, table_version=9)])
    assert [row.slice for row in ledger_table.recent(asked.layout, 9)] == [1, 2, 3]


def _as_of_earlier_versions(path: str) -> None:
    """Write the ledger anew with `cut` in the place of `slice`, as versions up to b023fb1 have it."""
    rows = DeltaTable(path).to_pyarrow_table()
    renamed = rows.rename_columns(["cut" if name == "slice" else name for name in rows.column_names])
    write_deltalake(path, pa.table(renamed), mode="overwrite", schema_mode="overwrite")
