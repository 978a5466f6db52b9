"""Load the user's transform, apply it, and verify that it only computes columns.

A transform may add, rename, retype and compute columns. Filters, joins, aggregates and explodes are
refused, because they change the number of rows and break the accounting. Non-deterministic
expressions are refused, because a replay would give other rows.
"""

from __future__ import annotations

import importlib.util
import re
import sys
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

from pyspark import cloudpickle
from pyspark.sql import DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import StructType

from draindown.base.errors import DraindownError, TerminalError
from draindown.config.column_types import UNSTORED_WHY
from draindown.config.names import caseless
from draindown.spark.contract import transform_errors
from draindown.spark.contract.parsing import KEPT
from draindown.spark.sql import quoted, unstored

Transform = transform_errors.Transform
ROW = "_row"
"""Column of a transform's input that it must keep: what draindown knows of the row."""
_ALLOWED = {"Project", "SubqueryAlias", "View"}


# functions that Spark marks as deterministic, although their value changes from query to query
# (`aes_encrypt`: by its default mode)
_UNSTABLE = re.compile(
    r"(?<![a-z0-9_])("
    r"current_(?:timestamp|date|time|user)|session_user|user|localtimestamp|now|curdate"
    r"|rand|randn|random|randstr|uniform|uuid|shuffle|(?:try_)?aes_encrypt"
    r"|monotonically_increasing_id|spark_partition_id|input_file_(?:name|block_start|block_length)|version"
    r")\("
)


def load(root: str, dotted: str) -> Transform:
    """Load the function `module.name` from `<root>/jobs/transforms/`. Raises TerminalError
    `transform-missing`.
    """
    module_name, _, name = dotted.rpartition(".")
    path = Path(root, "jobs", "transforms", *module_name.split(".")).with_suffix(".py")
    if not path.is_file():
        raise _missing(dotted, f"no file {path}")
    function = getattr(_import(path, module_name), name, None)
    if not callable(function):
        raise _missing(dotted, f"{path} has no function {name}")
    return function  # type: ignore[no-any-return]


