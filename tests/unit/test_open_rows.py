"""Which files of a history compaction rewrites."""

from __future__ import annotations

from draindown.planning.open_rows import HistoryFile, end_path, open_share, worth_rewriting

SMALL, LARGE = 10, 90


def of(size: int, open_: float, gone: int = 0) -> HistoryFile:
    return HistoryFile(size, 100, gone, open_)


def test_files_with_both_kinds_of_rows_and_several_small_ones_of_a_kind_are_rewritten() -> None:
    alone = [of(SMALL, 1), of(SMALL, 0), of(LARGE, 1), of(LARGE, 0)]
    assert worth_rewriting(alone, 100, 0.2) == []
    assert worth_rewriting([*alone, of(SMALL, 0)], 100, 0.2) == [of(SMALL, 0)] * 2
    assert worth_rewriting([*alone, of(LARGE, 0.5)], 100, 0.2) == [
        of(LARGE, 0.5),
        of(SMALL, 1),
        of(SMALL, 0),
    ]


def test_of_deleted_rows_a_share_counts() -> None:
    assert worth_rewriting([of(LARGE, 1, gone=20), of(LARGE, 0, gone=21)], 100, 0.2) == [
        of(LARGE, 0, gone=21)
    ]
    assert worth_rewriting([of(LARGE, 1, gone=1)], 100, 0) == [of(LARGE, 1, gone=1)]


def test_a_file_without_statistics_may_hold_both() -> None:
    found = (
        open_share(None, None),
        open_share(4, 1),
        open_share(0, 0),
        open_share(4, None),
        open_share(4, 4),
    )
    assert found == (0.5, 0.25, 0, 0.5, 1)


def test_the_end_of_a_row_is_found_by_the_schema() -> None:
    several = {
        "type": "struct",
        "fields": [{"name": "at", "type": "long"}, {"name": "seq", "type": "integer"}],
    }
    assert end_path([{"name": "k", "type": "long"}]) is None
    assert end_path([{"name": "__END_AT", "type": "long"}]) == ("__END_AT",)
    assert end_path([{"name": "__END_AT", "type": several}]) == ("__END_AT", "at")
