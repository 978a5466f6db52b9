"""Examination of a flow's tables: target, ledger, tombstones, quarantine, published version."""

from __future__ import annotations

from draindown.base.formatting import count, printable, shortened
from draindown.config.derived import DerivedFlow
from draindown.config.landing import FlowSpec
from draindown.doctor.model import Desk
from draindown.flow import (
    altered,
    foreign,
    generations,
    integrity,
    proven,
    quarantined_share,
    resume,
    table_features,
    withdrawals,
)
from draindown.flow.health import in_words
from draindown.gate import waivers
from draindown.gate.published import QUARANTINED_SHARE, Unpublished
from draindown.lake.lost_files import lost_files, vacuumed
from draindown.ledger import table as ledger_table
from draindown.ledger import target_log
from draindown.ledger.foreign import ForeignCommit
from draindown.ledger.rows import from_commit
from draindown.runs import report, store
from draindown.runs.request import Request

_HEALED = 100  # commits that the start of a drain searches for batches missing from the ledger


def look_at_logs(desk: Desk) -> None:
    """Examine the newest commits of every table for damage."""
    told = generations.generation_if_told(desk.layout)
    if gone := integrity.missed(desk.layout, told) if told is not None else []:
        text = f"a reset that did not end put aside {', '.join(gone)}; generation {desk.generation} can't do without"
        desk.wrong("reset-unfinished", "logs", text, desk.command("reset"))
    unfit = {
        one.path: one
        for table in integrity.tables(desk.layout)
        if (one := table_features.unfit(desk.layout, table))
    }
    for one in unfit.values():
        desk.wrong("table-feature", "logs", one.found, one.next[0])
    for path, words in integrity.damaged(desk.layout, files=True).items():
        if path in unfit or (path == desk.layout.tables.target.path and words.endswith("is gone")):
            continue  # a data file: said with the target
        desk.wrong("table-damaged", "logs", f"{path}: {words}", desk.reset_or_restore(path))


def look_at_target(desk: Desk) -> None:
    """Examine the target: its data files, and batches of the checkpoint that it lacks."""
    path, table = desk.layout.tables.target.path, desk.layout.tables.target
    if not table.exists:
        desk.say("target", "not there yet")
        if not desk.at_work:
            resume.refuse_behind(desk.layout, desk.checkpoint, desk.generation)
        return
    version = table.version
    desk.say("target", f"version {version}")
    missing = lost_files(table)
    if missing:
        text = (
            f"{count(len(missing), 'data file')} of version {version} removed, such as {missing[0]}"
        )
        desk.wrong("table-files-gone", "target", text, desk.reset_or_restore(path))
    if desk.at_work:
        return
    resume.refuse_behind(desk.layout, desk.checkpoint, desk.generation)


def _look_at_foreign(desk: Desk, request: Request) -> None:
    """Report commits by other writers that changed rows and that nobody has decided about, however
    old.
    """
    if desk.at_work or not desk.layout.tables.target.exists:
        return
    flow = request.declared
    commits = foreign.undecided(desk.layout, flow)
    if not commits:
        return
    are = "is" if len(commits) == 1 else "are"
    many = f"{count(len(commits), 'commit')} changed rows and {are} no batch of this flow"
    text = f"{many}: {'; '.join(map(str, reversed(commits[-3:])))}{'; ...' if len(commits) > 3 else ''}"
    desk.wrong("foreign-commits", "target", text, _deciding(desk, flow, commits[-1]))


def _deciding(desk: Desk, flow: FlowSpec | DerivedFlow, newest: ForeignCommit) -> str:
    if not isinstance(flow, DerivedFlow):
        return foreign.deciding(desk.layout, flow, newest)
    proof = proven.newest(desk.layout)
    failed = proof is not None and not proof.holds and proof.is_of(desk.layout.tables.target)
    return desk.compare if failed else desk.command("audit")


def look_at_metadata(desk: Desk, flow: FlowSpec | DerivedFlow) -> None:
    """Examine what other engines altered in the tables: columns, constraints, properties."""
    if desk.at_work:
        return
    target = altered.of_target(desk.layout, flow)
    for one in (
        *([target] if target is not None and target.harmful else []),
        *altered.of_others(desk.layout),
    ):
        error = altered.error(desk.layout, [one])
        desk.wrong(error.code, "metadata", one.text, error.next[0])
    for finding in altered.findings(desk.layout, flow):
        run = desk.command("run", "   # continues with the table as it is")
        desk.note("metadata-changed", "metadata", finding.detail, run)


