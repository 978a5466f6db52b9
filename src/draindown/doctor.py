"""Whether all that a flow keeps agrees: checkpoint, intake, target, ledger, quarantine, lease, publication, set-up.

Looks at the ends of things, without Spark and in seconds; `audit` recounts every row. Writes nothing.
"""

from __future__ import annotations

import hashlib
import os
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Literal

from draindown import (
    checkpoint,
    damage,
    gate,
    generations,
    jvm,
    known,
    lease,
    ledger_table,
    parked,
    pending,
    quarantine,
    rebuilds,
    replays,
    sparkconf,
    tables,
    withdrawn,
)
from draindown.checkpoint import Checkpoint
from draindown.errors import TerminalError
from draindown.exits import Exit
from draindown.generations import app_id
from draindown.layout import FlowLayout
from draindown.ledger import from_commit, is_fence
from draindown.wording import columns, count, printable

Level = Literal["wrong", "note"]
"""`wrong`: someone must act; `note`: worth knowing, and the next run is right all the same."""

_HEALED = 100  # commits that a start of a drain reads to find what the ledger lacks
_WRITES = ("WRITE", "MERGE", "UPDATE", "DELETE", "TRUNCATE", "RESTORE", "STREAMING UPDATE", "CLONE", "REPLACE")


@dataclass(frozen=True)
class Symptom:
    """One thing that doesn't agree, or is worth knowing. `code` is stable; `next` is the command."""

    code: str
    level: Level
    part: str
    found: str
    next: str


@dataclass(frozen=True)
class Health:
    """What was looked at, in words per part; what was found; what could not be looked at."""

    name: str
    looked: dict[str, str] = field(default_factory=dict)
    symptoms: list[Symptom] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)

    @property
    def exit(self) -> int:
        """0 healthy, 1 not, 2 could not look."""
        if any(symptom.level == "wrong" for symptom in self.symptoms):
            return Exit.FINDINGS
        return Exit.USAGE if self.unlooked else Exit.DONE

    def as_dict(self) -> dict[str, Any]:
        """The page for machines."""
        return {"healthy": self.exit == Exit.DONE, **asdict(self)}

    def __str__(self) -> str:
        wrong = [symptom for symptom in self.symptoms if symptom.level == "wrong"]
        notes = [symptom for symptom in self.symptoms if symptom.level == "note"]
        verdict = f"{count(len(wrong), 'thing')} wrong" if wrong else "could not look" if self.unlooked else "healthy"
        lines = [f"{self.name}  {verdict}"]
        lines += [f"  {line}" for line in columns([(part, printable(text)) for part, text in self.looked.items()])]
        lines += [f"  not looked at  {printable(reason)}" for reason in self.unlooked]
        for mark, symptoms in (("WRONG", wrong), ("note", notes)):
            for one in symptoms:
                lines += [
                    f"  {mark}  {one.code}: {printable(one.found)}",
                    f"  {' ' * len(mark)}  next: {printable(one.next)}",
                ]
        return "\n".join(lines)


@dataclass
class _Desk:
    """One examination on its way."""

    layout: FlowLayout
    looked: dict[str, str] = field(default_factory=dict)
    symptoms: list[Symptom] = field(default_factory=list)
    unlooked: list[str] = field(default_factory=list)
    generation: int = 1
    at_work: bool = False

    def say(self, part: str, text: str) -> None:
        """What a part is like."""
        self.looked[part] = text

    def wrong(self, code: str, part: str, found: str, next: str) -> None:
        """Something that someone must act on."""
        self.symptoms.append(Symptom(code, "wrong", part, found, next))

    def note(self, code: str, part: str, found: str, next: str) -> None:
        """Something worth knowing."""
        self.symptoms.append(Symptom(code, "note", part, found, next))

    def command(self, verb: str, rest: str = "") -> str:
        """A draindown command about this flow."""
        return f"draindown {verb} {self.layout.pipeline} --flow {self.layout.flow}{rest}"


def examine(layout: FlowLayout) -> Health:
    """Look at everything one flow keeps."""
    desk = _Desk(layout)
    for part, look in _LOOKS.items():
        _look(desk, part, look)
    return Health(f"{layout.pipeline}/{layout.flow}", desk.looked, desk.symptoms, desk.unlooked)


