"""Random histories of a topic, drivers that are killed while they drain it, and what must be in the
lake in the end.
"""

from __future__ import annotations

import json
import random
import signal
from collections import Counter, defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from draindown.drill import process
from draindown.flow import generations
from draindown.flow.checkpoint import Checkpoint
from draindown.ledger import inputs
from draindown.sources import raw
from tests.kafka.cluster import Cluster
from tests.kafka.flow import KEYED, KafkaFlow
from tests.model import Change, fold

GAPS = (
    *("intake", "begun", "read", "kept", "quarantined", "remembered"),
    *("data", "commit", "merged", "recorded", "committed"),
)
"""Where a driver can die: the steps of a batch, and what `fault_driver` watches for between
them.
"""
_START = datetime(2026, 9, 21, tzinfo=UTC)
_PATIENCE = 240.0


@dataclass
class History:
    """Records of a topic as they were written, by partition: an offset is the index in its list."""

    topic: str
    draw: random.Random
    partitions: int
    keyed: bool
    written: dict[int, list[dict[str, Any]]] = field(default_factory=lambda: defaultdict(list))

    def write(self, cluster: Cluster, records: int) -> None:
        """Write random records: changes of few keys, deletes, copies, and what is no record of the
        contract.
        """
        made = [self._record() for _ in range(records)]
        cluster.send(self.topic, made)
        for record in made:
            self.written[record["partition"]].append(record)

    def _record(self) -> dict[str, Any]:
        draw, before = self.draw, [one for some in self.written.values() for one in some]
        at = draw.randrange(self.partitions)
        if before and draw.random() < 0.1:  # delivered again, in any partition
            return draw.choice(before) | {"partition": at}
        value: bytes | None = json.dumps({"n": draw.choice([None, *range(50)])}).encode()
        chance = draw.random()
        if chance < 0.15:
            value = draw.choice([b"\xff{", b"", b"[1]", b'{"n": "x"}', b'{"n": 1} {"n": 2}'])
        elif chance < 0.3:
            value = None
        moment = _START + timedelta(milliseconds=draw.randrange(20))
        headers = draw.choice(
            [None, [("other", b"x")], [("trace", b"t")], [("trace", b"\xff"), ("other", None)]]
        )
        key = b"\xfe" if draw.random() < 0.05 else b"k%d" % draw.randrange(7)
        return {
            "partition": at,
            "key": key,
            "value": value,
            "timestamp": round(moment.timestamp() * 1000),
            **({"headers": headers} if headers else {}),
        }

    @property
    def size(self) -> int:
        """The number of records."""
        return sum(map(len, self.written.values()))

    def records(self) -> Iterator[tuple[str, int, dict[str, Any]]]:
        """Yield each record with its unit and offset."""
        for partition, some in sorted(self.written.items()):
            for offset, record in enumerate(some):
                yield f"{self.topic}/{partition}", offset, record

    def reason(self, record: dict[str, Any]) -> str | None:
        """Why a record is refused, by the first column that has a reason; None if it is not."""
        value = record["value"]
        if value is None and not self.keyed:
            return "null_value"
        if _is_broken(value):
            return "malformed"
        n = None if value is None else json.loads(value).get("n")
        if not self.keyed and n is None:
            return "not_null"
        traced = not self.keyed and ("trace", b"\xff") in record.get("headers", ())
        return "type" if isinstance(n, str) or record["key"] == b"\xfe" or traced else None


def _is_broken(value: bytes | None) -> bool:
    if value is None:
        return False
    try:
        return not isinstance(json.loads(value), dict)
    except ValueError:
        return True


def hold(history: History, flow: KafkaFlow) -> list[str]:
    """Return what table, tombstones, quarantine, raw records and ledger have other than the records
    mean.
    """
    found = []
    good = [(*place, one) for *place, one in history.records() if history.reason(one) is None]
    refused = Counter(
        (u, o, history.reason(one)) for u, o, one in history.records() if history.reason(one)
    )
    kept = Counter(
        (r["origin"]["input"], r["origin"]["position"], r["reason"]) for r in flow.quarantine()
    )
    if kept != refused:
        found.append(
            f"quarantine: {sorted(kept - refused)} too many, {sorted(refused - kept)} not there"
        )
    if history.keyed:
        found += _keyed(good, flow)
    elif (rows := flow.offsets()) != sorted(
        (int(unit.rpartition("/")[2]), offset) for unit, offset, _ in good
    ):
        found.append(f"table: {len(rows)} rows, {len(good)} records")
    wanted = [
        (u, o, r["key"], r["value"], r.get("headers") or None, r["timestamp"])
        for u, o, r in history.records()
    ]
    if _raw(flow) != wanted:
        found.append("raw: not the records, byte for byte, each once")
    ends = [(one.unit, one.start, one.until) for one in raw.ranges(flow.layout)]
    if ends != sorted(
        (f"{history.topic}/{at}", 0, len(some)) for at, some in history.written.items() if some
    ):
        found.append(f"raw: ranges {ends}")
    return [*found, *_ledger(history, flow, refused.total())]


