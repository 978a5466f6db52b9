"""The correct result for the demo's events, computed from the bytes of the landing files alone.

It shares only the names of directories with the engine: Python splits the files into lines, DuckDB parses the JSON,
refuses, orders and folds, and the result is compared with the Delta table as `deltalake` reads it.

The contract, stated independently of the engine:

- a line is refused if it is not a JSON object (`malformed`); else if a column, in contract order, has the wrong type
  (`type`) or is null but not nullable (`missing`); else if a rule is not true (`rule:<name>`); the first reason counts
- a delete needs only its key and its time
- of one key the newest row wins; of equally new ones a delete, then the greater content, column by column, null least
"""

from __future__ import annotations

import gzip
import hashlib
import json
import time
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any

import duckdb

from draindown.lake.home import FlowHome
from examples.flights.derived import TABLES, DerivedComparison, compare_derived

COLUMNS = (
    "flight_id", "status", "origin", "dest", "carrier", "tailnum", "sched_dep", "dep_delay", "arr_delay", "updated_at",
)  # fmt: skip
"""Columns of the contract, in its order."""

_TIMES = ("sched_dep", "updated_at")
_COMPARED = (*COLUMNS, "flight_month", "_rescued_data")
_EXAMPLES = 10

# to_int parses as Spark does: digits and a sign, no fraction, 32 bits.
_PARSED = r"""
create macro to_int(value) as
    case when regexp_full_match(trim(value), '[+-]?\d+') then try_cast(trim(value) as int) end;
create macro to_time(value) as epoch(try_cast(value as timestamptz))::bigint;
create table document as select file, position, case when json_valid(raw) then raw end as raw from line;
create table object as select file, position, case when json_type(raw) = 'OBJECT' then raw end as raw from document;
create table fields as
select file, position, object.raw is not null as is_object,
       json_extract_string(object.raw, ['$.flight_id', '$.status', '$.origin', '$.dest', '$.carrier',
            '$.tailnum', '$.sched_dep', '$.dep_delay', '$.arr_delay', '$.updated_at']) as given,
       list_filter(json_keys(object.raw), lambda k: k not in $columns) as others,
       case when length(others) > 0 then object.raw end as raw
from object;
create table parsed as
select file, position, is_object, given, raw,
       given[1] as flight_id, given[2] as status, given[3] as origin, given[4] as dest,
       given[5] as carrier, given[6] as tailnum,
       to_time(given[7]) as sched_dep, to_int(given[8]) as dep_delay, to_int(given[9]) as arr_delay,
       to_time(given[10]) as updated_at,
       coalesce(given[2] = 'withdrawn', false) as gone
from fields
"""

_JUDGED = """
create table judged as
select * exclude (is_object, given), case
    when not is_object then 'malformed'
    when flight_id is null then 'not_null/flight_id'
    when status is null then 'not_null/status'
    when given[7] is not null and sched_dep is null then 'type/sched_dep'
    when given[8] is not null and dep_delay is null then 'type/dep_delay'
    when given[9] is not null and arr_delay is null then 'type/arr_delay'
    when given[10] is null then 'not_null/updated_at'
    when updated_at is null then 'type/updated_at'
    when gone then null
    when status not in ('scheduled', 'departed', 'arrived', 'diverted', 'cancelled') then 'rule:known_status'
    when not updated_at between epoch(timestamp '2000-01-01')::bigint and $latest then 'rule:plausible_time'
    end as verdict
from parsed
"""

_FOLDED = """
create table winner as
select *, left(flight_id, 7) as flight_month from (
    select *, row_number() over (partition by flight_id order by updated_at desc, gone desc, status desc,
        origin desc nulls last, dest desc nulls last, carrier desc nulls last, tailnum desc nulls last,
        sched_dep desc nulls last, dep_delay desc nulls last, arr_delay desc nulls last, raw desc nulls last) as place
    from judged where verdict is null)
where place = 1 and not gone
"""

_EXPECTED = """
create table expected as select w.* exclude (raw, place, gone), r.text as _rescued_data
from winner w left join rescue r using (file, position)
"""


