"""What is read off ledger rows."""

from __future__ import annotations

import pytest

from draindown.ledger.rows import newest_sequence


@pytest.mark.parametrize(
    ("texts", "newest"),
    [
        ([], None),
        (["9", "10", "-11"], "10"),
        (["9.5", "1E+1"], "1E+1"),
        (["2024-07-01 00:00:00", "2024-07-01 00:00:00.5", "2023-12-31 23:59:59"], "2024-07-01 00:00:00.5"),
        (["b", "9", "a"], "b"),
    ],
)
def test_the_newest_sequence_is_that_by_value(texts: list[str], newest: str | None) -> None:
    assert newest_sequence(texts) == newest
