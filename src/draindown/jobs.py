"""The stable face of the spark-submit mains: what a project's `jobs/*.py` import, and nothing else.

Each main reads `--request <encoded request>`, runs its step in a Spark session, leaves a report and exits by its code.
"""

from __future__ import annotations


def drain_main() -> None:
    """Run the drain step: drain what waits, or read input or refused rows again, as the request says."""
    from draindown.spark.job.main import job_main
    from draindown.spark.runs.dispatch import run_drain

    job_main("drain", lambda request, spark, stop: run_drain(request, spark, stop=stop))


def check_main() -> None:
    """Run the check step: judge what is not published yet, then publish it or refuse it."""
    from draindown.spark.checks.check import check
    from draindown.spark.job.main import job_main

    job_main("check", lambda request, spark, _stop: check(request, spark))


def compact_main() -> None:
    """Run the compact step: rewrite and remove files where it pays."""
    from draindown.spark.job.main import job_main
    from draindown.spark.runs.compaction import compact

    job_main("compact", lambda request, spark, _stop: compact(request, spark))
