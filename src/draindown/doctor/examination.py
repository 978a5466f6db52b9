"""Check a flow's state for consistency: checkpoint, intake, target, ledger, quarantine, lease,
publication, setup.

Compares only the newest entries, without Spark and within seconds; `audit` counts every row. Writes
nothing.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from draindown.base.errors import DraindownError
from draindown.base.formatting import shortened
from draindown.config.derived import DerivedFlow
from draindown.doctor.derived import look_at_readers, look_at_source
from draindown.doctor.flow import (
    look_at_checkpoint,
    look_at_generation,
    look_at_intake,
    look_at_lake,
    look_at_lease,
    look_at_owner,
    look_at_presence,
    look_at_rebuild,
    look_at_replays,
    look_at_runs,
)
from draindown.doctor.model import Desk, Examination
from draindown.doctor.setup import look_at_class_archive, look_at_jars, look_at_master
from draindown.doctor.sinks import look_at_sinks
from draindown.doctor.source import look_at_files, look_at_input, look_at_place, look_at_raw
from draindown.doctor.tables import (
    look_at_ledger,
    look_at_logs,
    look_at_memory,
    look_at_metadata,
    look_at_published,
    look_at_quarantine,
    look_at_target,
)
from draindown.flow.state import FlowState
from draindown.lake.features import Unsupported
from draindown.lake.flow_tables import flow_tables
from draindown.lake.home import FlowHome
from draindown.lake.torn import TableDamaged
from draindown.runs.request import Request
from draindown.sources.registry import source_of


def examine(request: Request) -> Examination:
    """Examine everything that a request's flow stores. An error in one part does not keep the
    others from it.
    """
    layout = request.layout
    kind = request.declared.target.kind
    desk = Desk(layout, source_of(request), kind.memory)
    _look(desk, "state", _remember)
    if desk.unlooked or desk.symptoms:
        return Examination(
            f"{layout.pipeline}/{layout.flow}", desk.looked, desk.symptoms, desk.unlooked
        )
    _look(desk, "lake", look_at_lake)
    if not _says(desk, "not-a-directory"):
        _look(desk, "lake", partial(look_at_presence, root=Path(request.root)))
    if not _says(desk, *_NO_LAKE):
        _look(desk, "owner", look_at_owner)
    if not _says(desk, *_NO_LAKE, "table-of-another-flow"):
        for part, look in _LOOKS.items():
            _look(desk, part, look)
        _look(desk, "metadata", partial(look_at_metadata, flow=request.declared))
        _look(desk, "published", lambda desk: look_at_published(desk, request))
        if isinstance(request.declared, DerivedFlow):
            _look(desk, "source", partial(look_at_source, flow=request.declared))
        elif request.declared.source.raw_files:
            _look(desk, "source", look_at_files)
            _look(desk, "source", partial(look_at_place, request=request))
        else:
            _look(desk, "source", lambda desk: look_at_input(desk, request))
            _look(desk, "raw records", lambda desk: look_at_raw(desk, request))
        _look(desk, "readers", lambda desk: look_at_readers(desk, request))
        if request.declared.sinks:
            _look(desk, "sinks", lambda desk: look_at_sinks(desk, request))
    return Examination(
        f"{layout.pipeline}/{layout.flow}", desk.looked, desk.symptoms, desk.unlooked
    )


_NO_LAKE = ("not-a-directory", "lake-missing")


def _says(desk: Desk, *codes: str) -> bool:
    """Return whether one of these symptoms was found, of which those of all other parts would
    follow.
    """
    return any(symptom.code in codes for symptom in desk.symptoms)


def _remember(desk: Desk) -> None:
    """Replace the desk's home by a view, so that all parts are examined in the same state."""
    desk.layout = FlowState.of(desk.layout)


_BEGINNING = 200
"""Characters by which errors are compared: what follows may be cut."""


def examine_setup() -> Examination:
    """Examine what jobs need of this machine: Delta's jars, the JVM's class archive, the Spark
    master.
    """
    desk = Desk(FlowHome("", "", "", ""))
    _look(desk, "jars", look_at_jars)
    _look(desk, "class archive", look_at_class_archive)
    _look(desk, "master", look_at_master)
    return Examination("set-up", desk.looked, desk.symptoms, desk.unlooked)


def _look(desk: Desk, part: str, look: Callable[[Desk], None]) -> None:
    try:
        look(desk)
    except TableDamaged as error:
        _cannot_be_read(desk, part, error.found)
    except Unsupported as error:
        desk.say(part, "can't be read")
        if not any(one.code == error.code and error.path in one.found for one in desk.symptoms):
            desk.wrong(error.code, part, error.found, error.next[0])
    except DraindownError as error:
        desk.say(part, "does not agree")
        if any((one.code, one.found) == (error.code, error.found) for one in desk.symptoms):
            return  # parts read the same documents: one is named once
        desk.wrong(
            error.code,
            part,
            error.found,
            error.next[0] if error.next else desk.command("audit"),
        )
    except PermissionError as error:
        desk.unlooked.append(f"{part}: {error}")
    except Exception as error:  # noqa: BLE001 - whatever a torn log or file raises, examine the other parts
        _cannot_be_read(desk, part, shortened(str(error)), type(error).__name__)


def _cannot_be_read(desk: Desk, part: str, text: str, kind: str = "") -> None:
    """Add the symptom of a part that can't be read. Parts read each other's tables: a torn one is
    named once.
    """
    desk.say(part, "can't be read")
    same = next((one.found for one in desk.symptoms if text and text[:_BEGINNING] in one.found), "")
    home = desk.layout
    tables = {
        "target": home.tables.target.path,
        "ledger": home.tables.ledger.path,
        "intake": home.tables.intake(desk.generation).path,
    }
    table = _table_in(desk, text) or _table_in(desk, same)
    if same and table:
        return
    torn = next((name for name, path in tables.items() if path == table), part)
    found, then = (
        f"{kind}: {text}" if kind else text,
        _unreadable(desk, part, table or tables.get(part)),
    )
    desk.wrong(f"{torn.replace(' ', '-')}-unreadable", part, found, then)


def _table_in(desk: Desk, text: str) -> str | None:
    """Return the path of the flow's table that an error names. Readers of Delta leave out the slash
    before a path.
    """
    paths = (one.path for one in flow_tables(desk.layout, desk.generation))
    return next(
        (path for path in paths if re.search(re.escape(path.lstrip("/")) + "[/:]", text)), None
    )


def _unreadable(desk: Desk, part: str, table: str | None) -> str:
    if part in ("checkpoint", "generation"):
        return desk.command("reset")
    return f"restore {table or desk.layout.home} from a copy, as a whole"


_LOOKS: dict[str, Callable[[Desk], None]] = {
    "lease": look_at_lease,
    "generation": look_at_generation,
    "logs": look_at_logs,
    "checkpoint": look_at_checkpoint,
    "intake": look_at_intake,
    "target": look_at_target,
    "ledger": look_at_ledger,
    "memory": look_at_memory,
    "quarantine": look_at_quarantine,
    "replays": look_at_replays,
    "rebuild": look_at_rebuild,
    "waiting": look_at_runs,
}
