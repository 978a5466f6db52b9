"""Old words of the command line, and the sentence that names the new form of each."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

COMMANDS: Mapping[str, str] = {
    "schema": "schema is draindown validate --json-schema now",
    "explain": "explain is draindown plan TARGET --explain now",
    "lag": "lag is draindown status now",
    "prove": "prove is draindown audit TARGET now, which recomputes derived tables",
    "lateness": "lateness is draindown late list TARGET --summary now",
    "accept-loss": "accept-loss is draindown input list TARGET and draindown input discard TARGET now",
    "accept-files": "accept-files is draindown input accept TARGET now",
    "forget-reader": "forget-reader is draindown compact TARGET --drop-reader READER now",
    "gate unwaive": "gate unwaive is draindown gate waive TARGET EXPECTATION --undo now",
    "gate quarantine": "gate quarantine is draindown gate withdraw TARGET EXPECTATION now",
    "quarantine show": "quarantine show is draindown quarantine list TARGET --id ID now",
    "quarantine replay": "quarantine replay is draindown quarantine release TARGET now",
    "quarantine retry": "rows: draindown quarantine release TARGET; parked files: draindown input retry TARGET",
    "late apply": "late apply is draindown late release TARGET now",
    "sink fill": "sink fill is draindown sink resync TARGET SINK now",
    "list": "what others call list is draindown status",
    **dict.fromkeys(("pending", "backlog", "waits", "freshness"), "see draindown status"),
    **dict.fromkeys(
        ("retry", "unpark", "parked"),
        "see draindown input list TARGET, draindown input retry TARGET",
    ),
    "release": "see draindown quarantine release TARGET, draindown late release TARGET",
    **dict.fromkeys(
        ("quarantine delete", "quarantine drop", "quarantine purge"),
        "see draindown quarantine discard TARGET",
    ),
    **dict.fromkeys(
        ("recount", "verify", "check", "test", "reconcile"), "see draindown audit TARGET"
    ),
    "resync": "see draindown sink resync TARGET SINK",
    **dict.fromkeys(("vacuum", "optimize"), "see draindown compact TARGET"),
    "history": "see draindown as-of TABLE",
    "lineage": "see draindown why TABLE --key KEY",
    "drain": "see draindown run TARGET",
    "backfill": "what others call a backfill is draindown replay TARGET --from TIME --to TIME",
    "full-refresh": "what others call a full refresh is draindown rebuild TARGET",
}
"""By a command of before version 1, or of another tool, what to type now."""

_CONSTANT = "drill {} is gone: draindown drill takes what was its default"
OPTIONS: Mapping[str, str] = {
    "--flow": "--flow FLOW is part of the target now: PIPELINE/FLOW",
    "run --deadline": "run --deadline is draindown run TARGET --max-duration TIME now",
    "run --full-refresh": "what others call a full refresh is draindown rebuild TARGET",
    "report --drift": "report --drift is draindown report TARGET now, which always lists the drift",
    "report --start": "report --start is gone: draindown report TARGET --json has every start",
    "as-of --by": "as-of --by arrival is draindown as-of TABLE --known-at TIME now",
    "quarantine list --files": "quarantine list --files is draindown input list TARGET now",
    "quarantine list --csv": "quarantine list --csv is gone: draindown quarantine list TARGET --json",
    "quarantine discard --files": "quarantine discard --files is draindown input discard TARGET now",
    "quarantine discard --path": "quarantine discard --path is draindown input discard TARGET --file now",
    "gate waive --reason": "gate waive --reason is draindown gate waive TARGET EXPECTATION --note now",
    "gate accept --reason": "gate accept --reason is draindown gate accept TARGET --note now",
    "sink skip --reason": "sink skip --reason is draindown sink skip TARGET SINK --note now",
    "sink skip --sink": "sink skip --sink is draindown sink skip TARGET SINK now",
    **{
        f"drill {option}": _CONSTANT.format(option)
        for option in ("--batch", "--times", "--seed", "--max-bytes")
    },
}
"""By an option of before version 1, or of another tool, after its command, what to type now.
Without a command it is refused after every one.
"""
_VALUED = ("--root", "--env")
"""Options before the command that take a value."""


def told(arguments: Sequence[str]) -> str | None:
    """Return the sentence about the first old word of a command line; None if it has none."""
    words = _after_global_options(arguments)
    command = next(
        (known for known in (" ".join(words[:2]), *words[:1]) if known in COMMANDS), None
    )
    if command is not None:
        return COMMANDS[command]
    options = [word.partition("=")[0] for word in words if word.startswith("--")]
    asked = [
        f"{command} {option}".lstrip()
        for command in (" ".join(words[:2]), *words[:1], "")
        for option in options
    ]
    return next((OPTIONS[one] for one in asked if one in OPTIONS), None)


def _after_global_options(arguments: Sequence[str]) -> Sequence[str]:
    """Return the words from the command's name on."""
    at = 0
    while at < len(arguments) and arguments[at].startswith("-"):
        at += 2 if arguments[at] in _VALUED else 1
    return arguments[at:]
