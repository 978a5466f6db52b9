"""The campaign in parts, each of at most 40 minutes on two cores, and which of them is due."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

START_MINUTES, MOST_MINUTES = 32, 39
"""After the first no test of a part begins; at the second the part is ended."""
_PAIRS = ("-n", "2", "--dist", "worksteal")


@dataclass(frozen=True)
class Part:
    """Tests that run together: pytest's arguments, and what is set in their environment."""

    what: str
    tests: tuple[str, ...]
    options: tuple[str, ...] = _PAIRS


def _faults(*names: str) -> tuple[str, ...]:
    return tuple(f"tests/faults/test_{name}.py" for name in names)


_MARKED = (*_PAIRS, "-m", "campaign")
PARTS = (
    Part("drivers that die in a batch", _faults("crash", "starts", "tasks")),
    Part(
        "drivers that die in a rebuild or a withdrawal",
        _faults("rebuild_crash", "withdrawal_crash", "drill"),
    ),
    Part("several drivers, and clocks", _faults("drivers", "clock")),
    Part("maintenance and readers beside a drain, drift", _faults("beside", "drift", "publishing")),
    Part("damaged lakes and full disks", _faults("damage", "disk")),
    Part("input that changes", _faults("input")),
    Part(
        "Kafka, and derived flows",
        _faults(
            "kafka",
            "derived_crash",
            "derived_upstream",
            "history_crash",
            "landed_history_crash",
            "partial_crash",
        ),
    ),
    Part("Airflow that is killed", _faults("airflow")),
    Part("bad input by number", ("tests/spark/test_scored_input.py", *_faults("sizes")), _MARKED),
    Part(
        "properties and random histories",
        ("tests/spark", "--ignore", "tests/spark/test_scored_input.py"),
        _MARKED,
    ),
    Part("a soak of 25 rounds, other ones each time", _faults("soak"), ("-p", "no:xdist")),
    Part("an evening on call", ("tests/e2e/test_evening.py",), ("-p", "no:xdist")),
    Part("flows with sinks", _faults("sinks")),
)


def last(runs: Sequence[Mapping[str, Any]]) -> dict[int, Mapping[str, Any]]:
    """Return the newest run of each part. `runs`: lines with `part` (from 1) and `at`."""
    return {
        run["part"]: run
        for run in sorted((one for one in runs if "part" in one), key=lambda one: str(one["at"]))
    }


def due(runs: Sequence[Mapping[str, Any]]) -> int:
    """Return the part that was not run for longest; of those that never were, the first."""
    newest = last(runs)
    return min(
        range(1, len(PARTS) + 1),
        key=lambda number: (str(newest.get(number, {}).get("at", "")), number),
    )


def chosen(word: str, runs: Sequence[Mapping[str, Any]]) -> int:
    """Return the part that `PART=word` names. Raises ValueError."""
    number = due(runs) if word == "next" else int(word)
    if not 1 <= number <= len(PARTS):
        raise ValueError(f"there are parts 1 to {len(PARTS)}")
    return number


def command(number: int, left: Sequence[str]) -> list[str]:
    """Return pytest's arguments for a part, with those files first that its last run had no time
    for.
    """
    part = PARTS[number - 1]
    files = (
        sorted(part.tests, key=lambda name: name not in left)
        if "--ignore" not in part.tests
        else part.tests
    )
    return [
        "-q",
        "-p",
        "tests.campaign.deadline",
        "--timeout",
        str(60 * START_MINUTES),
        *part.options,
        *files,
    ]
