"""What a batch will take is told from batches that tell it, and not from others."""

from __future__ import annotations

import pytest

from draindown.sources.batch_size import batch_seconds

MB = 1024**2


def test_seven_rows_tell_nothing_of_a_gigabyte() -> None:
    assert batch_seconds([(595, 5.6)], 1024 * MB) is None  # 117 days in proportion


@pytest.mark.parametrize("size", [1, 100, 595])
def test_a_little_batch_takes_as_long_as_a_little_batch(size: int) -> None:
    assert batch_seconds([(595, 5.6)], size) == pytest.approx(5.6)


def test_without_history_there_is_no_forecast() -> None:
    assert batch_seconds([], 1) is None


@pytest.mark.parametrize(("fixed", "rate"), [(5.0, 0.1), (0.0, 0.5), (60.0, 0.0)])
@pytest.mark.parametrize("size", [1, 30, 100, 400])
def test_a_fixed_part_and_a_rate_are_found(fixed: float, rate: float, size: int) -> None:
    history = [(n * MB, fixed + rate * n) for n in (1, 2, 10, 50, 100)]
    assert batch_seconds(history, size * MB) == pytest.approx(
        fixed + rate * size, rel=0.01, abs=0.01
    )


def test_what_is_far_beyond_all_that_was_read_is_not_told() -> None:
    history = [(n * MB, 5.0 + n) for n in (1, 2, 10)]
    assert batch_seconds(history, 40 * MB) is not None
    assert batch_seconds(history, 41 * MB) is None


def test_batches_that_were_alike_give_a_proportion_and_no_line() -> None:
    history = [
        (10 * MB, 10.0),
        (10 * MB + 1, 30.0),
        (10 * MB + 2, 20.0),
    ]  # a line would rise by ten seconds a byte
    assert batch_seconds(history, 20 * MB) == pytest.approx(40.0, rel=0.01)
    assert batch_seconds(history, 5 * MB) == pytest.approx(20.0)


@pytest.mark.parametrize("seconds", [(30.0, 20.0, 5.0), (0.5, 1.0, 90.0)])
def test_no_forecast_is_negative(seconds: tuple[float, ...]) -> None:
    history = list(zip((MB, 10 * MB, 100 * MB), seconds, strict=True))
    assert all((batch_seconds(history, size) or 0) >= 0 for size in (1, MB, 50 * MB, 400 * MB))
    assert batch_seconds(history, 1) is not None
