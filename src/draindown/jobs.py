"""The stable face of the spark-submit mains: what a project's `jobs/*.py` import, and nothing else.

Each main reads `--request <encoded request>`, runs its step in a Spark session, leaves a report and
exits by its code.
"""

from __future__ import annotations


def drain_main() -> None:
    """Run the drain step: drain what waits, or read input or quarantined rows again, as the request
    says.

    Then, in the same session, the steps that the request names: each leaves its own report.
    """
    from draindown.spark.job.steps import job_main

    job_main("drain")


def check_main() -> None:
    """Run the check step: judge what is not published yet, then publish it or refuse it."""
    from draindown.spark.job.steps import job_main

    job_main("check")


def compact_main() -> None:
    """Run the compact step: rewrite and remove files where it pays."""
    from draindown.spark.job.steps import job_main

    job_main("compact")