@dataclass(frozen=True)
class Comparison:
    """The result of the oracle. `ok` if table and quarantine are exactly as computed from the landing files."""

    rows_expected: int = 0
    rows_found: int = 0
    missing: int = 0
    """Expected keys that the table lacks."""
    extra: int = 0
    """Unexpected rows of the table: resurrected keys, second rows of a key."""
    different: int = 0
    """Keys whose columns differ."""
    quarantined_expected: int = 0
    quarantined_found: int = 0
    quarantine_missing: int = 0
    quarantine_extra: int = 0
    reasons: dict[str, int] = field(default_factory=dict)
    """Expected quarantined rows by reason."""
    lines: int = 0
    blank: int = 0
    table_sha256: str = ""
    """Fingerprint of the expected table."""
    examples: tuple[str, ...] = ()
    derived: tuple[DerivedComparison, ...] = ()
    """The tables that follow from this one, where they were asked for."""
    problem: str = ""
    """Why the comparison failed; empty if it did not."""

    @property
    def wrong_rows(self) -> int:
        """Number of wrong rows of the table."""
        return self.missing + self.extra + self.different

    @property
    def ok(self) -> bool:
        """Whether nothing differs."""
        wrong = self.problem or self.wrong_rows or self.quarantine_missing or self.quarantine_extra
        return not wrong and all(one.ok for one in self.derived)

    def as_dict(self) -> dict[str, Any]:
        """Return the result as JSON-ready values."""
        return {"ok": self.ok, "wrong_rows": self.wrong_rows} | asdict(self)

    def as_text(self) -> str:
        """Return the result as text: one line, then examples."""
        if self.problem:
            return f"oracle: could not compare: {self.problem}"
        verdict = (
            "WRONG"
            if self.wrong_rows or self.quarantine_missing or self.quarantine_extra
            else "exact"
        )
        text = (
            f"oracle: {verdict}: {self.rows_found:,} rows of {self.rows_expected:,} expected "
            f"({self.missing} missing, {self.extra} extra, {self.different} different), "
            f"{self.quarantined_found:,} quarantined of {self.quarantined_expected:,} expected "
            f"({self.quarantine_missing} missing, {self.quarantine_extra} extra)"
        )
        return "\n".join(
            (text, *(f"  {example}" for example in self.examples), *map(str, self.derived))
        )


def compare(
    lake: Path | str,
    landing: Path | str,
    *,
    quarantine: bool = True,
    rescued: bool = True,
    derived: bool = False,
) -> Comparison:
    """Compare the lake of the flights pipeline with the result computed from its landing files. Never raises for data.

    Args:
        lake: root of the lake.
        landing: the directory above `flights/*.json.gz`.
        quarantine: whether the writer keeps quarantined rows; if not, they are not compared.
        rescued: whether the writer keeps unknown fields in `_rescued_data`.
        derived: whether to compare the tables that the pipeline derives from that of the flights, too.
    """
    layout = FlowHome(str(lake), "flights", "flights", "flights")
    try:
        with duckdb.connect() as con:
            con.execute("set timezone = 'UTC'; set enable_progress_bar = false")
            lines, blank = expect(con, Path(landing))
            _read_table(con, layout.tables.target.path, rescued)
            _read_quarantine(con, layout.tables.quarantine.path if quarantine else None)
            found = _compared(con, lines, blank, quarantine, rescued)
            follow = (
                [compare_derived(con, Path(lake), table) for table in TABLES] if derived else []
            )
            return replace(found, derived=tuple(follow))
    except Exception as error:  # noqa: BLE001  "not comparable" is a result, which the caller judges
        return Comparison(problem=f"{type(error).__name__}: {error}")


def expect(con: duckdb.DuckDBPyConnection, landing: Path) -> tuple[int, int]:
    """Build the tables `expected` (the final table) and `refused` (file, position, verdict).

    Return the number of lines and of blank lines.
    """
    lines, blank = _read_lines(con, landing)
    for statement in _PARSED.split(";"):
        con.execute(statement, {"columns": list(COLUMNS)} if "$columns" in statement else None)
    con.execute(_JUDGED, {"latest": int(time.time()) + 86_400})
    con.execute(_FOLDED)
    _rescue(con)
    con.execute(_EXPECTED)
    con.execute(
        "create table refused as select file, position, verdict from judged where verdict is not null"
    )
    return lines, blank


