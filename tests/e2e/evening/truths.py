"""After an action: is the table right, is nothing left behind, and is what everybody was told what
the ledger says?
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from tests.e2e.evening import shown
from tests.e2e.evening.facts import (
    FATES,
    SUMMED,
    Facts,
    changed_rows,
    closes,
    facts,
    leaseholders,
    sums,
)
from tests.e2e.evening.orders import Orders, meant
from tests.e2e.evening.shift import STEPS, Said, Shift

SURFACES = (
    *("table", "ledger", "quarantine", "processes", "lease"),
    *("card", "page", "xcom", "asset", "exit", "doctor", "log", "report", "plan"),
)
_PAGE = (
    "generation",
    "batch",
    "kind",
    "inputs",
    "records",
    "applied",
    "superseded",
    "duplicate",
    "quarantined",
)
_PAGE_BATCHES = 30
_RED, _GREEN = ("DIED", "FAILED", "UNFINISHED", "OVER LIMIT"), ("OK", "IDLE", "STOPPED EARLY")


@dataclass
class Tally:
    """Truths that were looked at, by surface, and those that did not hold, in words."""

    looked: Counter[str] = field(default_factory=Counter)
    lies: list[str] = field(default_factory=list)

    def hold(self, surface: str, what: str, found: object, expected: object = True) -> None:
        """Note one truth: what was found must be what is so."""
        assert surface in SURFACES, surface
        self.looked[surface] += 1
        if found != expected:
            self.lies.append(f"{surface}: {what}: {_brief(found)} instead of {_brief(expected)}")


def standing(tally: Tally, shift: Shift, orders: Orders) -> Facts:
    """What must be so at rest, whatever happened, and what doctor and plan say of it."""
    so = facts(orders)
    _tables(tally, so)
    left = shift.drivers() | shift.processes_of(f"draindown {orders.spec.pipeline}.")
    tally.hold("processes", "no driver is left", left, set())
    tally.hold("lease", "nobody holds it", leaseholders(orders), [])
    _doctor(tally, shift, orders, so)
    _plan(tally, shift, orders, so)
    return so


def _tables(tally: Tally, so: Facts) -> None:
    meaning = meant(so.raw, {path.name for path in so.raw} - so.drained)
    found = {row["id"]: (row["seq"], row["a"], row["b"]) for row in so.table}
    tally.hold("table", "each key once", len(found), len(so.table))
    tally.hold("table", "rows are those of the oracle", _difference(found, meaning.live), {})
    refused = {
        (row["origin"]["input"].rpartition("/")[2], row["origin"]["position"])
        for row in so.quarantine
    }
    tally.hold(
        "quarantine", "refused lines are those of the oracle", refused ^ meaning.refused, set()
    )
    tally.hold("quarantine", "each line once", len(refused), len(so.quarantine))
    tally.hold("ledger", "it closes", closes(so), [])
    source = sums(row for row in so.ledger if row["kind"] == "drain")
    lines = sum(row["until"] - row["from"] for row in so.inputs if row["kind"] == "drain")
    tally.hold("ledger", "lines are those of the files", lines, meaning.lines)
    tally.hold("ledger", "blank ones are no records", lines - source["records"], meaning.blank)
    tally.hold("ledger", "files are those drained", source["inputs"], len(so.drained))
    tally.hold(
        "ledger", "refused are those in the quarantine", source["quarantined"], len(so.quarantine)
    )


def _doctor(tally: Tally, shift: Shift, orders: Orders, so: Facts) -> None:
    said = shift.draindown("doctor", orders.spec.pipeline, "--json")
    tally.hold("exit", "doctor ends with 0 where nothing is wrong", said.code, 0)
    health = (said.document or [{}])[0]
    looked, notes = (
        health.get("looked", {}),
        {one["code"]: one["found"] for one in health.get("symptoms", [])},
    )
    version = so.published.get("version")
    tally.hold("doctor", "healthy", health.get("healthy"))
    tally.hold("doctor", "the lease is free", looked.get("lease"), "free")
    tally.hold(
        "doctor",
        "published",
        looked.get("published"),
        f"version {version}" if version else "nothing yet",
    )
    tally.hold("doctor", "the table's version", looked.get("target"), f"version {so.version}")
    batches = (
        len([row for row in so.ledger if row["generation"] == so.ledger[-1]["generation"]])
        if so.ledger
        else 0
    )
    tally.hold("doctor", "batches", str(looked.get("ledger", "")).split(" ")[0], str(batches))
    tally.hold("doctor", "says what is open", "quarantine-open" in notes, bool(so.open_rows))
    if so.open_rows:
        tally.hold(
            "doctor",
            "how many are open",
            notes["quarantine-open"].split(" ")[0],
            f"{len(so.open_rows):,}",
        )
    tally.hold("doctor", "says what is parked", "parked-files" in notes, bool(so.parked))
    tally.hold("doctor", "says what is not published", "unpublished" in notes, so.unpublished)


def _plan(tally: Tally, shift: Shift, orders: Orders, so: Facts) -> None:
    said = shift.draindown("plan", orders.spec.pipeline, "--json")
    tally.hold("exit", "plan ends with 0", said.code, 0)
    part = (said.document or {}).get("flows", {}).get("f", {}).get("plan", {})
    tally.hold("plan", "what waits", part.get("backlog", {}).get("units"), len(so.waiting))
    tally.hold("plan", "whether a drain is due", part.get("drain"), bool(so.waiting))
    tally.hold(
        "plan", "whether a check is due", part.get("check"), so.unpublished or bool(so.waiting)
    )


def of_run(tally: Tally, shift: Shift, orders: Orders, so: Facts, run_id: str) -> None:
    """What Airflow and draindown tell of a run of the DAG that is over."""
    state = shift.run_state(run_id)
    said = shift.draindown("report", orders.spec.pipeline, "--run", run_id, "--json")
    reports = (said.document or {}).get("reports", [])
    tally.hold(
        "exit", "report knows every run that committed", said.code if so.of_run(run_id) else 0, 0
    )
    _starts(tally, so, run_id, reports)
    _xcoms(tally, shift, orders, so, run_id)
    _logs(tally, shift, so, run_id, reports)
    _assets(tally, shift, orders, so, run_id)
    text = shift.draindown("report", orders.spec.pipeline, "--run", run_id).out
    card = shown.card(text.partition("\n\n")[0]) if reports else None
    if card is not None:
        tally.hold("card", "its colour is Airflow's", card.mark in _GREEN, state == "success")
        _card(tally, "card", card, so, _newest_drain(reports), run_id)
        _errors(tally, "card", card.text, reports)
    _page(tally, shift, orders, so, run_id, card)


def of_command(tally: Tally, so: Facts, said: Said, code: int = 0) -> dict[str, Any]:
    """What `draindown run --json`, or a command like it, said of what it did; its document."""
    tally.hold("exit", "the command's exit code", said.code, code)
    document = said.document or {}
    if "reports" not in document:
        return dict(document)
    tally.hold("exit", "the document's exit code", document["exit"], said.code)
    failed = [step for step in document["reports"] if step["outcome"] == "failed"]
    tally.hold("report", "a step failed where the command did", bool(failed), code != 0)
    _starts(tally, so, document["run_id"], document["reports"])
    return dict(document)


def _starts(tally: Tally, so: Facts, run_id: str, reports: list[dict[str, Any]]) -> None:
    """Reports of drains against the ledger, start by start; no start of the run that committed may
    be missing.
    """
    drains = {one["start"]: one for one in reports if one["step"] == "drain"}
    tally.hold(
        "report",
        "starts that committed are told",
        {row["attempt"] for row in so.of_run(run_id)} <= {*drains},
    )
    for start, one in drains.items():
        made = sums(so.of_start(start))
        part = one.get("drain") or {}
        totals = one.get("totals") or part.get("totals") or {}
        if totals or one["outcome"] not in ("failed", "no report"):
            tally.hold("report", f"numbers of start {start}", _of(totals), made)
    for one in reports:
        totals = (one.get("run") or {}).get("totals")
        if totals and one is reports[-1]:
            tally.hold("report", "sums of the run", _of(totals), sums(so.of_run(run_id)))


def _xcoms(tally: Tally, shift: Shift, orders: Orders, so: Facts, run_id: str) -> None:
    for step in STEPS:
        state, _ = shift.task(run_id, step)
        told = shift.xcom(orders, run_id, step)
        tally.hold(
            "xcom", f"{step} hands on where it succeeded", told is not None, state == "success"
        )
        if told is None or step == "plan":
            continue
        ran = {
            name.removeprefix("run_"): value
            for name, value in told.items()
            if name.startswith("run_")
        }
        if "records" in ran:
            tally.hold("xcom", f"{step}: sums of the run", _of(ran), sums(so.of_run(run_id)))
        if step == "drain":
            tally.hold("xcom", "numbers of the start", _of(told), sums(so.of_start(told["start"])))
        if step == "check" and told["version"] is not None:
            _version(tally, "xcom", orders, so, told)


def _logs(
    tally: Tally, shift: Shift, so: Facts, run_id: str, reports: list[dict[str, Any]]
) -> None:
    """The card in the log of the newest try of the drain, and the error in that of each step that
    failed.
    """
    text = shift.log(run_id, "drain")
    card, drain = shown.card(text), _newest_drain(reports)
    if (
        drain is not None
        and drain["outcome"] != "no report"
        and shift.task(run_id, "drain")[0] != "skipped"
    ):
        tally.hold("log", "the drain's card is there", card is not None)
        if card is not None and f"@{drain['start']}" not in text:
            _card(tally, "log", card, so, drain, run_id)
    for step in STEPS:
        state, _ = shift.task(run_id, step)
        told = [one for one in reports if one["step"] == step]
        if state == "failed" and told and told[-1].get("error"):
            _errors(tally, "log", shift.log(run_id, step), told[-1:])
        if state == "success" and step != "plan":
            tally.hold(
                "report", f"{step} ended well", bool(told) and told[-1]["outcome"] != "failed"
            )


def _errors(tally: Tally, surface: str, text: str, reports: Iterable[Mapping[str, Any]]) -> None:
    """Each error's code, and each command it names, whole, so that it can be copied."""
    newest = {one["step"]: one for one in reports}
    for one in newest.values():
        error = one.get("error") or {}
        if error:
            tally.hold(surface, f"{one['step']}: the error's code", str(error["code"]) in text)
            for command in error.get("next") or []:
                tally.hold(surface, f"{one['step']}: `{command}` is there whole", command in text)