def look_at_ledger(desk: Desk) -> None:
    """Compare the ledger with the commits of the target."""
    numbers = ledger_table.sums(desk.layout, desk.generation)
    desk.say("ledger", f"{_batches(desk, numbers.rows)} of generation {desk.generation}")
    newest = desk.layout.tables.target.last(desk.layout.app_id(desk.generation, "rows"))
    if desk.at_work:
        return
    held, audit = 0 if newest is None else newest + 1, desk.command("audit")
    if numbers.rows > numbers.batches:
        text = f"{count(numbers.rows - numbers.batches, 'row')} too many"
        desk.wrong("ledger-double-batch", "ledger", text, audit)
    if numbers.newest is not None and numbers.newest >= held:
        text = (
            f"it ends at batch {numbers.newest}, the table holds {count(held, 'batch', 'batches')}"
        )
        desk.wrong("ledger-ahead-of-table", "ledger", text, desk.command("reset"))
    elif numbers.batches < held:
        _lacking(desk, held - numbers.batches, audit)


def _batches(desk: Desk, source: int) -> str:
    """Describe how many batches the ledger has of the live generation; `source` of them are source
    batches.
    """
    rows = ledger_table.count_of(desk.layout, desk.generation)
    apart = (
        f" ({count(source)} of the source, {count(rows - source)} replayed, released or withdrawn)"
    )
    return count(rows, "batch", "batches") + (apart if rows != source else "")


def _lacking(desk: Desk, lacking: int, audit: str) -> None:
    what = f"it lacks {count(lacking, 'batch', 'batches')} that the table holds"
    commits = (from_commit(commit) for commit in target_log.commits(desk.layout, _HEALED))
    mine = {
        row.batch
        for row in commits
        if row and row.kind == "drain" and row.generation == desk.generation
    }
    have = {
        number for of, number in ledger_table.batches(desk.layout, "drain") if of == desk.generation
    }
    if len(mine - have) >= lacking:
        text = f"{what}; the next run adds it"
        desk.note("ledger-lacks-batch", "ledger", text, f"draindown run {desk.layout.pipeline}")
    else:
        desk.wrong("ledger-row-missing", "ledger", what, audit)


def look_at_memory(desk: Desk) -> None:
    """Compare the tombstones, or the hidden events of a history, with what the ledger counts of
    them.
    """
    if desk.memory == "hidden":
        _look_at_hidden(desk)
        return
    tombstones, deletes = desk.layout.tables.tombstones, desk.recorded.deletes
    desk.say("tombstones", f"version {tombstones.version}" if tombstones.exists else "none")
    if deletes and desk.memory and not tombstones.exists:
        text = f"the ledger counts {count(deletes, 'delete')}, their memory is gone: older rows could come back"
        desk.wrong("tombstones-missing", "tombstones", text, desk.command("reset"))


def _look_at_hidden(desk: Desk) -> None:
    hidden, aside = (
        desk.layout.tables.hidden,
        integrity.put_aside_last(desk.layout, desk.layout.tables.hidden),
    )
    number = (ledger_table.sums(desk.layout, desk.generation) if aside else desk.recorded).hidden
    desk.say("hidden", f"version {hidden.version}" if hidden.exists else "none")
    if number and not hidden.exists:
        text = f"the ledger counts {count(number, 'hidden event')}, they are gone: rows that they explain could change"
        desk.wrong("hidden-missing", "hidden", text, desk.command("rebuild"))


def look_at_quarantine(desk: Desk) -> None:
    """Compare the quarantine with the quarantined rows that the ledger counts."""
    sums = desk.health.quarantine
    desk.say("quarantine", f"{count(sums.open)} open of {count(sums.refused)} quarantined")
    refused = desk.recorded.refused
    if refused and not desk.layout.tables.quarantine.exists:
        text = f"the ledger counts {count(refused, 'quarantined or withdrawn row')}, the quarantine is gone"
        desk.wrong(
            "quarantine-missing",
            "quarantine",
            text,
            f"restore {desk.layout.tables.quarantine.path} from a copy, as a whole",
        )
    if not desk.at_work and withdrawals.unfinished(desk.layout):
        text = "a withdrawal was cut short: its rows are still in the table; the next run clears the quarantine of them"
        desk.note(
            "withdrawal-unfinished", "quarantine", text, f"draindown run {desk.layout.pipeline}"
        )
    if sums.open:
        list_ = f"draindown quarantine list {desk.layout.pipeline}"
        text = f"{count(sums.open, 'row')} {'waits' if sums.open == 1 else 'wait'} for a decision"
        desk.note("quarantine-open", "quarantine", text, list_)


