"""Wait for a streaming query to end, even if its thread dies without a signal."""

from __future__ import annotations

from pyspark.sql.streaming.query import StreamingQuery

from draindown.base.errors import TransientError

_LOOK_SECONDS = 5


def await_end(query: StreamingQuery, *, tried: str, next: str) -> None:
    """Return when the query has ended; raise as `awaitTermination` does if it failed.

    A fatal error in the query's own error handling kills its thread before the thread releases the
    waiters, and `awaitTermination` never returns. Seen: StackOverflowError in java.util.regex after
    an error in a Python worker.

    Raises TransientError `query-died` in that case.
    """
    while not query.awaitTermination(_LOOK_SECONDS):
        # The thread itself releases the latch. If the thread is gone, a second wait tells whether
        # it released it.
        if not _thread_lives(query) and not query.awaitTermination(_LOOK_SECONDS):
            raise TransientError(
                "query-died",
                tried=tried,
                found=f"the thread of the streaming query {query.runId} died, and Spark says that the query goes on; "
                "the driver's log has the thread's error",
                changed="whole batches only; the ledger lists them",
                next=next,
            )


def _thread_lives(query: StreamingQuery) -> bool:
    # StreamExecution.queryExecutionThread is not public API; tests/spark/test_engine.py covers it
    return bool(query._jsq.streamingQuery().queryExecutionThread().isAlive())
