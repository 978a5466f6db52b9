"""The audit of a keyed table: compare each key's greatest sequence in raw input with the target and
its tombstones.

A row that the gate withdrew accounts for a key that is missing in the target, as a tombstone does.
Refused rows are ignored. DuckDB compares; rules, transforms and the drain's parser are not used.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

import pyarrow as pa

from draindown.audit.model import Residue
from draindown.base.duck import connect
from draindown.base.formatting import count
from draindown.config.landing import FlowSpec
from draindown.gate.acceptance import ROWS
from draindown.lake.table import identifier

MOST = 1000
"""At most so many residues of one kind are listed; one more residue then gives the total."""
_TABLES = ("raw", "target", "tombstones", "withheld")
_ROWS, _PARTS = 100_000, 1_000
"""Rows, and blocks of rows, that are buffered before one INSERT."""
_SAME = {"tinyint", "smallint", "int", "bigint", "float", "double", "boolean", "date"}
_OTHER = {"string": "varchar", "timestamp": "timestamptz", "timestamp_ntz": "timestamp"}
_MAKERS = {"withColumn": 0, "withColumnRenamed": 1, "alias": 0, "name": 0}
_CHECKS = {
    "lost-key": "w.s is not null and h.s is null and d.s is null and x.s is null",
    "key-from-nowhere": "w.s is null and (h.s is not null or d.s is not null)",
    "old-sequence": "w.s is not null and greatest(h.s, d.s, x.s) < w.s",
    "sequence-from-nowhere": "w.s is not null and greatest(h.s, d.s) > w.s",
    "undead-key": "h.s is not null and greatest(d.s, x.s) >= h.s",
}
_ACCEPTED = {
    "lost-key": "w.s <= a.s and not a.stays",
    "key-from-nowhere": "greatest(h.s, d.s) <= a.s",
    "old-sequence": "w.s <= a.s and (h.s is not null or not a.stays)",
    "sequence-from-nowhere": "greatest(h.s, d.s) <= a.s",
    "undead-key": "h.s <= a.s",
}
"""Where a residue is due to an accepted commit: `a.s` is the greatest sequence that such commits
saw of the key, and `a.stays` whether the last of them left it in the table. What came later is
judged as ever."""
_NEED_ALL_FILES = ("key-from-nowhere", "sequence-from-nowhere")


def unusable(flow: FlowSpec, root: Path) -> str | None:
    """Return why keys and sequences can't be recounted from raw input, or None if they can."""
    names = [*flow.target.keys, *flow.target.sequence_by]
    foreign = [name for name in names if name not in flow.columns]
    if foreign:
        return f"keys and sequences: the transform makes {', '.join(foreign)}, raw input doesn't hold it"
    odd = [
        f"{name} ({flow.columns[name].type})"
        for name in names
        if duck_type(flow.columns[name].type) is None
    ]
    if odd:
        return f"keys and sequences: this audit can't compare {', '.join(odd)}"
    if flow.transform:
        changed = made_by(flow.transform, root)
        if changed is None:
            return f"keys and sequences: the source of transform {flow.transform} was not found"
        if changed & set(names):
            return (
                f"keys and sequences: the transform sets {', '.join(sorted(changed & set(names)))}"
            )
    return None


def made_by(transform: str, root: Path) -> set[str] | None:
    """Return the names of the columns that a transform's module sets, found in its source; None if
    it has no source.
    """
    path = root / "jobs" / "transforms" / Path(*transform.split(".")[:-1]).with_suffix(".py")
    try:
        tree = ast.parse(path.read_bytes())
    except (OSError, SyntaxError, ValueError):
        return None
    return {
        name for node in ast.walk(tree) if isinstance(node, ast.Call) for name in _names_set(node)
    }