def examine_setup() -> Health:
    """Look at what set-up put on this machine: Delta's jars, and the JVM's class archive."""
    desk = _Desk(FlowLayout("", "", "", ""))
    _look(desk, "jars", _jars)
    _look(desk, "class archive", _class_archive)
    return Health("set-up", desk.looked, desk.symptoms, desk.unlooked)


def _look(desk: _Desk, part: str, look: Callable[[_Desk], None]) -> None:
    try:
        look(desk)
    except TerminalError as error:
        desk.say(part, "does not agree")
        desk.wrong(error.code, part, error.found, error.next[0] if error.next else desk.command("audit"))
    except PermissionError as error:
        desk.unlooked.append(f"{part}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever a torn log or file raises, the other parts are looked at
        desk.say(part, "can't be read")
        found = f"{type(error).__name__}: {str(error).strip()[:300]}"
        desk.wrong(f"{part.replace(' ', '-')}-unreadable", part, found, _unreadable(desk, part))


def _unreadable(desk: _Desk, part: str) -> str:
    restore = {"target": desk.layout.table, "ledger": desk.layout.ledger, "intake": desk.layout.intake}
    if part in ("checkpoint", "generation"):
        return desk.command("reset")
    return f"restore {restore.get(part, desk.layout.home)} from a copy, as a whole"


def _lease(desk: _Desk) -> None:
    holder = lease.holder(desk.layout)
    desk.at_work = holder is not None
    desk.say("lease", f"held by {holder}" if holder else "free")
    if holder:
        found = "a driver is at work: checkpoint, target, ledger and quarantine move and were not compared"
        desk.note("drain-at-work", "lease", found, desk.command("doctor", "   # once it has ended"))
    elif left := lease.left_open(desk.layout):
        found = f"its last holder did not leave in order: {left}; the next driver waits until that is sure, and follows"
        desk.note("stale-lease", "lease", found, f"draindown run {desk.layout.pipeline}")
    elif Path(f"{desk.layout.lease}/owner.json").exists():
        found = "the last driver died without taking its card away; the lease itself is free"
        desk.note("stale-owner-card", "lease", found, f"draindown run {desk.layout.pipeline}")
    for path in lease.unfenced(desk.layout):
        found = f"{path} has features that no fence can be written with: transaction ids alone held back what a driver "
        found += "that died had in flight"
        desk.note("table-without-fence", "lease", found, desk.command("audit"))


def _generation(desk: _Desk) -> None:
    desk.generation = checkpoint.generation(desk.layout)
    card = generations.card(desk.layout, desk.generation)
    begun = f", begun {card.at} by {card.by}" if card and desk.generation > 1 else ""
    left_out = f", without {count(len(card.without), 'file')}" if card and card.without else ""
    desk.say("generation", f"{desk.generation}{begun}{left_out}")


def _logs(desk: _Desk) -> None:
    told = checkpoint.generation_if_told(desk.layout)
    if gone := damage.missed(desk.layout, told) if told is not None else []:
        text = f"a reset that did not end put aside {', '.join(gone)}; generation {desk.generation} can't do without"
        desk.wrong("reset-unfinished", "logs", text, desk.command("reset"))
    for path, words in damage.damaged(desk.layout).items():
        desk.wrong("table-damaged", "logs", f"{path}: {words}", desk.command("reset"))


def _checkpoint(desk: _Desk) -> None:
    found = Checkpoint(desk.layout.checkpoint(desk.generation))
    if desk.at_work:
        return
    found.verify()
    desk.say("checkpoint", "not begun" if found.last_commit is None else f"batches up to {found.last_commit} are done")
    newest = tables.transaction_version(desk.layout.table, app_id(desk.layout, desk.generation, "rows"))
    checkpoint.refuse_lost(desk.layout, desk.generation, newest)
    if found.in_flight is not None:
        desk.note(
            "batch-in-flight",
            "checkpoint",
            f"batch {found.in_flight} was begun and is not known to be done; the next run repeats it, which is safe",
            f"draindown run {desk.layout.pipeline}",
        )
    done = -1 if found.last_commit is None else found.last_commit
    if newest is not None and newest > done + 1:
        desk.note(
            "checkpoint-older",
            "checkpoint",
            f"it is done up to batch {done}, the table up to {newest}: an older copy; what it replays changes nothing",
            f"draindown run {desk.layout.pipeline}",
        )


def _intake(desk: _Desk) -> None:
    last = known.last_cut(desk.layout)
    waiting = parked.open_files(desk.layout)
    desk.say("intake", f"{count(last, 'cut')}, {count(len(waiting), 'parked file')}")
    if waiting:
        list_ = f"draindown quarantine list {desk.layout.pipeline} --files"
        desk.note("parked-files", "intake", f"{count(len(waiting), 'file')} can't be read or changed", list_)
    if not desk.at_work:
        generations.refuse_other_intake(desk.layout, desk.generation)


def _target(desk: _Desk) -> None:
    path = desk.layout.table
    if not tables.exists(path):
        desk.say("target", "not there yet")
        if not desk.at_work:
            generations.refuse_behind(desk.layout, desk.generation)
        return
    version = tables.version(path)
    desk.say("target", f"version {version}")
    missing = tables.files_missing(path, version)
    if missing:
        text = f"{count(len(missing), 'data file')} of version {version} gone, such as {missing[0]}"
        desk.wrong("table-files-gone", "target", text, f"restore {path} from a copy, as a whole")
    if desk.at_work:
        return
    generations.refuse_behind(desk.layout, desk.generation)
    foreign = _foreign(desk.layout, version)
    if foreign:
        shown = ", ".join(f"version {commit['version']} ({commit['operation']})" for commit in foreign[:3])
        text = (
            f"{count(len(foreign), 'commit')} since the newest batch wrote rows and are no batch of this flow: {shown}"
        )
        desk.wrong("foreign-commits", "target", text, f"draindown audit {desk.layout.pipeline}")


def _foreign(layout: FlowLayout, version: int) -> list[dict[str, Any]]:
    last = _ledger_numbers(layout, None)["last_version"]
    ahead = version if last is None or last > version else version - last
    commits = ledger_table.commits(layout, min(ahead, _HEALED)) if ahead else []
    ours = (layout.pipeline, layout.flow)
    rows = [(commit, from_commit(commit)) for commit in commits if not is_fence(commit)]
    return [
        commit
        for commit, row in rows
        if (row is None or (row.pipeline, row.flow) != ours) and str(commit.get("operation")).startswith(_WRITES)
    ]


def _ledger(desk: _Desk) -> None:
    numbers = _ledger_numbers(desk.layout, desk.generation)
    desk.say("ledger", f"{count(numbers['rows'], 'batch', 'batches')} of generation {desk.generation}")
    newest = tables.transaction_version(desk.layout.table, app_id(desk.layout, desk.generation, "rows"))
    if desk.at_work:
        return
    held, audit = 0 if newest is None else newest + 1, f"draindown audit {desk.layout.pipeline}"
    if numbers["rows"] > numbers["batches"]:
        desk.wrong("ledger-double-batch", "ledger", f"{numbers['rows'] - numbers['batches']} rows too many", audit)
    if numbers["newest"] is not None and numbers["newest"] >= held:
        text = f"it ends at batch {numbers['newest']}, the table holds {count(held, 'batch', 'batches')}"
        desk.wrong("ledger-ahead-of-table", "ledger", text, desk.command("reset"))
    elif numbers["batches"] < held:
        _lacking(desk, held - numbers["batches"], audit)


def _lacking(desk: _Desk, lacking: int, audit: str) -> None:
    what = f"it lacks {count(lacking, 'batch', 'batches')} that the table holds"
    commits = (from_commit(commit) for commit in ledger_table.commits(desk.layout, _HEALED))
    mine = {row.batch for row in commits if row and row.origin == "source" and row.generation == desk.generation}
    sql = f"select batch from t where generation = {desk.generation} and origin = 'source'"
    have = (
        {r["batch"] for r in tables.query(desk.layout.ledger, sql).to_pylist()} if _there(desk.layout.ledger) else set()
    )
    if len(mine - have) >= lacking:
        text = f"{what}; the next run adds it"
        desk.note("ledger-lacks-batch", "ledger", text, f"draindown run {desk.layout.pipeline}")
    else:
        desk.wrong("ledger-row-missing", "ledger", what, audit)


def _there(path: str) -> bool:
    return tables.exists(path)


def _ledger_numbers(layout: FlowLayout, generation: int | None) -> dict[str, Any]:
    """Of one generation's batches from the source, or of all batches of all generations (None)."""
    nothing = {"rows": 0, "batches": 0, "newest": None, "last_version": None, "deletes": 0, "refused": 0}
    if not tables.exists(layout.ledger):
        return nothing
    where = "" if generation is None else f" where generation = {generation} and origin = 'source'"
    sql = (
        "select count(*) as rows, count(distinct batch) as batches, max(batch) as newest, "
        "max(table_version) as last_version, "
        # what the gate withdrew is deleted without a tombstone, and kept in the quarantine
        f"sum(case when origin = '{withdrawn.ORIGIN}' then 0 else deleted + remembered end) as deletes, "
        f"sum(case when origin = '{withdrawn.ORIGIN}' then records else quarantined end) as refused from t"
    )
    found: dict[str, Any] = tables.query(layout.ledger, sql + where).to_pylist()[0]
    return found


def _tombstones(desk: _Desk) -> None:
    there, deletes = tables.exists(desk.layout.tombstones), _ledger_numbers(desk.layout, None)["deletes"] or 0
    desk.say("tombstones", f"version {tables.version(desk.layout.tombstones)}" if there else "none")
    if deletes and not there:
        text = f"the ledger counts {count(deletes, 'delete')}, their memory is gone: older rows could come back"
        desk.wrong("tombstones-missing", "tombstones", text, desk.command("reset"))


def _quarantine(desk: _Desk) -> None:
    sums = quarantine.counts(desk.layout)
    desk.say("quarantine", f"{count(sums.open)} open of {count(sums.refused)} refused")
    refused = _ledger_numbers(desk.layout, None)["refused"] or 0
    if refused and not tables.exists(desk.layout.quarantine):
        text = f"the ledger counts {count(refused, 'refused or withdrawn row')}, the quarantine is gone"
        desk.wrong(
            "quarantine-missing", "quarantine", text, f"restore {desk.layout.quarantine} from a copy, as a whole"
        )
    if not desk.at_work and withdrawn.unfinished(desk.layout):
        text = "a withdrawal was cut short: its rows are still in the table; the next run clears the quarantine of them"
        desk.note("withdrawal-unfinished", "quarantine", text, f"draindown run {desk.layout.pipeline}")
    if sums.open:
        list_ = f"draindown quarantine list {desk.layout.pipeline}"
        desk.note("quarantine-open", "quarantine", f"{count(sums.open, 'row')} wait for a decision", list_)


def _replays(desk: _Desk) -> None:
    waiting = pending.pending(desk.layout)
    begun = replays.unfinished(desk.layout)
    desk.say("replays", f"{count(len(begun))} unfinished")
    for one in begun:
        text = f"replay {one.id} did {one.done} of {count(len(one.parts), 'batch', 'batches')}"
        desk.note("replay-unfinished", "replays", text, desk.command("replay", f" {one.asked} --yes"))
    if waiting is None or desk.at_work:
        return
    if waiting.is_applied(desk.layout) and set(waiting.ids) - quarantine.released(desk.layout).keys():
        text = f"{count(len(waiting.ids), 'row')} were applied and are not marked as released yet; the next run does it"
        desk.note("replay-unsettled", "replays", text, f"draindown run {desk.layout.pipeline}")


def _rebuild(desk: _Desk) -> None:
    begun = rebuilds.unfinished(desk.layout)
    desk.say("rebuild", f"of generation {begun.generation}, begun {begun.at} by {begun.by}" if begun else "none")
    if begun is None or desk.at_work:
        return
    if rebuilds.is_swapped(desk.layout, begun):
        text = f"generation {begun.generation} is in the table's place; the next run does what follows"
        desk.note("rebuild-unsettled", "rebuild", text, f"draindown run {desk.layout.pipeline}")
    elif begun.previous != desk.generation:
        text = f"it was begun beside generation {begun.previous}; it can't take the place of {desk.generation}"
        desk.wrong("rebuild-overtaken", "rebuild", text, desk.command("rebuild", " --abort --yes"))
    else:
        text = f"generation {begun.generation} has not read everything yet; the live table is as it was"
        desk.note("rebuild-unfinished", "rebuild", text, desk.command("rebuild", " --yes   # or --abort --yes"))


def _published(desk: _Desk) -> None:
    pointer, state = gate.published(desk.layout), gate.unpublished(desk.layout)
    run = f"draindown run {desk.layout.pipeline}"
    desk.say("published", f"version {pointer.version}" if pointer else "nothing yet")
    if pointer is None or desk.at_work:
        return
    if state is None:
        desk.wrong(
            "published-without-table", "published", "a version is published, the table is gone", desk.command("reset")
        )
    elif pointer.table_id != state.table_id:
        text = "it names a version of another table: the table was made anew"
        desk.wrong("published-other-table", "published", text, run)
    elif pointer.version > state.version:
        text = f"version {pointer.version} is published, the table ends at version {state.version}"
        desk.wrong("published-ahead", "published", text, desk.command("reset"))
    elif state.published is None:
        text = f"version {pointer.version} was published, the table has another commit of that number, not judged: "
        desk.wrong("published-other-commit", "published", text + "it was put back from a copy", run)
    else:
        if state.pending:
            text = f"version {pointer.version} is published, version {state.version} is not judged or was refused"
            desk.note("unpublished", "published", text, f"draindown gate show {desk.layout.pipeline}")
        _published_files(desk, pointer.version, run)


def _published_files(desk: _Desk, version: int, run: str) -> None:
    try:
        missing = tables.files_missing(desk.layout.table, version)
        text = f"{count(len(missing), 'data file')} of published version {version} gone: it was vacuumed away"
    except Exception as error:  # noqa: BLE001 - deltalake raises what it likes for a version whose log is gone
        missing, text = ["the log"], f"published version {version} can't be read: {str(error)[:200]}"
    if missing:
        desk.wrong(
            "published-files-gone", "published", text, f"{run}   # a check that passes publishes the newest version"
        )


def _jars(desk: _Desk) -> None:
    directory = sparkconf.jar_dir()
    sparkconf.class_path()
    lock = directory / "jars.lock"
    pinned = _locked(lock.read_text(encoding="utf-8").splitlines()) if lock.is_file() else {}
    desk.say("jars", f"{count(len(pinned))} verified in {directory}" if pinned else f"in {directory}, no jars.lock")
    if not pinned:
        desk.wrong("jars-unverified", "jars", f"no {lock} to verify them by", "make setup")
    for name, digest in pinned.items():
        path = directory / name
        if not path.is_file():
            desk.wrong("jars-missing", "jars", f"no {path}", "make setup")
        elif hashlib.sha256(path.read_bytes()).hexdigest() != digest:
            desk.wrong("jar-hash-mismatch", "jars", f"{path} has other bytes than jars.lock names", "make setup")


def _locked(lines: Iterable[str]) -> dict[str, str]:
    """File name and SHA-256 of every jar a lock pins."""
    found = (re.fullmatch(r"[\w.\-]+:([\w.\-]+):([\w.\-]+) ([0-9a-f]{64}) [0-9]+", line.strip()) for line in lines)
    return {f"{match[1]}-{match[2]}.jar": match[3] for match in found if match}


def _class_archive(desk: _Desk) -> None:
    archive, again = sparkconf.class_archive(), f"{sys.executable} -m draindown.spark.archive   # a minute"
    if not archive.is_file():
        desk.say("class archive", "none")
        desk.note("class-archive-missing", "class archive", f"no {archive}; every JVM starts slower", again)
        return
    jvm.require()
    desk.say("class archive", str(archive))
    found = jvm.tried(archive)
    if found == "untried":
        desk.unlooked.append("class archive: spark-submit does not start a JVM, or not within a minute")
    if found == "ignored":
        text = f"no class is taken from {archive}: made by another Java or for other jars; JVMs start slower"
        if "SPARK_CONF_DIR" in os.environ:  # with files in it, no archive fits
            text, again = f"SPARK_CONF_DIR keeps JVMs from {archive}: they start slower", "unset SPARK_CONF_DIR"
        desk.note("class-archive-foreign", "class archive", text, again)
    if found == "fatal":
        desk.wrong("class-archive-torn", "class archive", f"no JVM starts with {archive}", again)


_LOOKS: dict[str, Callable[[_Desk], None]] = {
    "lease": _lease,
    "generation": _generation,
    "logs": _logs,
    "checkpoint": _checkpoint,
    "intake": _intake,
    "target": _target,
    "ledger": _ledger,
    "tombstones": _tombstones,
    "quarantine": _quarantine,
    "replays": _replays,
    "rebuild": _rebuild,
    "published": _published,
}