def fingerprint(con: duckdb.DuckDBPyConnection, relation: str) -> str:
    r"""SHA-256 over the rows by key: values between tabs, `\N` for null, times as UTC seconds."""
    digest = hashlib.sha256()
    values = ", ".join(rf"coalesce({column}::varchar, '\N')" for column in _COMPARED)
    found = con.execute(f"select concat_ws(chr(9), {values}) from {relation} order by flight_id")
    while rows := found.fetchmany(50_000):
        digest.update("".join(f"{row[0]}\n" for row in rows).encode())
    return digest.hexdigest()


def _read_lines(con: duckdb.DuckDBPyConnection, landing: Path) -> tuple[int, int]:
    """Fill `line(file, position, raw)` with the lines that are not blank.

    Return their number and that of blank lines.
    """
    con.execute("create table line (file varchar, position int, raw varchar)")
    count = 0
    for path in sorted((landing / "flights").glob("*.json.gz")):
        lines = gzip.decompress(path.read_bytes()).splitlines()
        count += len(lines)
        con.execute(_SPLIT, {"file": path.name, "text": "\n".join(_texts(lines))})
    return count, count - _count(con, "line")


_SPLIT = """
insert into line
select $file, position, raw
from (select unnest(lines) as raw, generate_subscripts(lines, 1) as position
      from (select string_split($text, chr(10)) as lines))
where trim(raw, ' ' || chr(9)) <> ''
"""


def _texts(lines: list[bytes]) -> list[str]:
    """Return the lines as text. A line that is not UTF-8 becomes the text `not UTF-8`, which is not JSON."""
    try:
        return [line.decode() for line in lines]
    except UnicodeDecodeError:
        return [_text(line) for line in lines]


def _text(line: bytes) -> str:
    try:
        return line.decode()
    except UnicodeDecodeError:
        return "not UTF-8"


def _rescue(con: duckdb.DuckDBPyConnection) -> None:
    """Create table `rescue(file, position, text)`: the unknown fields of the winning rows, parsed again in Python."""
    found = con.execute("select file, position, raw from winner where raw is not null").fetchall()
    con.execute(
        "create table rescue as select unnest($files::varchar[]) as file, unnest($positions::int[]) as position, "
        "unnest($texts::varchar[]) as text",
        {
            "files": [file for file, _, _ in found],
            "positions": [position for _, position, _ in found],
            "texts": [_others(json.loads(raw)) for _, _, raw in found],
        },
    )


def _others(row: dict[str, Any]) -> str | None:
    others = {k: v for k, v in row.items() if k not in COLUMNS and v is not None}
    return _canonical(others) if others else None


def _canonical(value: object) -> str:
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def _read_table(con: duckdb.DuckDBPyConnection, path: str, rescued: bool) -> None:
    """Create table `found`: the target as a reader sees it, times as UTC seconds, `_rescued_data` normalised."""
    names = [c for c in _COMPARED if rescued or c != "_rescued_data"]
    _read_delta(con, "raw_found", path, names)
    picked = [f"epoch({c})::bigint as {c}" if c in _TIMES else c for c in names]
    con.execute(f"create table found as select {', '.join(picked)} from raw_found")
    if not rescued:
        return
    spellings = con.execute(
        "select distinct _rescued_data from found where _rescued_data is not null"
    ).fetchall()
    con.execute(
        "create table spelling as "
        "select unnest($spelt::varchar[]) as spelt, unnest($canonical::varchar[]) as canonical",
        {
            "spelt": [s for (s,) in spellings],
            "canonical": [_canonical(json.loads(s)) for (s,) in spellings],
        },
    )
    con.execute(
        "update found set _rescued_data = canonical from spelling where _rescued_data = spelt"
    )


