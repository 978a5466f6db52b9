"""Resolve a flow's expressions with Spark's parser and analyzer, before anything is read or
written.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import reduce

from py4j.protocol import Py4JJavaError
from pyspark.errors import PySparkException
from pyspark.logger import PySparkLogger
from pyspark.sql import Column, DataFrame, SparkSession
from pyspark.sql import functions as F
from pyspark.sql.types import BooleanType

from draindown.base.errors import TerminalError, said
from draindown.config.landing import FlowSpec
from draindown.config.names import RESERVED_COLUMNS
from draindown.runs.request import Request
from draindown.spark.sql import try_eval

_REFUSED = (PySparkException, Py4JJavaError)
_CODE, _STATE = re.compile(r"^\[[A-Z0-9_.]+\]\s*"), re.compile(r"\s*SQLSTATE: .*")


def refuse_unresolved(request: Request, spark: SparkSession) -> None:
    """Resolve each rule and delete condition against the contract, in the form that a batch
    evaluates. Runs no job.

    Raises TerminalError `invalid-pipeline` that names every expression that Spark rejects, with
    file and line.
    """
    flow = request.flow_spec
    with _unlogged():
        if not flow.expressions or (_resolves(spark, flow) and not any(_aliases(spark, flow))):
            return
        problems = [*_problems(spark, flow), *_aliases(spark, flow)]
        found = [f"{_place(request, path)}: {why}" for path, why in problems]
    if found:
        raise TerminalError(
            "invalid-pipeline",
            tried=f"resolve the expressions of flow {request.flow} of pipeline {request.spec.pipeline} in Spark",
            found="\n".join(found),
            changed="no input was read, and no batch was written",
            next=f"draindown run {request.spec.pipeline}/{request.flow}   # once the file is corrected",
        )


@contextmanager
def _unlogged() -> Iterator[None]:
    """Disable PySpark's loggers that log each analysis error with its Java stack before it is
    raised.

    They must be made by PySpark: it calls them with arguments that a plain logger of that name
    refuses.
    """
    loggers = [
        PySparkLogger.getLogger(f"{kind}QueryContextLogger") for kind in ("SQL", "DataFrame")
    ]
    before = [logger.disabled for logger in loggers]
    try:
        for logger in loggers:
            logger.disabled = True
        yield
    finally:
        for logger, was in zip(loggers, before, strict=True):
            logger.disabled = was


def _resolves(spark: SparkSession, flow: FlowSpec) -> bool:
    """Return whether Spark resolves all expressions. They share two plans, because each analysis
    slows every start.
    """
    try:
        for part in ("rules", "target"):
            texts = [text for path, text in flow.expressions.items() if path[0] == part]
            if texts:
                _empty(spark, flow, (part,)).where(
                    reduce(Column.__and__, (_condition(spark, text) for text in texts))
                )
    except _REFUSED:
        return False
    return True


def _problems(spark: SparkSession, flow: FlowSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    for path, text in flow.expressions.items():
        frame, kind = _empty(spark, flow, path), None
        try:
            kind = frame.select(F.expr(text)).schema[0].dataType
            frame.where(_condition(spark, text))
        except _REFUSED as error:
            typed = kind is not None and not isinstance(kind, BooleanType)
            yield (
                path,
                f"it gives {kind.simpleString()}, no condition"
                if kind and typed
                else _reason(error),
            )


def _aliases(spark: SparkSession, flow: FlowSpec) -> Iterator[tuple[tuple[str, ...], str]]:
    """Yield the expressions whose last word Spark takes for the name of the result, as in `a > 0
    and`.
    """
    parser = spark._jsparkSession.sessionState().sqlParser()
    for path, text in flow.expressions.items():
        try:
            parsed = parser.parseExpression(text)
        except _REFUSED:
            continue  # named by `_problems`
        if parsed.getClass().getSimpleName() == "Alias":
            yield path, f"its end, {parsed.name()!r}, would only name the result"


def _condition(spark: SparkSession, text: str) -> Column:
    return F.coalesce(try_eval(spark, text), F.lit(False))


def _empty(spark: SparkSession, flow: FlowSpec, path: tuple[str, ...]) -> DataFrame:
    """Return an empty DataFrame with the columns that the expression at `path` of the pipeline file
    may use.
    """
    types = {name: column.type for name, column in flow.columns.items()}
    types |= dict.fromkeys(set(flow.names_in_scope(path)) & RESERVED_COLUMNS, "timestamp")
    return spark.range(0).select(
        *[F.expr(f"cast(null as {kind})").alias(name) for name, kind in types.items()]
    )


def _place(request: Request, path: tuple[str, ...]) -> str:
    name = ".".join(path)
    written = request.places.get(name)
    return f"{written}: flows.{request.flow}.{name}" if written else f"flows.{request.flow}.{name}"


def _reason(error: BaseException) -> str:
    """Return the first line of Spark's error, without its code, SQLSTATE, plan and stack."""
    lines = (line.strip() for line in said(error).partition("JVM stacktrace:")[0].splitlines())
    return _CODE.sub("", _STATE.sub("", next(filter(None, lines), type(error).__name__)))[:500]
