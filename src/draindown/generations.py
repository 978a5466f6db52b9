"""Generations: the lives of a flow's checkpoints. A reset starts the next one, an undo goes back.

`generation.json` names the live one and keeps a card of each that a reset began; it is the only file that a reset
changes, and changes whole. A new generation reads the intake from its first cut, under transaction ids that the target
has never seen, so that Delta can't take its batches for batches that are done.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import datetime
from typing import Any

from draindown import checkpoint, damage, known, ledger_table, parked, tables, withdrawn
from draindown.checkpoint import Checkpoint
from draindown.errors import TerminalError
from draindown.files import read_json, write_json
from draindown.layout import FlowLayout
from draindown.ledger import from_commit
from draindown.transactions import app_id as app_id
from draindown.wording import count, printable

_LOOK_BACK = 1000  # commits after the newest batch
_SHOWN = 5
_INTAKE = "path, size, mtime_ns, sha256, cut"


_LEFT_OUT = "left-out"


@dataclass(frozen=True)
class Card:
    """How a generation began. `without`: files of the intake that it leaves out: gone, changed, or given up.

    The first has a card only once someone discarded a file that it had taken in and not read. `rebuilt`: it was read
    into a table of its own, which took the place of the one before.
    """

    generation: int
    previous: int | None
    at: str
    by: str
    without: tuple[str, ...] = ()
    rebuilt: bool = False


@dataclass(frozen=True)
class Taken:
    """A file as the intake recorded it."""

    path: str
    size: int
    mtime_ns: int
    sha256: str
    cut: int


def card(layout: FlowLayout, generation: int) -> Card | None:
    """The card of a generation; None for the first, which no reset began."""
    found = cards(layout).get(str(generation))
    return None if found is None else Card(**(found | {"without": tuple(found.get("without", ()))}))


def without(layout: FlowLayout, generation: int) -> frozenset[str]:
    """Files that a generation leaves out, as someone accepted when it began, or before it read them."""
    found = card(layout, generation)
    return frozenset(found.without if found else ())


def resume(layout: FlowLayout) -> int:
    """The live generation, once it is proven that its next batch may follow the last; heals the ledger.

    Call it under the lease, before anything is taken in: that would make a lost intake anew. Raises TerminalError
    `table-damaged`, `reset-unfinished`, `generation-damaged`, `checkpoint-damaged`, `checkpoint-missing`,
    `checkpoint-without-metadata`, `table-behind-checkpoint`, `intake-behind-checkpoint`, `intake-replaced`.
    """
    damage.refuse(layout)
    generation = checkpoint.generation(layout)
    Checkpoint(layout.checkpoint(generation)).verify()
    checkpoint.refuse_lost(
        layout, generation, tables.transaction_version(layout.table, app_id(layout, generation, "rows"))
    )
    refuse_behind(layout, generation)
    refuse_other_intake(layout, generation)
    ledger_table.heal(layout)
    return generation


def refuse_behind(layout: FlowLayout, generation: int) -> None:
    """Refuse to go on where the target lost batches that the checkpoint is done with: their rows would be missing.

    Raises TerminalError `table-behind-checkpoint`.
    """
    found = behind(layout, generation)
    if found:
        raise TerminalError(
            "table-behind-checkpoint",
            tried=f"resume generation {generation} of flow {layout.flow} of pipeline {layout.pipeline}",
            found=found,
            next=[
                f"draindown reset {layout.pipeline} --flow {layout.flow}",
                f"or put {layout.table} back as it was, as a whole",
            ],
        )


def refuse_other_intake(layout: FlowLayout, generation: int) -> None:
    """Refuse to go on over another intake than the checkpoint reads: its cuts would count as done, unread.

    Raises TerminalError `intake-behind-checkpoint`, `intake-replaced`.
    """
    read = Checkpoint(layout.checkpoint(generation))
    planned, reads = read.last_offset, read.intake_id
    if planned is None:
        return
    last = known.last_cut(layout)  # after the checkpoint: a drain at work writes the intake first
    replaced = reads is not None and tables.exists(layout.intake) and tables.table_id(layout.intake) != reads
    if not replaced and planned.next_version - 1 <= last:
        return
    found = f"{layout.intake} is another table than the one the checkpoint reads: it was made anew"
    if not replaced:
        ends = f"ends at cut {last}" if tables.exists(layout.intake) else "is gone"
        found = f"the checkpoint has planned the cuts below {planned.next_version}, the intake {layout.intake} {ends}"
    raise TerminalError(
        "intake-replaced" if replaced else "intake-behind-checkpoint",
        tried=f"resume generation {generation} of flow {layout.flow} of pipeline {layout.pipeline}",
        found=found,
        next=[
            f"draindown reset {layout.pipeline} --flow {layout.flow}",
            f"or put {layout.intake} back as it was, as a whole",
        ],
    )


def behind(layout: FlowLayout, generation: int) -> str | None:
    """In words, which batches that the checkpoint is done with the target lacks; None if it has them all."""
    done = Checkpoint(layout.checkpoint(generation)).last_commit
    if done is None:
        return None
    newest = tables.transaction_version(layout.table, app_id(layout, generation, "rows"))
    if newest is None:
        what = "knows no batch of it" if tables.exists(layout.table) else "is gone"
        return f"the checkpoint is done with batches up to {done}, the table {layout.table} {what}"
    if newest < done:
        return f"the checkpoint is done with batches up to {done}, the table {layout.table} ends at batch {newest}"
    return _taken_back(layout, generation)


def _taken_back(layout: FlowLayout, generation: int) -> str | None:
    """A RESTORE keeps the transaction ids of what it takes back, so it must be looked for."""
    last = _last_version(layout, generation)
    ahead = tables.version(layout.table) - last
    restored = []
    for commit in tables.history(layout.table, min(ahead, _LOOK_BACK)) if ahead > 0 else ():
        row = from_commit(commit)
        if row and (row.pipeline, row.flow) == (layout.pipeline, layout.flow):
            last = commit["version"]  # which the ledger need not know yet
            break
        restored += [(restored_to(commit), commit["version"])] if commit.get("operation") == "RESTORE" else []
    to, by = min(restored, default=(last, 0))
    if to >= last:
        return None
    return f"version {by} of the table {layout.table} restored version {to}, before the newest batch in version {last}"


def _last_version(layout: FlowLayout, generation: int) -> int:
    """The table version of the newest batch of a generation, as the ledger says it; -1 where it says nothing."""
    if not tables.exists(layout.ledger):
        return -1
    sql = f"select max(table_version) as last from t where generation = {int(generation)}"
    last = tables.query(layout.ledger, sql).to_pylist()[0]["last"]
    return -1 if last is None else int(last)


def restored_to(commit: Mapping[str, Any]) -> int:
    """The version that a RESTORE restored; 0 where it was named by time."""
    version = (commit.get("operationParameters") or {}).get("version")
    return int(version) if version is not None else 0


def discard_files(layout: FlowLayout, paths: Iterable[str], *, by: str, note: str, at: datetime) -> None:
    """Keep files out for good: parked ones, and ones in a cut that no batch of the live generation has read.

    Call it under the lease. Idempotent. Raises TerminalError `not-parked`, before anything is changed.
    """
    wanted, number = list(dict.fromkeys(paths)), checkpoint.generation(layout)
    unread = not_read(layout, number, wanted)
    parked.discard(layout, [path for path in wanted if path not in unread], by=by, note=note, now=at)
    if not unread:
        return
    # one that was changed is parked with the size it has now: that must stay the newest that is known of it
    shut = [event.path for event in parked.open_files(layout) if event.path in unread]
    parked.discard(layout, shut, by=by, note=note, now=at)
    done = {path for path, event in parked.latest(layout).items() if event.state == "discarded"}
    detail = f"generation {number} leaves it out, unread"
    fresh = [file for path, file in unread.items() if path not in done]
    parked.record(layout, (_left_out(file, detail, by, note) for file in fresh), at)
    own = card(layout, number) or Card(number, None, at.isoformat(timespec="seconds"), by)
    own = replace(own, without=tuple(sorted({*own.without, *unread})))
    write_json(layout.generation, {"generation": number, "cards": cards(layout) | {str(number): asdict(own)}})


def _left_out(file: known.KnownFile, detail: str, by: str, note: str) -> parked.Event:
    return parked.Event(
        file.path, file.size, file.mtime_ns, "discarded", reason=_LEFT_OUT, detail=detail, by=by, note=note
    )


def given_up(layout: FlowLayout) -> frozenset[str]:
    """Files that a person kept out before a batch had read them: no later generation reads them either."""
    left_out = {path for one in cards(layout).values() for path in one.get("without", ())}
    return frozenset(
        path
        for path, event in parked.latest(layout).items()
        if event.state == "discarded" and (event.reason == _LEFT_OUT or path in left_out)
    )


def not_read(layout: FlowLayout, generation: int, paths: Iterable[str]) -> dict[str, known.KnownFile]:
    """Those of `paths` that lie in cuts which the generation is not done with, by path."""
    newest = tables.transaction_version(layout.table, app_id(layout, generation, "rows"))
    # batch N reads cut N + 1; what the table holds is done, also where a crash came before the checkpoint knew
    first = max(Checkpoint(layout.checkpoint(generation)).consumed_before, 0 if newest is None else newest + 2)
    return {path: file for path, file in known.find(layout, paths).items() if file.cut >= first}


def forget_unfinished(layout: FlowLayout, generation: int) -> None:
    """Drop what a batch of a generation that ends refused and that was cut short: no later run repeats it."""
    if not tables.exists(layout.quarantine):
        return
    mine = f"generation = {int(generation)}"
    sql = f"select origin, array_agg(distinct run_id) as runs from t where {mine} group by origin"
    for row in tables.query(layout.quarantine, sql).to_pylist():
        origin = row["origin"]
        if reads_files(origin):
            done = last_batch(layout, generation, origin, row["runs"])
            if done is None and damage.put_aside_last(layout, layout.ledger) > generation:
                continue  # nothing is left that could tell
            cut_short = f"{mine} and origin = {tables.literal(origin)} and batch > {-1 if done is None else done}"
            tables.delete_any(layout.quarantine, cut_short)


def reads_files(origin: str) -> bool:
    """Whether rows of this origin were refused by a batch that read files: those are decided about anew."""
    return origin == "source" or origin.startswith("replay:")


def last_batch(layout: FlowLayout, generation: int, origin: str, runs: Iterable[str] = ()) -> int | None:
    """The newest batch that is done, by the table or the ledger: a table put back from a copy forgot some.

    Arguments as for `ledger_table.last_batch`.
    """
    told = tables.transaction_version(layout.table, app_id(layout, generation, "rows", origin))
    return max(
        (n for n in (told, ledger_table.last_batch(layout, generation, origin, runs)) if n is not None), default=None
    )


def gone(missing: Sequence[str], forgotten: int) -> str:
    """In words, what of the input can't be read again."""
    lost = [f"{count(len(missing), 'file')} gone or changed at the source: {shown(missing)}"] * bool(missing)
    lost += [f"no longer in the intake: {count(forgotten, 'file')} that a run has read"] * bool(forgotten)
    return "; ".join(lost)


