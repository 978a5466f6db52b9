"""The digest of a version of a table: one function for all engines of proofs, so that certificates
compare.
"""

from __future__ import annotations

from draindown.base.duck import connected
from draindown.config.names import is_own
from draindown.lake.table import Table, identifier, stream


def digest(table: Table) -> str:
    """Return a digest of the rows of a table at its version, in 16 hexadecimal digits (64 bits).

    It does not depend on the order of rows, nor on files. Each of several equal rows counts.
    draindown's own columns (`_changed_at`) are left out.
    """
    names = [identifier(name) for name in sorted(table.column_types) if not is_own(name)]
    texts = (f"cast({name} as varchar)" for name in names)
    # with its length, so that no two rows have one text
    parts = ", ".join(f"coalesce(length({text}) || ':' || {text}, '-')" for text in texts)
    row = f"md5_number_lower(concat({parts}))"
    with connected() as db:
        db.register("held", stream(table.table, f"select {', '.join(names)} from t"))
        found = db.execute(
            f"select coalesce(sum({row}::hugeint) % 18446744073709551616, 0) from held"
        ).fetchone()
    assert found is not None  # an aggregate without groups has one row
    return f"{int(found[0]):016x}"