def look_at_published(desk: Desk, request: Request) -> None:
    """Examine whether the table still has the published version, undamaged, and whose commits it
    has.
    """
    _look_at_foreign(desk, request)
    pointer, state = desk.health.published, desk.health.unpublished
    run = f"draindown run {desk.layout.pipeline}"
    waits = desk.health.unpublished_since
    since = f", what came after it waits since {in_words(waits)}" if pointer and waits else ""
    desk.say("published", f"version {pointer.version}{since}" if pointer else "nothing yet")
    if desk.at_work:
        return
    if pointer is None:
        if state is not None and state.pending:
            _unpublished(desk, request, state, "nothing was published yet")
        return
    if state is None:
        desk.wrong(
            "published-without-table",
            "published",
            "a version is published, the table is gone",
            desk.command("reset"),
        )
    elif pointer.table_id != state.table_id:
        text = "it names a version of another table: the table was made anew"
        desk.wrong("published-other-table", "published", text, run)
    elif pointer.version > state.version:
        text = (
            f"version {pointer.version} is published, the table ends at version {state.version}: "
        )
        desk.wrong("published-ahead", "published", text + "it was put back from a copy", run)
    elif state.published is None:
        text = f"version {pointer.version} was published, the table has another commit of that number, not judged: "
        desk.wrong("published-other-commit", "published", text + "it was put back from a copy", run)
    else:
        if state.pending:
            _unpublished(desk, request, state, f"version {pointer.version} is published")
        _published_files(desk, pointer.version, pending=state.pending)


def _published_files(desk: Desk, version: int, *, pending: bool) -> None:
    log, code = desk.layout.tables.target, "published-files-gone"
    newest = desk.command("run", "   # a check that passes publishes the newest version")
    try:
        missing = lost_files(log.at(version))
    except Exception as error:  # noqa: BLE001 - deltalake raises arbitrary exceptions for a version whose log is gone
        text = f"published version {version} can't be read: {shortened(str(error))}"
        desk.wrong(code, "published", text, newest)
        return
    if not missing:
        return
    text = f"{count(len(missing), 'data file')} of published version {version} removed, such as {missing[0]}"
    if by := vacuumed(log, version, missing[0]):
        text += f": VACUUM of version {by} removed it"
    if set(missing).intersection(lost_files(log)):
        newest = desk.reset_or_restore(log.path)
    elif not pending:
        newest = desk.command(
            "compact", "   # publishes the newest version, which has the same rows"
        )
    desk.wrong(code, "published", text, newest)


def _unpublished(desk: Desk, request: Request, state: Unpublished, published: str) -> None:
    """Note that a version is unpublished, what the newest check with a report found, and what was
    decided since.
    """
    checks = (
        store.read(desk.layout, run, "check") for run in store.runs(desk.layout, store.KEPT_RUNS)
    )
    last, version = next((step for step in checks if step and step.check), None), state.version
    run = desk.command("run", "   # judges and publishes it")
    if last is None or last.check is None or last.outcome != "failed":
        desk.note(
            "unpublished", "published", f"{published}; version {version} is not judged yet", run
        )
        return
    refused = _refused(last, last.check)
    if last.check.version != version:
        text = f"{published}; version {version} is not judged yet, and version {last.check.version} {refused}"
        desk.note("unpublished", "published", text, run)
    elif _is_decided(request, state, last.check):
        text = f"{published}; version {version} {refused}; all of that was decided about or waived since"
        desk.note("unpublished", "published", text, run)
    else:
        desk.note(
            "unpublished",
            "published",
            f"{published}; version {version} {refused}",
            desk.command("gate show"),
        )


def _is_decided(request: Request, state: Unpublished, check: report.CheckPart) -> bool:
    """Return whether nothing stands in the way of the next check any more that made this one
    fail.
    """
    failed = [one for one in check.expectations if not one.success]
    judged = waivers.apply_waivers(request.layout, failed, state.table_id, state.version)
    left = [one for one in judged if one.refuses]
    held = all(verdict.success for verdict in quarantined_share.judged(request, state))
    return all(one.name == QUARANTINED_SHARE for one in left) and (held or not left)


def _refused(step: report.StepReport, check: report.CheckPart) -> str:
    failed = [one for one in check.expectations if one.refuses]
    names = ", ".join(printable(one.name) for one in failed[:3]) + (
        ", ..." if len(failed) > 3 else ""
    )
    return f"was refused at {step.finished_at:%Y-%m-%d %H:%M} UTC: {count(len(failed), 'expectation')} failed ({names})"