def _import(path: Path, module_name: str) -> ModuleType:
    qualified = f"draindown_transforms.{module_name}"
    spec = importlib.util.spec_from_file_location(qualified, path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[qualified] = module
    # the Python workers of a UDF, here or on a cluster, can't import the module
    cloudpickle.register_pickle_by_value(module)  # type: ignore[no-untyped-call]
    try:
        spec.loader.exec_module(module)
    except Exception as error:
        raise transform_errors.not_imported(path, error) from error
    return module


def _missing(dotted: str, found: str) -> TerminalError:
    return TerminalError(
        "transform-missing",
        tried=f"load transform {dotted} from jobs/transforms/",
        found=found,
        next="put it there, then run the pipeline again: validate runs no transform",
    )


def apply(frame: DataFrame, transform: Transform, name: str) -> DataFrame:
    """Apply a transform to `frame` (the contract's columns and KEPT). Returns its columns and KEPT.

    Raises TerminalError `transform-not-columns`, `transform-unstable` or `transform-bad-names`
    before any row is read.
    """
    given = packed(frame)
    result = _called(transform, given, name)
    if not isinstance(result, DataFrame) or ROW not in result.columns:
        raise _not_columns(
            name, f"it must return a DataFrame that still has `{ROW}`: keep it in your select"
        )
    _hold_to_columns(result, given, name)
    _hold_to_names(result.schema, name)
    own = [F.col(quoted(c)) for c in result.columns if c != ROW]
    return result.select(*own, *[F.col(f"{ROW}.{c}").alias(c) for c in KEPT if c in frame.columns])


def packed(frame: DataFrame) -> DataFrame:
    """Return what a transform is given: the contract's columns, and KEPT in one column that it must
    keep.
    """
    return frame.select(
        *[F.col(quoted(c)) for c in frame.columns if c not in KEPT],
        F.struct(*[F.col(c) for c in KEPT if c in frame.columns]).alias(ROW),
    )


def _called(transform: Transform, given: DataFrame, name: str) -> Any:
    try:
        return transform(given)
    except DraindownError:
        raise
    except Exception as error:
        raise transform_errors.failed(name, transform, error) from error


def _hold_to_columns(result: DataFrame, given: DataFrame, name: str) -> None:
    bottom = given._jdf.queryExecution().analyzed()
    for node in _above(result._jdf.queryExecution().analyzed(), bottom):
        kind = node.getClass().getSimpleName()
        if kind not in _ALLOWED:
            raise _not_columns(
                name, f"it does a {kind}; only columns may be added, renamed, retyped or computed"
            )
        if node.subqueries().size():
            raise _not_columns(
                name, "it asks another table in a subquery; a replay would find other rows there"
            )
        unstable = sorted(
            {f"{word}()" for word in _UNSTABLE.findall(node.simpleString(10_000).lower())}
        )
        if unstable or not all(e.deterministic() for e in items(node.expressions())):
            raise TerminalError(
                "transform-unstable",
                tried=f"apply transform {name}",
                found=f"it gives another answer on a replay: {', '.join(unstable) or 'a non-deterministic function'}",
                next="let the row alone decide, then run the pipeline again",
            )


def _hold_to_names(schema: StructType, name: str) -> None:
    twice = sorted(
        column for column, times in Counter(map(caseless, schema.names)).items() if times > 1
    )
    reserved = [column for column in schema.names if column.startswith("_") and column != ROW]
    found = [f"column {column} stands there twice (case doesn't count)" for column in twice]
    found += [f"column {column} begins with _, which is draindown's own" for column in reserved]
    found += [f"column {path}: {UNSTORED_WHY}" for path in unstored(schema)]
    if found:
        raise TerminalError(
            "transform-bad-names",
            tried=f"apply transform {name}",
            found="; ".join(found),
            next="rename or drop them in the transform, then run the pipeline again",
        )


def _above(node: Any, bottom: Any) -> Iterator[Any]:
    """Yield the nodes of a plan from the top down to `bottom`, which is excluded."""
    while not node.fastEquals(bottom):
        yield node
        if node.children().size() != 1:
            return
        node = node.children().head()


def _not_columns(name: str, found: str) -> TerminalError:
    return TerminalError(
        "transform-not-columns",
        tried=f"apply transform {name}",
        found=found,
        next="put filters into `rules`, joins into a flow of their own, then run the pipeline again",
    )


def computed_from(
    result: DataFrame, column: str, keys: set[str], given: DataFrame
) -> list[str] | None:
    """Return how the plan between `given` and `result` computes `column` from `keys` alone; None if
    it does not.

    If it does, the value can't change for a key as long as the same expressions compute it, and a
    predicate on it may prune the target. They are SQL, from the last to the first; the code of a
    UDF is not in the plan, so it proves nothing. `keys` are columns of `result`, not of `given`: a
    transform that lower-cases its key makes one of several.
    """
    told: list[str] = []
    bottom = given._jdf.queryExecution().analyzed()
    node = result._jdf.queryExecution().analyzed()
    outputs = list(items(node.output()))
    final = {a.exprId().id() for a in outputs if a.name() in keys}
    wanted = {a.exprId().id() for a in outputs if a.name() == column}
    while wanted - final and not node.fastEquals(bottom):
        if node.getClass().getSimpleName() == "Project":
            made = [one for one in items(node.projectList()) if one.exprId().id() in wanted - final]
            if any(map(_runs_code, made)):
                return None
            told += sorted(one.sql() for one in made if one.getClass().getSimpleName() == "Alias")
            sources = {a.exprId().id() for one in made for a in items(one.references().toSeq())}
            wanted = (wanted & final) | sources
        if node.children().size() != 1:
            return None
        node = node.children().head()
    return told if wanted and wanted <= final else None


def _runs_code(expression: Any) -> bool:
    """Return whether a value is computed by code that the plan does not show."""
    name = str(expression.getClass().getName())
    is_code = name.endswith("UDF") or not name.startswith(
        "org.apache.spark.sql.catalyst.expressions."
    )
    return is_code or any(map(_runs_code, items(expression.children())))


def items(scala: Any) -> Iterator[Any]:
    """Yield the items of a Scala sequence."""
    for i in range(scala.size()):
        yield scala.apply(i)
