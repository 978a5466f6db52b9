"""The numbers of a step for Airflow: XCom, asset events, and the metrics that Airflow sends to
StatsD or OTel.
"""

from __future__ import annotations

from typing import Any

from airflow.sdk.observability import stats

from draindown.runs.report import StepReport


def summary(report: StepReport) -> dict[str, Any]:
    """Return the numbers of a start of a step for XCom and asset events: flat, small, JSON-ready.

    Numbers of the whole run, over all starts, are named `run_...`; those of a sink
    `sink_NAME_FATE`. `driver` names the drain whose driver did the step, if it had none of its own.
    """
    numbers: dict[str, Any] = {
        "outcome": report.outcome,
        "seconds": round(report.seconds, 1),
        "start": report.start,
    }
    if report.fused:
        numbers |= {"driver": f"drain {report.fused.drain}"}
    if report.run:
        numbers |= {f"run_{name}": number for name, number in report.run.totals.items()}
        numbers |= {
            "run_max_sequence": report.run.max_sequence,
            "run_quarantined_share": report.run.quarantined_share,
        }
    if report.drain:
        numbers |= report.drain.totals | {"max_sequence": report.drain.max_sequence}
        numbers |= {"bound": report.drain.bound, "replay": report.drain.replay}
        numbers |= {"quarantined_share": report.drain.quarantined_share}
        sinks = report.drain.sinks.items()
        numbers |= {
            f"sink_{name}_{fate}": number
            for name, counts in sinks
            for fate, number in counts.items()
        }
    if report.check:
        numbers |= {"version": report.check.published_after, "rows": report.check.changed_rows}
        numbers |= {"open_windows": report.check.open_windows} if report.check.open_windows else {}
    if report.compact:
        numbers |= {
            "files_before": report.compact.files_before,
            "files_after": report.compact.files_after,
        }
    return numbers


def publish(report: StepReport) -> None:
    """Set a gauge `draindown.<step>.<number>` for each number of a start, tagged with pipeline and
    flow.

    Airflow sends them where its own metrics go, and nowhere if `[metrics]` names no place.
    """
    tags = {"pipeline": report.pipeline, "flow": report.flow}
    for name, number in (summary(report) | {"failed": int(report.outcome == "failed")}).items():
        if isinstance(number, int | float) and not isinstance(number, bool):
            stats.gauge(f"draindown.{report.step}.{name}", number, tags=tags)
