"""The port between a flow and the systems that its rows go to beside the table. Nothing else asks
which kind it is.

A batch is sent by the driver from Arrow record batches. A sink is asked by plan and doctor without
a JVM: nothing here, and no member, imports Spark.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, Protocol

if TYPE_CHECKING:
    import pyarrow

Fate = Literal["upsert", "delete"]
"""What becomes of a row in the sink."""
FATE = "_fate"
"""The column of the record batches that holds each row's fate."""
ORIGIN = "_origin"
"""The only key column of a flow whose target has no keys: text that names where the row's record
was.
"""
FILL = "fill"
"""The kind of a batch that is a portion of a fill: what was sent before it is no longer asked of
the sink.
"""
_PORTION = b"portion"


@dataclass(frozen=True)
class SinkColumn:
    """A column that is sent.

    Attributes:
        name: as the sink knows it.
        type: in Spark SQL, as `simpleString` spells it.
        key: whether it is part of the key. The key of a flow whose target has no keys is the column
            `ORIGIN`.
    """

    name: str
    type: str
    key: bool = False


@dataclass(frozen=True)
class SinkPlace:
    """One sink of one flow. It does not depend on the generation, so an epoch excludes drivers of
    older generations.

    Attributes:
        lake: the name of the lake at its sinks: its address when the flow first sent.
    """

    lake: str
    pipeline: str
    flow: str
    sink: str

    def __str__(self) -> str:
        return f"{self.pipeline}.{self.flow}.{self.sink}"

    def command(self, verb: str, why: str = "") -> str:
        """Return a draindown command for the flow, with what it is good for."""
        command = f"draindown {verb} {self.pipeline}/{self.flow}"
        return f"{command}   # {why}" if why else command

    @property
    def again(self) -> str:
        """The command that sends a batch again."""
        return self.command("run", "sends the batch again; Airflow's retry does by itself")


@dataclass(frozen=True)
class SinkBatch:
    """A batch on its way to one sink. `writer` and `number` identify it: within one writer numbers
    only grow.

    Attributes:
        writer: the writer id, as Delta's transaction ids have it; a fill is a writer of its own.
        number: the number of the batch within its writer.
        generation: of the flow.
        kind: of the batch, as the ledger names it.
        batch: the number that the ledger has for the batch.
        epoch: of the driver that sends it, as `Sink.fence` was given it.
        rows: how many are sent, deletes included.
        digest: over keys, fates and the columns that are not floating, as hexadecimal digits.
        portions: how many portions the rows come in (see `portion_of`).
        whole: false of a recorded batch of which the sink has some portions only.
    """

    place: SinkPlace
    writer: str
    number: int
    generation: int
    kind: str
    batch: int
    epoch: int
    rows: int
    digest: str
    portions: int = 1
    whole: bool = True


def of_portion(part: pyarrow.RecordBatch, number: int) -> pyarrow.RecordBatch:
    """Return the rows with the number of their portion, from 0."""
    return part.replace_schema_metadata({_PORTION: str(number)})


def portion_of(part: pyarrow.RecordBatch) -> int:
    """Return which portion of their batch the rows are of.

    Portions come in order. A row is of the same portion at every attempt of its batch, so a sink
    may record a batch portion by portion and go on behind the last one that it has.
    """
    return int((part.schema.metadata or {}).get(_PORTION, 0))


class Sink(Protocol):
    """A system that holds what a flow sends it. Every method may raise the errors named at `check`.

    `records`: whether it records batches, so that `has` knows whether one is there.
    """

    records: bool

    def check(self, columns: Sequence[SinkColumn]) -> None:
        """See whether a batch of these columns could be sent, without sending anything. Needs no
        JVM.

        The system is reachable, the target exists, and rights, columns and keys fit.

        Raises:
            TransientError: it can't be reached, answers too late, or is full.
            TerminalError: a person must act: a password, a right, a table, a column.
        """

    def fence(self, epoch: int) -> None:
        """Exclude drivers of lower epochs, at the start of a drain, and drop what crashed ones left
        behind.

        Raises TransientError `sink-fenced` if a higher epoch is known to the sink.
        """

    def unsendable(self, columns: Sequence[SinkColumn]) -> Mapping[str, str]:
        """Return conditions in Spark SQL over the sent columns by reason, true for a row that the
        sink would refuse.

        A reason is a kebab-case word with the column, such as `text-too-long: name`. Rows that are
        deleted are judged by the conditions over the key columns alone.
        """

    def has(self, batch: SinkBatch) -> SinkBatch | None:
        """Return the newest batch that the sink recorded for the batch's place and writer.

        None if it has none, or keeps no record. `place`, `writer` and all numbers are those
        recorded. `batch.epoch` is that of the driver which began to send it.

        Raises TerminalError `sink-records` if nobody can tell: the records were begun anew after
        that driver.
        """

    def send(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], rows: Iterable[pyarrow.RecordBatch]
    ) -> None:
        """Apply a batch: all of it, or nothing of it where the sink has transactions, or whole
        portions of it.

        Where the sink records batches, a batch with number, digest and portions of the newest one
        of its writer is done already, and `rows` is not read. One with a lower number is applied,
        and recorded as the newest: the lake is an older copy then, and what it does now counts.
        Record batches have the columns by name, and `FATE`. Keys are distinct within a batch. Of a
        row whose fate is `delete` only the key is read, and columns that place it; others may be
        NULL. What `rows` raises ends the batch: nothing more of it is sent.

        Raises TransientError `sink-fenced` if a higher epoch is known to the sink, and
        TerminalError `sink-refused` with the key of a row that the system does not take (see
        `sinks.refusals`).
        """

    def retain(
        self, batch: SinkBatch, columns: Sequence[SinkColumn], keys: Iterable[pyarrow.RecordBatch]
    ) -> int | None:
        """Delete the rows whose keys are not among `keys`, record batches of the key columns: the
        end of a fill.

        One transaction, recorded as `batch`, as by `send`. Return the number of deleted rows, 0 if
        the batch was done already, None if the sink can't delete by absence: then nothing is
        changed.
        """

    def close(self) -> None:
        """Let go of connections. May be called more than once, and at any time."""
