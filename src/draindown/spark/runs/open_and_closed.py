"""Rewrite files of a history so that rows without an end, which later batches close, lie in files
of their own.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Sequence
from time import time
from typing import Any

from pyspark.sql import DataFrame, SparkSession
from pyspark.sql import functions as F

from draindown.config.names import END_AT, START_AT
from draindown.planning.open_rows import HistoryFile, end_path, open_share, worth_rewriting
from draindown.spark.sql import quoted


class OpenAndClosed:
    """The files of a history at its newest version, to be rewritten in one commit that changes no
    row.

    OPTIMIZE puts any files of a partition together, so that nearly every file has some row without
    an end: none of them could be left out by the statistics of `__END_AT`. Delta's API has no other
    way to rewrite chosen files, so that takes the transaction from its JVM library, as OPTIMIZE
    itself uses it: it fails if another commit removed or changed one of the files meanwhile.
    tests/spark/test_open_and_closed.py pins what it does.
    """

    def __init__(self, spark: SparkSession, path: str, target_file_size: int, ratio: float) -> None:
        self._spark, self._size, self._ratio = spark, target_file_size, ratio
        jvm: Any = spark._jvm
        self._jvm, self._log = (
            jvm,
            jvm.org.apache.spark.sql.delta.DeltaLog.forTable(spark._jsparkSession, path),
        )

    def rewrite(self, predicate: str) -> tuple[int, int, int]:
        """Rewrite the files that `worth_rewriting` names. `predicate`: SQL over the partition
        columns; empty for all.

        Returns the number of files before and after, and the bytes of the latter.
        """
        none = self._jvm.scala.Option.empty()
        transaction = self._log.startTransaction(none, none)
        removed, added = list[HistoryFile](), list[Any]()
        for some in self._by_partition(transaction, predicate):
            chosen = worth_rewriting(some, self._size, self._ratio)
            removed += chosen
            added += self._written(transaction, chosen) if chosen else []
        if removed:
            at, nothing = int(time() * 1000), self._seq([])
            actions = [
                *(one.add.removeWithTimestamp(at, False) for one in removed),
                *map(_unchanged, added),
            ]
            optimize = self._jvm.org.apache.spark.sql.delta.DeltaOperations.Optimize
            transaction.commit(self._seq(actions), optimize(nothing, nothing, False, none, False))
        return len(removed), len(added), sum(one.size() for one in added)

    def _by_partition(self, transaction: Any, predicate: str) -> Iterable[Sequence[HistoryFile]]:
        """Return the files of the partitions that a predicate chooses. The transaction notes that
        it read them.
        """
        parser = self._spark._jsparkSession.sessionState().sqlParser()
        wanted = self._seq([parser.parseExpression(predicate)] if predicate else [])
        paths = {one.path() for one in self._list(transaction.filterFiles(wanted, False))}
        end = end_path(json.loads(transaction.metadata().schemaString())["fields"])
        found: dict[str, list[HistoryFile]] = defaultdict(list)
        # those of `filterFiles` have no statistics
        for add in transaction.snapshot().allFiles().collectAsList():
            if add.path() in paths:
                found[str(add.partitionValues())].append(_file(add, end or ()))
        return found.values()

    def _written(self, transaction: Any, files: Sequence[HistoryFile]) -> list[Any]:
        """Write the rows of some files of one partition, open and closed ones apart. Return the
        added files.

        Open rows are ordered by key, closed ones by their end: files of rows that ended long ago
        are left out whole.
        """
        none, weight = self._jvm.scala.Option.empty(), sum(one.size for one in files)
        listed = self._seq([one.add for one in files])
        rows = DataFrame(
            self._log.createDataFrame(transaction.snapshot(), listed, False, none), self._spark
        )
        end, open_ = F.col(quoted(END_AT)), sum(one.size * one.open for one in files)
        keys = [F.col(quoted(name)) for name in rows.columns[: rows.columns.index(START_AT)]]
        found = list[Any]()
        for part, order, size in (
            (rows.where(end.isNull()), keys, open_),
            (rows.where(end.isNotNull()), [end], weight - open_),
        ):
            number = max(1, round(size / self._size))
            divided = part.coalesce(1) if number == 1 else part.repartitionByRange(number, *order)
            written = divided.sortWithinPartitions(*order)._jdf
            found += self._list(transaction.writeFiles(written, none, True, self._seq([])))
        return found

    def _seq(self, items: Sequence[Any]) -> Any:
        listed = self._jvm.java.util.ArrayList()
        for one in items:
            listed.add(one)
        return self._jvm.scala.jdk.javaapi.CollectionConverters.asScala(listed).toSeq()

    def _list(self, items: Any) -> list[Any]:
        return list(self._jvm.scala.jdk.javaapi.CollectionConverters.asJava(items))


def _file(add: Any, end: Sequence[str]) -> HistoryFile:
    """Return a file as Delta's JVM library has it. `end`: the path of the statistics of a row's
    end.
    """
    stats = json.loads(add.stats() or "{}")
    rows, nulls, vector = stats.get("numRecords"), stats.get("nullCount", {}), add.deletionVector()
    for name in end:
        nulls = (nulls or {}).get(name)
    gone = 0 if vector is None else int(vector.cardinality())
    return HistoryFile(add.size(), rows or 0, gone, open_share(rows, nulls), add)


def _unchanged(add: Any) -> Any:
    """Return an added file as one that only holds rows which the table had."""
    names = [add.productElementName(at) for at in range(add.productArity())]
    return add.copy(
        *(
            False if name == "dataChange" else add.productElement(at)
            for at, name in enumerate(names)
        )
    )
