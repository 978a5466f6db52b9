"""What Postgres and its client say when something fails, as errors of draindown: who acts, and
how.
"""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import TYPE_CHECKING

from draindown.base.errors import DraindownError, TerminalError, TransientError
from draindown.base.secrets import redacted
from draindown.sinks.port import SinkPlace
from draindown.sinks.postgres.names import identifier

if TYPE_CHECKING:
    import psycopg

_LONGEST = 400
_KEY = re.compile(r"Key \((.*?)\)=\((.*?)\)")
NOT_BEGUN = "this step changed nothing at the sink"
NOT_COMMITTED = "nothing of the batch is in the table"
UNCERTAIN = "nothing in the table, or the whole batch if the answer to its commit was lost; the next run finds out"
_RETRIED = ("08", "40", "53", "55006", "55P03", "57", "58", "XX", "25P03", "25P04", "25006")
_REFUSING = (
    "09",
    "21",
    "22",
    "23",
    "27",
    "44",
    "54",
    "P0",
)  # 54: a value that is too long for an index, among others
_FULL = ("53",)
_BUSY = ("55", "57014", "25P03", "25P04")
_CAUSES = (
    ("sink-auth", ("28000", "28P01"), "check the user and the secret's value"),
    (
        "sink-missing",
        ("3D000", "3F000", "42P01"),
        "create what is missing, or correct `url` or `table`",
    ),
    ("sink-denied", ("42501",), "grant the rights that docs/postgres-sink.md lists"),
    ("sink-unfit", ("42703", "42804", "42P10", "55000"), "it names what differs or lacks"),
    (
        "sink-refused",
        ("",),
        "change what the row breaks, or give the batch up: draindown sink skip -h",
    ),
)
# what a server says before there is a connection has no SQLSTATE
_WORDS = (
    (
        r"(password|authentication)(?! due to)|pg_hba\.conf|role \".*\" (does not exist|is not permitted)",
        "28000",
    ),
    (r"database \".*\" does not exist", "3D000"),
    (r"too many (clients|connections)|connection slots|connection limit", "53300"),
    (r"permission denied|does not have CONNECT", "42501"),
)
# not every "SSL error": a server that dies ends a connection with "SSL error: unexpected eof"
_PLACE = re.compile(r"(server at|host( name)?) (\"[^\"]*\"|'[^']*')")  # its name may hold any word
_TLS = re.compile(
    r"certificate|does not support SSL|root\.crt|sslmode|wrong version number", re.IGNORECASE
)


def named(
    error: psycopg.Error,
    tried: str,
    place: SinkPlace,
    secrets: Collection[str] = (),
    changed: str = NOT_BEGUN,
) -> DraindownError:
    """Return the error that a client's error stands for. Secrets are left out of its text."""
    found = _text(error, secrets)
    said = _PLACE.sub("", found)
    state = error.sqlstate or next((code for words, code in _WORDS if re.search(words, said)), None)
    if state is None:
        if _TLS.search(said):
            help = "draindown validate   # check sslmode and sslrootcert in `url`"
            return TerminalError("sink-tls", tried=tried, found=found, next=help)
        return TransientError(
            "sink-unreachable", tried=tried, found=found, changed=changed, next=place.again
        )
    if state.startswith(_RETRIED):
        return TransientError(
            "sink-full"
            if state.startswith(_FULL)
            else "sink-busy"
            if state.startswith(_BUSY)
            else "sink-unreachable",
            tried=tried,
            found=f"{found} ({state})",
            changed=changed,
            next=place.again,
        )
    code, help = next((code, help) for code, states, help in _CAUSES if state.startswith(states))
    return TerminalError(
        code,
        tried=tried,
        found=f"{found} ({state})",
        changed=changed,
        next=place.command("plan", help),
    )


def is_refusal(error: psycopg.Error) -> bool:
    """Return whether the server refused a value or a row: data, constraints, triggers."""
    return (error.sqlstate or "").startswith(_REFUSING)


def ways(error: psycopg.Error, table: str) -> list[str]:
    """Return what helps against a refused row, most helpful first; empty if only its values say.

    The server checks a unique constraint row by row unless it is deferred: rows of one batch that
    exchange their values break it on the way.
    """
    key, name = _KEY.search(error.diag.message_detail or ""), error.diag.constraint_name
    if error.sqlstate != "23505" or key is None or name is None:
        return []
    made = f"ADD CONSTRAINT {identifier(name)} UNIQUE ({key[1]}) DEFERRABLE INITIALLY DEFERRED;"
    return [
        "change what the row breaks",
        f"ALTER TABLE {table} DROP CONSTRAINT {identifier(name)}, {made}   -- if rows of a batch exchange the value; "
        "a unique index becomes such a constraint first",
    ]


def silent(
    tried: str, seconds: float, place: SinkPlace, changed: str = NOT_BEGUN
) -> TransientError:
    """Return the error of a server that doesn't answer."""
    found = f"no answer within {seconds:.0f} s"
    return TransientError(
        "sink-unreachable", tried=tried, found=found, changed=changed, next=place.again
    )


def _text(error: psycopg.Error, secrets: Collection[str]) -> str:
    diag = error.diag
    main = diag.message_primary or str(error).strip() or type(error).__name__
    key = _KEY.search(diag.message_detail or "")  # any other detail may hold the whole row
    parts = [main, f"key ({key[1]}) = ({key[2]})" if key else ""]
    parts += [f"constraint {diag.constraint_name}"] if diag.constraint_name else []
    text = "; ".join(part for part in parts if part)
    return " ".join(redacted(text, secrets).split())[:_LONGEST]
