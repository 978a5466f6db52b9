"""A Kafka topic as a sink, exactly once for consumers that read committed messages."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from draindown.base.errors import TerminalError
from draindown.config.kafka_sink import KafkaSink
from draindown.sinks.kafka.markers import Marked, Markers
from draindown.sinks.kafka.messages import Messages
from draindown.sinks.kafka.sink import KafkaTopic, ignored
from draindown.sinks.port import SinkBatch, SinkColumn, SinkPlace, portion_of

if TYPE_CHECKING:
    import pyarrow

_SHARE = 3  # a transaction ends with the portion in which this share of its time is over
_WAIT = 5.0  # seconds for what may be left to the next driver
_BEFORE_4 = "message.format.version"
"""A setting of topics that brokers have had until 4.0."""


class KafkaTransactions(KafkaTopic):
    """A topic that gets each batch in a transaction with a marker; one that takes long gets it
    portion by portion.

    The transactional id names the place and no generation. Whoever begins ends what earlier drivers
    left open, and excludes them; then it reads the markers, then it sends. `clock`: seconds, as of
    `time.monotonic`.

    Methods raise what `KafkaTopic` and `Markers` raise, and TransientError `sink-fenced`.
    """

    records = True

    def __init__(
        self,
        spec: KafkaSink,
        place: SinkPlace,
        environ: Mapping[str, str] = os.environ,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        super().__init__(spec, place, environ)
        self._markers = Markers(self._client, spec, place)
        self._clock = clock
        self._producer: Any = None
        self._marked: Marked | None = None
        """What the topic had when this driver began, and what it sent since."""

    def check(self, columns: Sequence[SinkColumn]) -> None:
        """See `Sink.check`. No transaction is begun: that would exclude a driver at work."""
        super().check(columns)
        if _BEFORE_4 in self._settings():
            raise TerminalError(
                "sink-unfit",
                tried=f"look at {self._spec.place}",
                found="the brokers are older than 4.0: a message that is late could join a later transaction there",
                next="draindown validate   # write kafka: {delivery: at_least_once}",
            )
        self._markers.check()

    def fence(self, epoch: int) -> None:
        """See `Sink.fence`. The topic of markers is made here if there is none."""
        self._drop()
        self._markers.make()
        place = self._place
        name = ":".join(("draindown", place.lake, place.pipeline, place.flow, place.sink))
        producer = self._client.producer(name, self._largest())
        self._client.ready(producer)
        marked = self._markers.read()
        if marked.epoch is not None and marked.epoch > epoch:
            raise self._client.fenced(f"it has epoch {marked.epoch}, this one {epoch}")
        self._producer = producer
        self._marked = replace(
            marked, epoch=epoch, since=epoch if marked.epoch is None else marked.since
        )
        if marked.epoch != epoch:
            with self._aborting():
                self._begin()
                self._commit(self._markers.of_epoch(self._marked))

    def has(self, batch: SinkBatch) -> SinkBatch | None:
        """See `Sink.has`. Only a driver that has begun to send asks what it may send again."""
        if self._marked is not None and batch.epoch < self._marked.since:
            where = f"{self._place.pipeline}/{self._place.flow} {self._place.sink}"
            raise TerminalError(
                "sink-records",
                tried=f"look whether {self._spec.place} has batch {batch.number} of kind {batch.kind}",
                found=f"the batch was on its way before topic {self._spec.marker_topic} had anything of this sink",
                next=f"draindown sink skip {where} --note TEXT --yes   # gives up what may be there; then resync it",
            )
        marked = self._marked or self._markers.look()
        newest, _ = marked.batches.get(batch.writer, (None, 0))
        return newest

    def send(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Iterable[pyarrow.RecordBatch]
    ) -> None:
        """See `Sink.send`. Returns once the last transaction of the batch is committed."""
        first = self._ready(batch).portions(batch)
        if first is None:
            return
        messages = Messages(batch, columns, self._spec.partition_by or ())
        began, at = None, first
        with self._aborting(), self._client.sending():
            for part in rows:
                portion = portion_of(part)
                if portion < first:
                    continue
                if began is not None and portion > at and self._is_long(began):
                    self._commit_batch(batch, portion)
                    began = None
                if began is None:
                    self._begin()
                    began = self._clock()
                at = portion
                self._produce_all(self._producer, messages.of(part))
            if began is None:
                self._begin()
            self._commit_batch(batch, batch.portions)

    def retain(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Iterable[pyarrow.RecordBatch]
    ) -> None:
        """Return None: a topic can't tell what it holds. The end of the fill is recorded."""
        del columns, keys
        if self._ready(batch).portions(batch) is not None:
            with self._aborting():
                self._begin()
                self._commit_batch(batch, batch.portions)

    def close(self) -> None:
        """See `Sink.close`."""
        self._drop()

    def _ready(self, batch: SinkBatch) -> Marked:
        if self._producer is None:
            self.fence(batch.epoch)
        assert self._marked is not None
        return self._marked

    def _is_long(self, began: float) -> bool:
        return self._clock() - began > self._spec.transaction_timeout / _SHARE

    def _begin(self) -> None:
        self._failed = []
        with self._client.naming(self._producer):
            self._producer.begin_transaction()

    def _commit_batch(self, batch: SinkBatch, done: int) -> None:
        self._commit(self._markers.of_batch(batch, done))
        marked = self._ready(batch)
        sent = (replace(batch, whole=done == batch.portions), done)
        self._marked = replace(marked, batches={**marked.batches, batch.writer: sent})

    def _commit(self, marker: Mapping[str, bytes]) -> None:
        """Commit, with a marker as the last message: while it is not committed, no reader gets
        behind it.
        """
        self._confirm(self._producer)
        with self._client.naming(self._producer):
            self._producer.produce(
                self._spec.marker_topic, partition=0, on_delivery=self._marker_delivered, **marker
            )
            self._producer.commit_transaction(float(self._spec.transaction_timeout))

    def _marker_delivered(self, error: Any, message: Any) -> None:
        self._delivered("", error, message)

    @contextmanager
    def _aborting(self) -> Iterator[None]:
        """Abort the transaction if the block raises, so that readers don't wait, and let go of the
        producer.
        """
        try:
            yield
        except BaseException:
            producer = self._producer
            with ignored():
                producer.purge()
                producer.abort_transaction(_WAIT)
            self._drop()
            raise

    def _drop(self) -> None:
        self._producer, self._marked = None, None
