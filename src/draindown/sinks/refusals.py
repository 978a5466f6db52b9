"""The error of a row that only the system behind a sink can refuse: a constraint, a trigger, a
broker's policy.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

from draindown.base.errors import TerminalError
from draindown.sinks.port import SinkPlace

CODE = "sink-refused"
_OF_BATCH = ("draindown run ", "draindown sink skip ")


def refused(
    place: SinkPlace, *, tried: str, found: str, changed: str, key: str, ways: Sequence[str] = ()
) -> TerminalError:
    """Return TerminalError `sink-refused`.

    `key`: the row's key as a JSON object; empty if nobody can tell which row it is. `ways`: what
    else helps.
    """
    where = f"{place.pipeline}/{place.flow}"
    skip, end = f"draindown sink skip {where} {place.sink}", "--note TEXT --yes"
    row = [f"{skip} --key {shlex.quote(key)} {end}   # goes on without this row"] if key else []
    return TerminalError(
        CODE,
        tried=tried,
        found=f"key {key}: {found}" if key else found,
        changed=changed,
        next=[
            *(ways or ["change what the row breaks"]),
            f"draindown run {where}   # sends the batch again",
            *row,
            f"{skip} {end}   # goes on without the batch; then resync the sink",
        ],
    )


@contextmanager
def of_fill(command: str) -> Iterator[None]:
    """Have a refusal in the block name the ways on of a fill, which `command` goes on with, not
    those of a batch.
    """
    try:
        yield
    except TerminalError as error:
        if error.code == CODE:
            own = [way for way in error.next if not way.startswith(_OF_BATCH) or " --key " in way]
            error.next = (*own, f"{command}   # goes on with the fill")
        raise


def parsed(text: str) -> dict[str, str]:
    """Return a key that a person typed: the text of each column's value by name, of a struct its
    JSON.

    Raises ValueError if it is no JSON object of texts, numbers, booleans and objects.
    """
    found, plain = json.loads(text, parse_float=str, parse_int=str), json.loads(text)
    if not isinstance(found, dict) or not found:
        raise ValueError('is no JSON object such as {"id": 5}')
    return {
        name: _text(plain[name] if isinstance(value, dict) else value)
        for name, value in found.items()
    }


def _text(value: object) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, dict):
        return json.dumps(value, ensure_ascii=False)
    if not isinstance(value, str):
        raise ValueError("has a value that is no text, number, object, true or false")
    return value