def _names_set(call: ast.Call) -> Iterator[str]:
    called = call.func.attr if isinstance(call.func, ast.Attribute) else ""
    if called in _MAKERS:
        chosen: Sequence[ast.expr | None] = call.args[_MAKERS[called] : _MAKERS[called] + 1]
    elif called in ("withColumns", "withColumnsRenamed"):
        given = [arg for arg in call.args if isinstance(arg, ast.Dict)]
        chosen = [
            name for arg in given for name in (arg.keys if called == "withColumns" else arg.values)
        ]
    else:
        chosen = call.args if called == "toDF" else ()
    yield from (c.value for c in chosen if isinstance(c, ast.Constant) and isinstance(c.value, str))


def duck_type(spark_type: str) -> str | None:
    """Return DuckDB's name of a Spark type, or None if the audit can't compare values of it."""
    if spark_type in _SAME or spark_type.startswith("decimal("):
        return spark_type
    return _OTHER.get(spark_type)


class KeyRecount:
    """Compares keys and sequences of raw input, the target, its tombstones and withdrawn rows that
    are not released.

    `names`: the columns that it reads, key columns first, each once.
    """

    def __init__(self, flow: FlowSpec, temporary: Path) -> None:
        self._keys, self._sequence = flow.target.keys, flow.target.sequence_by
        # a column may be in `keys` and in `sequence_by`
        self.names = list(dict.fromkeys([*self._keys, *self._sequence]))
        types = [duck_type(flow.columns[name].type) for name in self.names]
        self._slots = [f"c{i}" for i in range(len(self.names))]
        self._casts = ", ".join(
            f"try_cast({s} as {t}) as {s}" for s, t in zip(self._slots, types, strict=True)
        )
        self._db = connect(temporary, zone_of(flow.source.timezone))
        declared = ", ".join(f"{s} {t}" for s, t in zip(self._slots, types, strict=True))
        for name in _TABLES:
            self._db.execute(f"create table {name} ({declared})")
        self._db.execute(f"create table accepted ({declared}, _rows bigint, _nth bigint)")
        self._pending: dict[str, list[pa.Table]] = {name: [] for name in _TABLES}

    def add(self, name: str, columns: Sequence[pa.Array | pa.ChunkedArray]) -> None:
        """Add rows to `raw`, `target`, `tombstones` or `withheld`, as columns in the order of
        `names`.
        """
        rows, pending = pa.table(list(columns), names=self._slots), self._pending[name]
        if pending and pending[0].schema != rows.schema:
            self._insert(name)
        pending.append(rows)
        if sum(map(len, pending)) >= _ROWS or len(pending) >= _PARTS:
            self._insert(name)

    def accept(self, images: Iterable[pa.Table]) -> None:
        """Load the images of accepted commits, oldest first, which have the columns `names`."""
        for nth, rows in enumerate(images):
            self._db.register("incoming", rows)
            chosen = ", ".join(map(identifier, self.names))
            self._db.execute(f"insert into accepted select {chosen}, {ROWS}, {nth} from incoming")
            self._db.unregister("incoming")

    def before(self, columns: Sequence[str]) -> KeyRecount:  # noqa: ARG002
        """Return this: keys and sequence are there from the first record on."""
        return self

    def _insert(self, name: str) -> None:
        """Insert the buffered rows in one statement: each INSERT costs milliseconds, even for a
        single row.
        """
        pending = self._pending[name]
        if not pending:
            return
        self._db.register("incoming", pa.concat_tables(pending).combine_chunks())
        pending.clear()
        self._db.execute(f"insert into {name} select {self._casts} from incoming")
        self._db.unregister("incoming")

    def _insert_all(self) -> None:
        for name in _TABLES:
            self._insert(name)

    def doubled(self) -> Iterator[Residue]:
        """Yield a residue for each key that the target holds more than once."""
        keys = ", ".join(self._slots[: len(self._keys)])
        twice = f"select {keys}, count(*) as n from target group by {keys} having count(*) > 1"
        sql = f"select * from ({twice}) anti join accepted using ({keys})"
        for *key, number in self._few(sql):
            yield Residue("double-key", self._shown(key), "1 row", f"{number} rows")

    def uncast(self) -> int:
        """Return how many raw and withdrawn rows have a key or sequence that DuckDB can't cast to
        the column's type.
        """
        return self._one(f"select count(*) from ({self._unread()})")

    def compare(self, *, all_files: bool) -> Iterator[Residue]:
        """Yield a residue for each key on which raw input, target and tombstones disagree.

        Without `all_files` (some raw files are gone) the checks that need every raw record are left
        out.
        """
        keys = ", ".join(self._slots[: len(self._keys)])
        sequence = (
            "row(" + ", ".join(self._slots[self.names.index(name)] for name in self._sequence) + ")"
        )
        self._insert_all()  # before the time zone changes: timestamps without a zone are in that of the source
        self._db.execute("set timezone = 'UTC'")
        unread = self.uncast()
        # a row that could not be cast may be the newest of its key, so its key is not judged
        self._db.execute(f"create or replace temp table blurred as {self._unread()}")
        for short, name in (("w", "raw"), ("h", "target"), ("d", "tombstones"), ("x", "withheld")):
            self._db.execute(
                f"create or replace temp table {short} as "
                f"select {keys}, max({sequence}) as s from {name} where not ({self._any_null()}) group by {keys}"
            )
        sides = " ".join(f"full join {short} using ({keys})" for short in "hdx")
        self._db.execute(
            f"""create or replace temp table a as select {keys}, max(s) as s, arg_max(stays, nth) as stays from (
                select {keys}, _nth as nth, max({sequence}) as s, bool_or(_rows > 0) as stays
                from accepted where not ({self._any_null()}) group by {keys}, _nth) group by {keys}"""
        )
        joined = f"w {sides} anti join blurred using ({keys}) left join a using ({keys})"
        for kind, test in _CHECKS.items():
            if (all_files and not unread) or kind not in _NEED_ALL_FILES:
                chosen = f"{keys}, w.s as w, h.s as h, d.s as d, x.s as x"
                yield from self._residues(
                    kind,
                    f"select {chosen} from {joined} where {test} and not coalesce({_ACCEPTED[kind]}, false)",
                )

    def _residues(self, kind: str, sql: str) -> Iterator[Residue]:
        found_rows = self._few(sql)
        for *key, want, have, dead, out in found_rows:
            found = f"target {_bare(have)}, tombstone {_bare(dead)}" + (
                f", withheld {_bare(out)}" if out else ""
            )
            yield Residue(kind, self._shown(key), f"sequence {_bare(want)}", found)
        if len(found_rows) == MOST:
            number = self._one(f"select count(*) from ({sql})")
            yield Residue(kind, "all keys", "0", count(number), f"the first {MOST} are listed")

    def _few(self, sql: str) -> list[tuple[object, ...]]:
        self._insert_all()
        # as text: a Python datetime would be shown in another time zone
        return self._db.execute(
            f"select columns(*)::varchar from ({sql}) order by all limit {MOST}"
        ).fetchall()

    def _one(self, sql: str) -> int:
        self._insert_all()
        found = self._db.execute(sql).fetchone()
        return int(found[0]) if found else 0

    def _unread(self) -> str:
        keys = ", ".join(self._slots[: len(self._keys)])
        return " union all ".join(
            f"select {keys} from {name} where {self._any_null()}" for name in ("raw", "withheld")
        )

    def _any_null(self) -> str:
        return " or ".join(f"{slot} is null" for slot in self._slots)

    def _shown(self, key: Sequence[object]) -> str:
        return ", ".join(f"{name}={value}" for name, value in zip(self._keys, key, strict=True))


def _bare(row: object) -> str:
    return (
        "none"
        if row is None
        else str(row).removeprefix("(").removesuffix(")").removesuffix(",").replace("'", "")
    )


def zone_of(name: str) -> str:
    """Return a time zone of the pipeline file by its name in DuckDB."""
    offset = re.fullmatch(r"([+-])(\d\d):(\d\d)", name)
    return (
        f"GMT{name}"
        if offset and name[1:] != "00:00"
        else "UTC"
        if offset
        else name.replace("'", "''")
    )
