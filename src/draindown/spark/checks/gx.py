"""Judge expectations with Great Expectations. No other module calls GX. It writes no file."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import great_expectations as gx
from great_expectations.core import ExpectationSuite, ExpectationValidationResult
from great_expectations.core.metric_function_types import MetricPartialFunctionTypes
from great_expectations.data_context.data_context.abstract_data_context import AbstractDataContext
from great_expectations.data_context.types.base import (
    DataContextConfig,
    InMemoryStoreBackendDefaults,
    ProgressBarsConfig,
)
from great_expectations.datasource.fluent.interfaces import Batch
from great_expectations.exceptions.exceptions import GreatExpectationsError
from great_expectations.execution_engine.sparkdf_execution_engine import SparkDFExecutionEngine
from great_expectations.expectations import registry
from great_expectations.expectations.expectation import (
    ColumnMapExpectation,
    ColumnPairMapExpectation,
    MulticolumnMapExpectation,
)
from great_expectations.expectations.expectation import Expectation as GxExpectation
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from pyspark.sql import DataFrame

from draindown.gate import suite as gate_suite
from draindown.gate.published import UNJUDGED
from draindown.runs.report import Expectation
from draindown.spark.checks.result import (
    NOT_THE_SUITES,
    SAMPLE,
    SCOPES,
    Scope,
    brief,
    detail,
    frames,
    sample,
    scope_in,
    unjudged,
)

_SAMPLED: Mapping[str, Any] = {"result_format": "SUMMARY", "partial_unexpected_count": SAMPLE}
_EVERY_ROW: Mapping[str, Any] = {
    "result_format": "COMPLETE",
    "partial_unexpected_count": 0,
    "return_unexpected_index_query": False,
}
_BY: Literal["Great Expectations"] = "Great Expectations"
_MAPS = (ColumnMapExpectation, ColumnPairMapExpectation, MulticolumnMapExpectation)


# These conditions depend on other rows, although GX does not mark them as window conditions.
_BY_OTHER_ROWS = ("z_score", "outliers", "compound_columns.unique")


@dataclass(frozen=True)
class _Item:
    """One expectation of a suite. `broken`: why GX can't build it, else empty."""

    name: str
    scope: Scope
    config: Mapping[str, Any]
    built: GxExpectation | None = None
    broken: str = ""


def judge(
    suite: Mapping[str, Any] | None,
    changed: DataFrame,
    table: DataFrame,
    keys: Sequence[str],
    names: Sequence[str],
    open_rows: DataFrame | None = None,
) -> dict[str, Expectation]:
    """Judge the expectations in `names`, each over the rows of its scope. `keys`: columns that
    identify sample rows.

    `open_rows`: of a history those without an end; None of any other table.

    An expectation that raises an exception has failed, with the exception as its detail.
    """
    context = _context()
    items = [item for item in _items(suite, open_rows) if item.name in names]
    verdicts = {item.name: _broken(item) for item in items if item.built is None}
    for scope, frame in frames(changed, table, open_rows):
        chosen = [item for item in items if item.scope == scope and item.built is not None]
        if chosen:
            batch = _batch(context, scope, frame)
            verdicts |= _judge(batch, chosen, [key for key in keys if key in frame.columns])
    return verdicts


def failing(
    suite: Mapping[str, Any] | None, name: str, changed: DataFrame, mark: str, most: int
) -> tuple[Expectation, list[str]]:
    """Judge one expectation as `judge` does, and return the values of the string column `mark` of
    the failing rows.

    The list is empty if the expectation holds (also by `mostly`), and if more than `most` rows
    fail, because the rows are collected on the driver. Raises NotRowLevel, NotJudged.
    """
    item = next(item for item in _items(suite, changed) if item.name == name)
    if item.built is None:
        raise NotJudged(item.broken)
    if (
        item.scope != "changed"
        or not isinstance(item.built, _MAPS)
        or not _row_by_row(type(item.built))
    ):
        raise NotRowLevel(
            f"it is about the {'rows together' if item.scope == 'changed' else 'table as a whole'}"
        )
    batch = _batch(_context(), item.scope, changed)
    found = _validate(batch, [item], [mark]).get(name)
    verdict = _verdict(item, found)
    if found is None or _exception(found):
        raise NotJudged(verdict.detail.removeprefix(UNJUDGED))
    if verdict.success or verdict.unexpected > most:
        return verdict, []
    whole = _validate(batch, [item], [mark], _EVERY_ROW).get(name)
    if whole is None or _exception(whole):
        raise NotJudged(_exception(whole) or "GX returned no result")
    return verdict, [
        str(row[mark]) for row in (whole.result or {}).get("unexpected_index_list") or ()
    ]


class NotRowLevel(Exception):
    """The expectation is not about single rows; the message says why."""


class NotJudged(Exception):
    """GX can't judge the expectation; the message says why."""


def scope_of(config: Mapping[str, Any], open_rows: DataFrame | None = None) -> Scope:
    """Return the scope of an expectation: "changed" for one about single rows, "table" for one
    about the whole table.

    One about a history (`open_rows` is not None) is about its open rows in the place of all. The
    suite's `meta.draindown.scope` takes precedence over the kind. Raises ValueError if it is none.
    """
    chosen = gate_suite.options(config).get("scope")
    known: Sequence[Scope] = SCOPES if open_rows is not None else SCOPES[:2]
    if chosen is not None and chosen not in known:
        raise ValueError(f"meta.draindown.scope is {chosen!r}; write {' or '.join(known)}")
    if chosen is not None:
        return next(scope for scope in known if scope == chosen)
    kind = registry.get_expectation_impl(config["type"])
    return (
        "changed" if issubclass(kind, _MAPS) and _row_by_row(kind) else scope_in("table", open_rows)
    )


