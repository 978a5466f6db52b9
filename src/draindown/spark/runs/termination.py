"""Wait for a streaming query to end, without trusting it to say so."""

from __future__ import annotations

from pyspark.sql.streaming.query import StreamingQuery

from draindown.base.errors import TransientError

_LOOK_SECONDS = 5


def await_end(query: StreamingQuery, *, tried: str, next: str) -> None:
    """Return once the query has ended; raise as `awaitTermination` does if it failed.

    A fatal error in the query's own error handling (seen: StackOverflowError in java.util.regex after an error in a
    Python worker) kills its thread before it releases those who wait in `awaitTermination`, which then never returns.
    Raises TransientError `query-died` in that case.
    """
    while not query.awaitTermination(_LOOK_SECONDS):
        # The latch is released by the thread itself: if the thread is gone, a second look tells whether it was.
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
    # StreamExecution.queryExecutionThread; not in the public API, pinned by tests/spark/test_engine.py
    return bool(query._jsq.streamingQuery().queryExecutionThread().isAlive())