def shown(paths: Iterable[str]) -> str:
    """The first few of many paths, safe to print, and how many more."""
    every = list(paths)
    more = f" and {len(every) - _SHOWN:,} more" if len(every) > _SHOWN else ""
    return ", ".join(printable(path) for path in every[:_SHOWN]) + more


def cards(layout: FlowLayout) -> dict[str, dict[str, Any]]:
    """The cards of all generations that have one, by number; none where the file that holds them can't be read."""
    try:
        content = read_json(layout.generation)
    except ValueError:
        return {}
    found = content.get("cards") if isinstance(content, dict) else None
    return dict(found) if isinstance(found, dict) else {}


def next_number(layout: FlowLayout, live: int | None) -> int:
    """A generation that nothing has ever been written under."""
    begun = [live or 0, checkpoint.newest_directory(layout), newest_in_ledger(layout), *map(int, cards(layout))]
    number = max(begun) + 1
    while knows(layout, number):
        number += 1
    return number


def newest_in_ledger(layout: FlowLayout) -> int:
    """The newest generation that the ledger has a batch of; 0 where it has none, or can't be read."""
    if not readable(layout.ledger):
        return 0
    return int(tables.query(layout.ledger, "select max(generation) as n from t").to_pylist()[0]["n"] or 0)


def knows(layout: FlowLayout, generation: int) -> bool:
    """Whether the target holds a batch of the generation: from the source, its quarantine, or the gate."""
    if not readable(layout.table):
        return False
    apps = (app_id(layout, generation, "rows", origin) for origin in ("source", "quarantine", withdrawn.ORIGIN))
    return any(tables.transaction_version(layout.table, app) is not None for app in apps)


def taken_in(layout: FlowLayout) -> list[Taken]:
    """Every file that the intake has, in the order of its cuts."""
    if not readable(layout.intake) or not known.last_cut(layout):
        return []
    rows = tables.query(layout.intake, f"select {_INTAKE} from t order by cut, path").to_pylist()
    return [Taken(**row) for row in rows]


def readable(path: str) -> bool:
    """Whether a table is there, whole."""
    return tables.damage(path) is None and tables.exists(path)
