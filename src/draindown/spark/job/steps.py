"""The steps of a flow in one process: what each runs, which follows which, and the spark-submit job
around them.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import NoReturn

from pyspark.sql import SparkSession

from draindown.base import panics
from draindown.base.errors import DraindownError
from draindown.base.exits import Exit, exit_for
from draindown.planning import compaction
from draindown.runs import starts
from draindown.runs.report import StepReport
from draindown.runs.request import Request, Step
from draindown.runs.step_lines import line
from draindown.sources.port import Source
from draindown.spark.job import main
from draindown.spark.limits import Stop
from draindown.spark.session import session


def work(
    request: Request,
    spark: SparkSession,
    stop: Stop,
    *,
    progress: Callable[[str], None] = print,
    source: Source | None = None,
) -> StepReport:
    """Run the step of a request. Raises the step's errors. `progress`, `source`: as for
    `run_drain`.
    """
    # imported by the step that needs them: Great Expectations and Delta take seconds
    if request.step == "drain":
        from draindown.spark.runs.dispatch import run_drain

        return run_drain(request, spark, progress=progress, stop=stop, source=source)
    if request.step == "check":
        from draindown.spark.checks.check import check

        return check(request, spark)
    from draindown.spark.runs.compaction import compact

    return compact(request, spark)


def in_turn(requests: Iterable[Request], run: Callable[[Request], Exit]) -> bool:
    """Run steps one after the other until one does not end well. Return whether all did."""
    return all(run(request) == Exit.DONE for request in requests)


def following(request: Request, stop: Stop) -> Iterator[Request]:
    """Yield the request of each step that the driver of `request` does next, when it is due; none
    once it is to stop.

    A compaction is left to a driver of its own where flows that read the table would wait for it.
    """
    for step in request.then:
        after = request.following(step)
        if not stop.why and (step != "compact" or compaction.joins(after)):
            yield after


def job_main(step: Step, argv: list[str] | None = None) -> NoReturn:
    """Run a job of jobs/: the step, then those that its request names. Exits with the code of the
    step, one of `Exit`.

    Prints a line to stdout at the end of each step, and at the beginning of each that follows
    (`runs.step_lines`).
    """
    panics.without_backtrace()
    parser = argparse.ArgumentParser(prog=f"{step}.py", description=f"The {step} step of one flow.")
    parser.add_argument("--request", required=True, help="what `Request.encode` returned")
    try:
        asked = Request.decode(parser.parse_args(argv).request)
        main.refuse_other_environment(asked)  # before anything of the lake is looked at
        request = starts.afresh(asked)
    except DraindownError as error:
        print(error, file=sys.stderr)
        print(line({"step": step, "outcome": "failed", "error": error.as_dict()}), flush=True)
        sys.exit(exit_for(error))
    sys.exit(run(request, _session))


def run(request: Request, session_of: Callable[[Request], SparkSession]) -> Exit:
    """Run a step, then those that its request names. Return the exit code of the step, whatever
    becomes of the others.

    When they begin, the step's report is written and its lease given back.
    """
    stop = Stop()
    code = _ended(request, session_of, stop)
    if code == Exit.DONE and request.then:
        try:
            in_turn(following(request, stop), lambda after: _follow(after, session_of, stop))
        except Exception as error:  # noqa: BLE001 - nobody knows whether the next step is due: its task will find out
            main.logged(error, request)
    return code


def _follow(request: Request, session_of: Callable[[Request], SparkSession], stop: Stop) -> Exit:
    print(line({"step": request.step, "start": request.start, "outcome": "begun"}), flush=True)
    return _ended(request, session_of, stop)


def _ended(request: Request, session_of: Callable[[Request], SparkSession], stop: Stop) -> Exit:
    report, code = main.attempt(
        request, lambda stop: work(request, session_of(request), stop), stop=stop
    )
    told = {
        "step": report.step,
        "outcome": report.outcome,
        "run_id": report.run_id,
        "error": report.error,
    }
    print(line(told), flush=True)
    return code


def _session(request: Request) -> SparkSession:
    return session(f"draindown {request.spec.pipeline}.{request.flow} {request.step}")