def _keyed(good: Sequence[tuple[Any, ...]], flow: KafkaFlow) -> Iterator[str]:
    changes = []
    for _, offset, record in good:
        value = record["value"]
        at = record["timestamp"] * 1000
        content = {"n": None if value is None else json.loads(value)["n"]}
        changes.append(Change((record["key"].decode(),), (at, offset), value is None, content))  # type: ignore[arg-type]
    live, dead = fold(changes)
    wanted = Counter((*key, change.sequence, change.content["n"]) for key, change in live.items())
    rows = Counter(
        (row["user"], (_micros(row["at"]), row["offset"]), row["n"]) for row in flow.rows()
    )
    if rows != wanted:
        yield f"table: {sorted(rows - wanted, key=str)} too many, {sorted(wanted - rows, key=str)} not there"
    stones: dict[tuple[Any, ...], Any] = {}
    for row in flow.tombstones() if flow.layout.tables.tombstones.exists else ():
        at = _micros(row["at"]), row["offset"]
        stones[row["user"],] = max(at, stones.get((row["user"],), at))
    if {key: at for key, at in stones.items() if key not in live} != dead:
        yield "tombstones: not the keys that are dead"


def _micros(at: datetime) -> int:
    return round(at.timestamp() * 1_000_000)


def _raw(flow: KafkaFlow) -> list[tuple[Any, ...]]:
    rows = flow.layout.tables.raw.rows(
        "select * from t where part = 'records' order by input, position"
    )
    return [
        (
            *(row["input"], row["position"], row["key"], row["value"]),
            [(one["key"], one["value"]) for one in row["headers"]] if row["headers"] else None,
            round(row["timestamp"].timestamp() * 1000),
        )
        for row in rows
    ]


def _ledger(history: History, flow: KafkaFlow, refused: int) -> Iterator[str]:
    totals = flow.totals()
    if (totals["records"], totals["quarantined"]) != (history.size, refused):
        yield f"ledger: {totals['records']} records, {totals['quarantined']} refused, of {history.size} and {refused}"
    spans: dict[str, list[tuple[int, int]]] = defaultdict(list)
    for some in inputs.by_batch(flow.layout).values():
        for one in some:
            spans[one.unit].append((one.start, one.until))
    for unit, ranges in spans.items():
        ends = [0, *[until for _, until in sorted(ranges)]]
        if [start for start, _ in sorted(ranges)] != ends[:-1]:
            yield f"inputs: {unit} is not read from end to end: {sorted(ranges)}"
    found = audit(flow.spec, "f", root=flow.home)
    yield from (f"audit: {one.kind} {one.where}" for one in found.residues)
    yield from (f"audit: not looked at: {one}" for one in found.unlooked)
    if found.seen["raw records"] != history.size:
        yield f"audit: {found.seen['raw records']} raw records looked at"


def struck(flow: KafkaFlow, gap: str, later: int = 0) -> str:
    """Have a driver of its own drain the flow, and kill it with its JVM in a gap of a batch that
    none has begun.

    `later`: so many new batches are done before. Return the proof. Raises AssertionError if it did
    not die there.
    """
    layout, home = flow.layout, flow.home / "driver"
    home.mkdir(exist_ok=True)
    (home / "fired").unlink(missing_ok=True)
    planned = Checkpoint(layout.checkpoint(generations.generation(layout))).last_offset
    batch = (planned.batch + 1 if planned else 0) + later
    log = layout.tables.target
    done = log.last(layout.app_id(1, "rows")) if log.exists else None
    # version 0 makes the table; each batch that is not in it yet commits one version
    version = (log.version if log.exists else 0) + batch - (-1 if done is None else done)
    entry = {
        "request": flow.request().encode(),
        "home": str(home),
        "place": (gap, batch),
        "version": version,
    }
    (home / "plan.json").write_text(json.dumps([entry]))
    arguments = ["-m", "draindown.spark.job.fault_driver", str(home / "plan.json")]
    with process.running(arguments, cwd=home, log=home / "driver.log") as driver:
        jvm = process.wait_for_fault(home, driver, _PATIENCE)
        code = process.code_of(driver, 60)
    said = (home / "driver.log").read_text()[-4000:]
    assert jvm is not None and code == -signal.SIGKILL and process.gone(jvm), (
        f"{gap} of batch {batch}: {code}\n{said}"
    )
    return f"`{gap}` of batch {batch}"


def play(
    home: Path, spark: SparkSession, cluster: Cluster, topic: str, seed: int, gaps: Sequence[str]
) -> tuple[History, KafkaFlow, list[str]]:
    """Write a random history and drain it by drivers that die in each of `gaps`. Return the proofs
    of the deaths.

    What is left waits for a drain.
    """
    draw = random.Random(seed)
    keyed, partitions, bound = seed % 2 == 0, draw.randrange(1, 4), draw.randrange(5, 30)
    cluster.create(topic, partitions)
    history = History(topic, draw, partitions, keyed)
    content = {"maintenance": {"copy_on_write": 0}} | (KEYED if keyed else {})
    flow = KafkaFlow(
        home, spark, cluster, topic, source={"max_offsets_per_trigger": bound}, **content
    )
    proofs = []
    for gap in gaps:
        later = draw.randrange(2)
        history.write(cluster, (later + 1) * bound)  # so many batches at least that none has begun
        proofs.append(struck(flow, gap, later))
    history.write(cluster, draw.randrange(1, bound))
    return history, flow, proofs


def dealt(seed: int, seeds: int) -> list[str]:
    """Return the gaps that a seed dies in: of `seeds` in a row each gap has one turn; of many, for
    either table.
    """
    turns = max(2, -(-len(GAPS) // seeds))
    if seeds * turns < 2 * len(GAPS):
        return list(GAPS[seed * turns : (seed + 1) * turns])
    return [GAPS[(seed // 2 * turns + at) % len(GAPS)] for at in range(turns)]