def brings(kind: str) -> bool:
    """Return whether the kind of expectation is registered with GX, by GX itself or by the job."""
    try:
        registry.get_expectation_impl(kind)
    except GreatExpectationsError:
        return False
    return True


def _row_by_row(kind: type[GxExpectation]) -> bool:
    metric = str(getattr(kind, "map_metric", ""))
    # the registry uses only the type of the engine; a constructed one would need a session
    engine = object.__new__(SparkDFExecutionEngine)
    # (registry.get_metric_function_type always returns None: it reads the attribute from the class,
    # not the function)
    try:
        _, condition = registry.get_metric_provider(f"{metric}.condition", engine)
    except GreatExpectationsError:
        return False  # it has no row condition, it judges the schema
    other_rows = (
        getattr(condition, "metric_fn_type", None) == MetricPartialFunctionTypes.WINDOW_CONDITION_FN
    )
    return not other_rows and not any(word in metric for word in _BY_OTHER_ROWS)


def _items(suite: Mapping[str, Any] | None, open_rows: DataFrame | None = None) -> list[_Item]:
    return [
        _item(name, config, open_rows)
        for name, config in zip(
            gate_suite.names(suite), gate_suite.expectations_of(suite), strict=True
        )
    ]


def _item(name: str, config: Mapping[str, Any], open_rows: DataFrame | None) -> _Item:
    scope: Scope = "table"
    given = config.get("kwargs") or {}
    kwargs = {key: value for key, value in given.items() if key not in NOT_THE_SUITES}
    unsafe = gate_suite.unsafe(config)
    if unsafe:
        return _Item(name, scope, config, broken=unsafe)
    try:
        scope = scope_of(config, open_rows)
        # the name is passed in meta, because GX does not keep the order of expectations
        options = {**gate_suite.options(config), "name": name}
        meta = {**(config.get("meta") or {}), "draindown": options}
        expectation = ExpectationConfiguration(type=config["type"], kwargs=kwargs, meta=meta)
        built = expectation.to_domain_obj()
    except Exception as error:  # noqa: BLE001 - any error of GX or a plug-in must become a failed verdict
        return _Item(name, scope, config, broken=brief(f"{type(error).__name__}: {error}"))
    return _Item(name, scope, config, built)


def _context() -> AbstractDataContext:
    config = DataContextConfig(
        store_backend_defaults=InMemoryStoreBackendDefaults(init_temp_docs_sites=False),
        analytics_enabled=False,
        progress_bars=ProgressBarsConfig(globally=False, metric_calculations=False),
    )
    return gx.get_context(mode="ephemeral", project_config=config)


def _batch(context: AbstractDataContext, name: str, frame: DataFrame) -> Batch:
    # persist=False, otherwise GX caches the whole table
    source = context.data_sources.add_spark(name, persist=False)
    definition = source.add_dataframe_asset(name).add_batch_definition_whole_dataframe(name)
    return definition.get_batch({"dataframe": frame})


def _judge(batch: Batch, items: Sequence[_Item], keys: Sequence[str]) -> dict[str, Expectation]:
    found = _validate(batch, items, keys)
    failed = [item for item in items if _exception(found.get(item.name))]
    if len(items) > 1:
        # GX computes metrics together, and one that fails makes others fail: validate each failed
        # one alone
        for item in failed:
            found |= _validate(batch, [item], keys)
    return {item.name: _verdict(item, found.get(item.name)) for item in items}


def _validate(
    batch: Batch, items: Iterable[_Item], keys: Sequence[str], form: Mapping[str, Any] = _SAMPLED
) -> dict[str, ExpectationValidationResult]:
    suite = ExpectationSuite(name="draindown")
    suite.expectations = [item.built for item in items if item.built is not None]
    named = {"unexpected_index_column_names": list(keys)} if keys else {}
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        results = batch.validate(suite, result_format={**form, **named}).results
    return {_name(result): result for result in results}


def _name(result: ExpectationValidationResult) -> str:
    meta = result.expectation_config.meta if result.expectation_config else None
    return str((meta or {}).get("draindown", {}).get("name"))


def _verdict(item: _Item, result: ExpectationValidationResult | None) -> Expectation:
    if result is None:
        return _broken(item, "GX returned no result")
    message = _exception(result)
    if message:
        return _broken(item, message)
    measured = result.result or {}
    return Expectation(
        name=item.name,
        success=bool(result.success),
        scope=item.scope,
        judged=int(measured.get("element_count") or 0),
        unexpected=int(measured.get("unexpected_count") or 0),
        sample=[] if result.success else _sample(measured),
        detail=detail(item.config, measured.get("observed_value")),
        judged_by=_BY,
    )


def _broken(item: _Item, why: str = "") -> Expectation:
    return unjudged(item.name, item.scope, why or item.broken)


def _exception(result: ExpectationValidationResult | None) -> str:
    info = (result.exception_info if result is not None else None) or {}
    # either one exception, or a dictionary with one per metric
    entries = (
        [info]
        if "raised_exception" in info
        else [entry for entry in info.values() if isinstance(entry, dict)]
    )
    messages = [
        str(entry.get("exception_message")) for entry in entries if entry.get("raised_exception")
    ]
    return brief(next(iter(messages), ""))


def _sample(found: Mapping[str, Any]) -> list[Any]:
    return sample(
        found.get("partial_unexpected_index_list") or found.get("partial_unexpected_list") or ()
    )