def _card(
    tally: Tally,
    surface: str,
    card: shown.Card,
    so: Facts,
    drain: Mapping[str, Any] | None,
    run_id: str,
) -> None:
    """The numbers of a card against the ledger: those of the start that it shows, and of all others
    of the run.
    """
    made = sums(so.of_start(str(drain["start"]))) if drain else sums([])
    ran = sums(so.of_run(run_id))
    if drain and drain["outcome"] != "no report" and made["batches"]:
        expected = {
            name: made[name]
            for name in (*FATES, "records", "inserted", "updated", "deleted", "tombstoned")
        }
        tally.hold(surface, "what became of the rows", card.rows, expected)
        tally.hold(surface, "it says that it adds up", card.adds_up)
        if card.moved is not None:
            tally.hold(
                surface,
                "its first line",
                card.moved,
                (made["inputs"], made["records"], made["applied"]),
            )
    elif not made["batches"]:
        tally.hold(surface, "rows of a start that made no batch", card.rows, {})
    told = made["batches"] if drain and drain["outcome"] != "no report" else 0
    others = tuple(
        ran[name] - (made[name] if told else 0)
        for name in ("batches", "inputs", "records", "applied")
    )
    if drain and drain["outcome"] not in ("failed", "no report"):
        tally.hold(surface, "what other starts made", card.others, others if others[0] else None)