def _read_quarantine(con: duckdb.DuckDBPyConnection, path: str | None) -> None:
    """Create table `kept(file, position, verdict)`. Files are named without directories, whose spelling may differ."""
    con.execute("create table kept (file varchar, position bigint, verdict varchar)")
    if path is None or not (Path(path) / "_delta_log").exists():
        return
    _read_delta(con, "raw_kept", path, ["origin", "reason", "field"])
    con.execute(
        "insert into kept select string_split(origin.input, '/')[-1], origin.position, "
        "case when reason in ('type', 'not_null') then concat_ws('/', reason, field) else reason end from raw_kept"
    )


def _read_delta(con: duckdb.DuckDBPyConnection, name: str, path: str, columns: list[str]) -> None:
    """Copy columns of a Delta table with QueryBuilder, the only reader of deltalake that honours deletion vectors."""
    from deltalake import DeltaTable, QueryBuilder

    reader = QueryBuilder().register("t", DeltaTable(path))
    quoted = ", ".join(f'"{column}"' for column in columns)
    rows = reader.execute(f"select {quoted} from t")
    con.register("arriving", rows)
    con.execute(f"create table {name} as select * from arriving")
    con.unregister("arriving")


def _compared(
    con: duckdb.DuckDBPyConnection, lines: int, blank: int, quarantine: bool, rescued: bool
) -> Comparison:
    names = [c for c in _COMPARED if rescued or c != "_rescued_data"]
    differs = " or ".join(f"e.{c} is distinct from f.{c}" for c in names)
    for statement in _GAPS.split(";"):
        con.execute(statement.replace("{differs}", differs).replace("{asked}", str(quarantine)))
    tally = dict(con.execute("select what, count(*) from gap group by what").fetchall())
    reasons = con.execute(
        "select split_part(verdict, '/', 1), count(*) from refused group by 1 order by 1"
    ).fetchall()
    return Comparison(
        rows_expected=_count(con, "expected"),
        rows_found=_count(con, "found"),
        missing=tally.get("missing", 0),
        extra=tally.get("extra", 0),
        different=tally.get("different", 0),
        quarantined_expected=_count(con, "demanded"),
        quarantined_found=_count(con, "kept"),
        quarantine_missing=_count(con, "lost"),
        quarantine_extra=_count(con, "surplus"),
        reasons=dict(reasons),
        lines=lines,
        blank=blank,
        table_sha256=fingerprint(con, "expected"),
        examples=tuple(_examples(con, names)),
    )


_GAPS = """
create table gap as
    select e.flight_id, 'missing' as what from expected e anti join found f using (flight_id)
    union all select f.flight_id, 'extra' from found f anti join expected e using (flight_id)
    union all select flight_id, 'extra' from found group by flight_id having count(*) > 1
    union all select e.flight_id, 'different' from expected e join found f using (flight_id) where {differs};
create view demanded as select file, position::bigint as position, verdict from refused where {asked};
create view lost as from demanded except all from kept;
create view surplus as from kept except all from demanded
"""


def _count(con: duckdb.DuckDBPyConnection, relation: str) -> int:
    return int(con.execute(f"select count(*) from {relation}").fetchall()[0][0])


def _examples(con: duckdb.DuckDBPyConnection, names: list[str]) -> list[str]:
    """Return a few differences of each kind, with both sides."""
    shown = []
    for what in ("missing", "extra", "different"):
        keys = con.execute(
            "select flight_id from gap where what = ? order by 1 limit ?", [what, _EXAMPLES]
        ).fetchall()
        for (key,) in keys:
            sides = [_row(con, side, key, names) for side in ("expected", "found")]
            shown.append(f"{what} {key}: expected {sides[0]}, found {sides[1]}")
    for view in ("lost", "surplus"):
        rows = con.execute(f"from {view} order by all limit {_EXAMPLES}").fetchall()
        shown += [
            f"quarantine {view}: {file} line {position}: {verdict}"
            for file, position, verdict in rows
        ]
    return shown


def _row(con: duckdb.DuckDBPyConnection, relation: str, key: str, names: list[str]) -> str:
    rows = con.execute(
        f"select {', '.join(names)} from {relation} where flight_id = ?", [key]
    ).fetchall()
    return "; ".join(" ".join(str(v) for v in row[1:]) for row in rows) or "nothing"
