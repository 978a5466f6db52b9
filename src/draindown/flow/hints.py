"""Suggest what a quarantined record likely needs, from its reason and the contract. No decision depends
on it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from datetime import datetime, time
from typing import Any

from draindown.config import time_patterns
from draindown.config.landing import FlowSpec
from draindown.config.names import closest, is_column_name, renamed

_WHOLE = ("tinyint", "smallint", "int", "bigint")
_NUMBERS = (*_WHOLE, "float", "double", "decimal")
_TIMES = ("date", "timestamp", "timestamp_ntz")
_LARGEST = {"tinyint": 2**7, "smallint": 2**15, "int": 2**31, "bigint": 2**63}
_PATTERNS = (
    (r"\d{4}/\d{1,2}/\d{1,2}", ("yyyy/M/d",)),
    (r"\d{4}\.\d{1,2}\.\d{1,2}", ("yyyy.M.d",)),
    (r"\d{1,2}\.\d{1,2}\.\d{4}", ("d.M.yyyy",)),
    (r"\d{1,2}/\d{1,2}/\d{4}", ("M/d/yyyy", "d/M/yyyy")),
    (r"\d{1,2}-\d{1,2}-\d{4}", ("d-M-yyyy", "M-d-yyyy")),
    (r"\d{1,2}\.\d{1,2}\.\d{2}", ("d.M.yy",)),
    (r"\d{1,2}/\d{1,2}/\d{2}", ("M/d/yy", "d/M/yy")),
    (r"\d{1,2} [A-Z][a-z]{2} \d{4}", ("d MMM yyyy",)),
    (r"\d{1,2}-[A-Z][a-z]{2}-\d{4}", ("d-MMM-yyyy",)),
    (r"[A-Z][a-z]{2} \d{1,2}, \d{4}", ("MMM d, yyyy",)),
    (r"(19|20)\d{6}", ("yyyyMMdd",)),
)
_CLOCK = re.compile(
    r"(?P<before>,? ?T?)(?P<clock>\d{1,2}:\d{2})(?P<second>:\d{2})?(?P<fraction>\.\d{1,9})?(?P<half> ?[AaPp][Mm])?"
    r"(?P<offset> ?([+-]\d{2}:\d{2}|[+-]\d{4}|Z))?"
)
_DIRECTIVES = {(letter, width): f"%{letter}" for letter in "dHmM" for width in (1, 2)}
_DIRECTIVES |= {
    ("m", 2): "%M",
    ("M", 1): "%m",
    ("M", 3): "%b",
    ("y", 4): "%Y",
    ("y", 2): "%y",
    ("s", 2): "%S",
}
_DIRECTIVES |= {("h", 1): "%I", ("a", 1): "%p", ("X", 3): "%z", ("Z", 1): "%z"}
_DIRECTIVES |= {("S", width): "%f" for width in range(1, 7)}
"""What reads the letters of a suggested format in Python, to be sure of it."""
_MISSING = ("", "na", "n/a", "nan", "null", "none", "nil", "-", "?", "\\n")
_BOOLEANS = ("y", "n", "yes", "no", "t", "f", "on", "off", "0", "1")
NULLED = "NULL after the transform"
"""Detail of a record that lacks a key or sequence only after the contract took it."""
_AGAIN = "and deliver the file again under a new name"
"""How often records end in a file is counted when it is taken in."""
_CONVERT = "declare it as string and convert it in a transform"


def hint(flow: FlowSpec, row: Mapping[str, Any]) -> str:
    """Return what would let such a record pass; empty if there is no likely fix.

    `row` has `reason`, `field`, `detail` and `raw`, as the quarantine stores them.
    """
    reason, field, raw = str(row["reason"]), row.get("field") or "", row.get("raw") or ""
    detail = row.get("detail") or ""
    if reason == "too_large":
        return "raise the source's max_record_bytes, if such records are meant"
    if reason == "malformed":
        return _malformed(flow, raw, detail)
    if reason == "not_null":
        return _missing(flow, field, raw, detail)
    if reason == "type" and field in flow.columns:
        cell, known, _ = detail.rpartition(" is no ")
        if not known:  # a time with nanoseconds
            return f"have {field} written with six digits of a second at most, or order rows by another column"
        return _type(cell.strip(), flow.columns[field].type) if flow.written(field) is None else ""
    if reason == "transform":
        return f"let the transform give NULL for such {field} (try_to_date, try_cast), or declare a `format:`"
    if reason == "partition":
        return f"leave {field} out of partition_by, or partition by what a transform makes of {field}, such as a hash"
    if reason.startswith("rule:"):
        return f"correct the sender, or the rule {reason.partition(':')[2]} of the pipeline file"
    return ""


def _malformed(flow: FlowSpec, raw: str, detail: str) -> str:
    text = raw.strip()
    if flow.source.form.json_columns and not flow.source.documents and (hint := _no_object(text)):
        return hint
    if flow.source.form.delimited and detail.startswith("the header"):
        return _header(flow, text)
    if flow.source.form.delimited and (hint := _dialect(flow, text, detail)):
        return hint
    if "surrogate" in detail:
        return "have texts cut between characters, not within one: half of an emoji is no character"
    if "UTF-8" in detail:
        if flow.source.form.columnar:
            return "have the texts written as UTF-8, or declare the column as binary"
        return "have it written as UTF-8: iconv -f LATIN1 -t UTF-8 FILE"
    return ""


def _dialect(flow: FlowSpec, record: str, detail: str) -> str:
    """Suggest another dialect for a record whose cells can't be told apart, or more than its header
    has.
    """
    source = flow.source
    counted = re.fullmatch(r"\d+ cells under a header of \d+", detail)
    if counted and source.dialect.quote is None and '"' in record:
        return f"if cells are quoted, leave out quote: none; where quotes hold line ends, {_AGAIN.removeprefix('and ')}"
    if counted:
        return "have cells that hold the delimiter quoted; a header must name every cell"
    if "quote" not in detail:
        return ""
    if not source.escape and "\\" + source.quote in record:
        return r"if quotes within cells have a backslash before them, say escape: '\'"
    mark, quote = re.escape(source.delimiter), re.escape(source.quote)
    if re.search(rf"(^|{mark})\s+{quote}|{quote}\s+({mark}|$)", record):
        return "have it written without blanks between quotes and delimiters"
    return "have quotes within cells doubled, and such cells quoted; if cells are never quoted, say quote: none"


def _no_object(text: str) -> str:
    if text.startswith("["):
        return f"one object a line is wanted, this is a JSON array: say multiline: true, {_AGAIN}"
    # not `{"a": 1`, which may be torn
    if text in ("{", "}", "},", "]") or re.match(r'"[^"]*"\s*:', text):
        return f"one object a line is wanted, this one spans several lines: say multiline: true, {_AGAIN}"
    if "," in text and not text.startswith("{"):
        return "this is no JSON; if it is a csv, say format: csv"
    return ""


def _header(flow: FlowSpec, first: str) -> str:
    if first.startswith(("{", "[")):
        return "this is JSON, not csv: say format: json"
    used = flow.source.delimiter
    for other, spelled in ((";", '";"'), ("\t", '"\\t"'), ("|", '"|"'), (",", '","')):
        if other != used and set(re.split(re.escape(other), first)) & set(flow.fields.values()):
            return f"cells look separated by something else: say delimiter: {spelled}"
    lowered = {name.lower() for name in flow.fields.values()}
    cells = [cell.strip().strip('"') for cell in first.split(used)]
    if lowered & {cell.lower() for cell in cells}:
        return f"name the columns as the header does: {', '.join(cells[:5])}"
    odd = next((way for cell in cells if not is_column_name(cell) and (way := renamed(cell))), "")
    named = odd.removeprefix("; write ") if odd else "name the columns as the header does"
    return f"if the files have no header, say header: false; else {named}"


def _missing(flow: FlowSpec, field: str, raw: str, detail: str) -> str:
    if detail == NULLED:
        return f"the record may have {field}: see what {flow.transform} makes of it"
    names = _fields_of(raw) if not flow.source.form.delimited else []
    if names and flow.fields.get(field, field) not in names:
        close = closest(field, [name for name in names if name not in flow.fields.values()])
        if close is not None:
            return f"the record has no {field}; if {close!r} is meant, take the column from it: `from:`"
        return f"the record has no {field}, it has {', '.join(names[:8])}"
    if field in flow.target.essential:
        return f"have it delivered with {field}, without which its row has no place in the table"
    other = (
        ", or say `from:` if the header has it under another name" if flow.source.has_header else ""
    )
    return f"have it delivered with {field}{other}, or let {field} be null: leave out `not null`"


def _fields_of(raw: str) -> list[str]:
    try:
        found = json.loads(raw)
    except ValueError:
        return []
    return list(found) if isinstance(found, dict) else []


def _type(cell: str, kind: str) -> str:
    if cell.lower() in _MISSING:
        return f"{cell or 'an empty text'!r} stands for no value: {_CONVERT}, or have it left out"
    family = kind.partition("(")[0]
    for among, judge in _BY_TYPE:
        if family in among:
            return judge(cell, kind)
    if cell[:1] in ("{", "["):
        return "it is nested: declare a struct, array or map, as it comes"
    return ""


def _time(cell: str, kind: str) -> str:
    if kind == "date" and not _patterns(cell, kind) and (patterns := _patterns(cell, "timestamp")):
        return f"it has a time of day: declare timestamp with format: {_quoted(patterns[0])}"
    if patterns := _patterns(cell, kind):
        forms = " or ".join("format: " + _quoted(one) for one in patterns)
        which = ", whichever its sender means" if len(patterns) > 1 else ""
        return f"say how it is written: {forms}{which}"
    if re.fullmatch(r"\d{10}(\.\d+)?|\d{13}", cell):
        made = "timestamp_millis" if len(cell) == 13 else "timestamp_seconds"
        return f"it counts from 1970: declare bigint and convert it in a transform with {made}"
    if kind == "date" and re.match(r"\d{4}-\d{2}-\d{2}[T ]", cell):
        return "it has a time of day: declare timestamp"
    return f"times are written 2026-01-31 or 2026-01-31T12:00:00Z: {_CONVERT}"


def _patterns(cell: str, kind: str) -> list[str]:
    """Return the formats that read the text as a value of the type; most have one."""
    for day, spelled in _PATTERNS:
        found = re.match(day, cell)
        rest = cell[found.end() :] if found else ""
        clock = _CLOCK.fullmatch(rest)
        if found and (not rest or clock):
            found_all = [one + (_clock(clock) if clock else "") for one in spelled]
            return [one for one in found_all if _reads(one, kind, cell)]
    return []


def _clock(found: re.Match[str]) -> str:
    """Return the pattern of a time of day."""
    before = found["before"].replace("T", "'T'")
    hour = "h" if found["half"] else "H"
    clock = (
        f"{hour if len(found['clock']) == 4 else hour * 2}:mm"
        if not found["half"]
        else f"{hour}:mm"
    )
    second = ":ss" if found["second"] else ""
    fraction = "." + "S" * (len(found["fraction"]) - 1) if found["fraction"] else ""
    half = found["half"].replace(found["half"].strip(), "a") if found["half"] else ""
    offset = found["offset"] or ""
    zone = {"": "", "Z": "XXX"}.get(offset.strip(), "XXX" if ":" in offset else "Z")
    return before + clock + second + fraction + half + " " * offset.startswith(" ") + zone


def _reads(pattern: str, kind: str, cell: str) -> bool:
    """Return whether values of the type are read by the format, and this text is one."""
    try:
        parts = time_patterns.parse(time_patterns.check(pattern, kind))
        moment = datetime.strptime(
            cell, "".join(_DIRECTIVES.get((p.letter, p.width), p.text or "?") for p in parts)
        )
    except ValueError:
        return False
    return kind != "date" or moment.time() == time.min


def _quoted(pattern: str) -> str:
    return '"' + pattern + '"' if "'" in pattern else f"'{pattern}'"


def _whole(cell: str, kind: str) -> str:
    if re.fullmatch(r"[+-]?\d+\.0*", cell):
        return f"it is written with a point: declare double or decimal, or convert it to {kind} in a transform"
    if re.fullmatch(r"[+-]?\d+", cell):
        larger = next(
            (wider for wider, above in _LARGEST.items() if -above <= int(cell) < above),
            "decimal(38,0)",
        )
        return f"it is too large for {kind}: declare {larger}"
    if re.fullmatch(r"[+-]?\d*\.\d+([eE][+-]?\d+)?|[+-]?\d+(\.\d+)?[eE][+-]?\d+", cell):
        return "it has a fraction or an exponent: declare double or decimal"
    return _number(cell, kind)


def _number(cell: str, kind: str) -> str:
    if said := _separators(cell, kind):
        return f"say how numbers are written: {said}"
    if kind.startswith("decimal") and re.fullmatch(r"[+-]?\d*\.?\d+", cell):
        return f"it has more digits than {kind} holds: declare more"
    if re.fullmatch(r"[^\d+-]{1,3}\s?[\d.,]+|[\d.,]+\s?[^\d]{1,3}", cell):
        return f"numbers are written without unit or sign of currency: {_CONVERT}"
    return (
        f"it is no number: declare string, or {_CONVERT.removeprefix('declare it as string and ')}"
    )


def _separators(cell: str, kind: str) -> str:
    """Return the settings by which the text is a number; two where either would do; empty if there
    are none.
    """
    found = re.fullmatch(
        r"[+-]?\d{1,3}(?:([,. '])\d{3}(?:\1\d{3})*)?(?:([.,])\d+)?|[+-]?\d+(,)\d+", cell
    )
    if not found or not any(found.groups()) or found[1] == found[2]:
        return ""
    thousands, decimal = found[1], found[2] or found[3]
    grouped = f'thousands_separator: "{thousands}"'
    if decimal is None:
        both = thousands == "," and cell.count(",") == 1 and kind not in _WHOLE
        return (
            f'decimal_separator: "," or {grouped}, whichever its sender means' if both else grouped
        )
    return ", ".join(
        ['decimal_separator: ","'] * (decimal == ",") + [grouped] * (thousands is not None)
    )


def _boolean(cell: str, kind: str) -> str:
    del kind
    if cell.lower() in _BOOLEANS:
        return f"booleans are written true and false: {_CONVERT}"
    return "booleans are written true and false: declare string"


_BY_TYPE: tuple[tuple[tuple[str, ...], Callable[[str, str], str]], ...] = (
    (_TIMES, _time),
    (_WHOLE, _whole),
    (_NUMBERS, _number),
    (("boolean",), _boolean),
)