def _page(
    tally: Tally, shift: Shift, orders: Orders, so: Facts, run_id: str, card: shown.Card | None
) -> None:
    page = shown.Page(shift.page(orders))
    listed = Counter(tuple(row[name] for name in (*_PAGE, "run")) for row in page.ledger)
    expected = Counter((*shown.numbers(row, _PAGE), row["run_id"]) for row in so.ledger)
    tally.hold("page", "batches that it lists and nobody made", listed - expected, Counter())
    tally.hold(
        "page", "how many batches it lists", listed.total(), min(len(so.ledger), _PAGE_BATCHES)
    )
    version = str(so.published.get("version", "nothing yet"))
    tally.hold(
        "page",
        "published version, open rows",
        page.summary[2:4],
        [version, f"{len(so.open_rows):,}"],
    )
    if card is not None and run_id in page.runs:
        headline, bad, own = page.runs[run_id]
        tally.hold("page", "the run's verdict is the card's", headline, card.headline)
        tally.hold("page", "red where it is red", bad, card.mark in ("FAILED", "OVER LIMIT"))
        same = shown.card(own)
        tally.hold("page", "rows of the run", same and same.rows, card.rows)


def _assets(tally: Tally, shift: Shift, orders: Orders, so: Facts, run_id: str) -> None:
    events = shift.asset_events(orders, run_id)
    state, _ = shift.task(run_id, "check")
    tally.hold("asset", "an event where the check published", bool(events) or state != "success")
    for event in events[-1:]:
        tally.hold("asset", "an event tells of rows", event["rows"] > 0)
        _version(tally, "asset", orders, so, event)


def _version(
    tally: Tally, surface: str, orders: Orders, so: Facts, told: Mapping[str, Any]
) -> None:
    """A version that was published, and how many rows were, of a run whose document still
    stands.
    """
    version = told["version"]
    if version in so.publications:
        earlier = [one for one in so.publications if one < version]
        if earlier or so.publications[0] == version == min(so.publications):
            counted = changed_rows(orders, version, max(earlier, default=None), so.ledger)
            tally.hold(surface, f"rows published as version {version}", told["rows"], counted)
    else:
        tally.hold(
            surface,
            "it was published",
            version in so.publications or version < min(so.publications, default=0),
        )


def _newest_drain(reports: list[dict[str, Any]]) -> dict[str, Any] | None:
    drains = [one for one in reports if one["step"] == "drain"]
    return drains[-1] if drains else None


def _of(totals: Mapping[str, Any]) -> dict[str, Any]:
    return {name: totals.get(name, 0) for name in ("batches", *SUMMED)}


def _difference(found: dict[str, Any], expected: dict[str, Any]) -> dict[str, Any]:
    keys = [key for key in found.keys() | expected.keys() if found.get(key) != expected.get(key)]
    return {key: (found.get(key), expected.get(key)) for key in sorted(keys)[:3]}


def _brief(what: object) -> str:
    text = str(what)
    return text if len(text) < 600 else f"{text[:600]} ..."
