"""Table features that draindown's engines support. deltalake reads all tables, and writes those
beside the target.

Spark reads and writes all of them. The sets are those of the pinned versions; tests compare them
with the engines.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from draindown.base.errors import TerminalError
from draindown.lake.delta_log import DeltaLog

if TYPE_CHECKING:
    from deltalake.table import ProtocolVersions

_READ_BY_DELTALAKE = frozenset(
    (
        "columnMapping",
        "deletionVectors",
        "timestampNtz",
        "v2Checkpoint",
        "variantType",
        "variantType-preview",
    )
)
_WRITTEN_BY_DELTALAKE = _READ_BY_DELTALAKE | frozenset(
    ("appendOnly", "changeDataFeed", "checkConstraints", "generatedColumns", "invariants")
)
_DROPPED_BY_SPARK = frozenset(
    (
        *(
            "catalogManaged",
            "checkConstraints",
            "checkpointProtection",
            "columnMapping",
            "coordinatedCommits-preview",
        ),
        *("deletionVectors", "domainMetadata", "geospatial", "geospatial-dev", "inCommitTimestamp"),
        *(
            "materializePartitionColumns",
            "rowTracking",
            "typeWidening",
            "typeWidening-preview",
            "v2Checkpoint",
        ),
        "vacuumProtocolCheck",
    )
)
_WRITTEN_BY_SPARK = _DROPPED_BY_SPARK | frozenset(
    (
        *(
            "adaptiveMetadata-preview",
            "allowColumnDefaults",
            "appendOnly",
            "changeDataFeed",
            "clustering",
        ),
        *(
            "generatedColumns",
            "icebergCompatV1",
            "icebergCompatV2",
            "icebergCompatV3",
            "identityColumns",
        ),
        *(
            "invariants",
            "timestampNtz",
            "variantShredding",
            "variantShredding-preview",
            "variantType",
        ),
        "variantType-preview",
    )
)
_TRUNCATED = frozenset(("checkpointProtection",))
"""Features that Spark drops only together with the history of the table."""
_WITH_IDENTITY = 6
"""Writer version that requires `identityColumns`, without a list of features."""


class Unsupported(TerminalError):
    """A table requires features that deltalake cannot read. Its code is `table-feature`."""

    def __init__(self, path: str, names: Iterable[str]) -> None:
        self.path, self.names = path, tuple(names)
        super().__init__(
            "table-feature",
            tried=f"read the table {path}",
            found=described(path, self.names, "deltalake, which reads the table,"),
            next=[
                *dropped(path, self.names),
                "draindown doctor   # names the flow, and what helps",
            ],
        )

    def __reduce__(self) -> tuple[object, ...]:
        return (Unsupported, (self.path, self.names))


def described(path: str, names: Iterable[str], engine: str) -> str:
    """Return the text that a table requires features which `engine` lacks."""
    return f"{path}: its protocol requires the table feature {', '.join(names)}; {engine} does not support it"


def dropped(path: str, names: Iterable[str]) -> list[str]:
    """Return the statements of Spark SQL that remove features; empty if Spark cannot remove one of
    them.
    """
    if not _DROPPED_BY_SPARK.issuperset(names):
        return []
    return [
        f"ALTER TABLE delta.`{path}` DROP FEATURE `{name}`{' TRUNCATE HISTORY' * (name in _TRUNCATED)}   "
        "# in Spark SQL with Delta"
        for name in names
    ]


def unreadable(protocol: ProtocolVersions) -> list[str]:
    """Return the features by which deltalake fails to answer queries."""
    return sorted(set(protocol.reader_features or ()) - _READ_BY_DELTALAKE)


def refuse_unreadable(path: str, protocol: ProtocolVersions) -> None:
    """Refuse a table that deltalake opens and fails to query. Raises Unsupported."""
    if names := unreadable(protocol):
        raise Unsupported(path, names)


def unwritable(protocol: ProtocolVersions, *, beside: bool) -> list[str]:
    """Return the features by which writes fail. `beside`: deltalake writes the table, as all but
    the target.
    """
    required = set(protocol.writer_features or ())
    if protocol.min_writer_version == _WITH_IDENTITY:
        required.add("identityColumns")
    return sorted(required - (_WRITTEN_BY_DELTALAKE if beside else _WRITTEN_BY_SPARK))


def refuse_logged(path: str) -> None:
    """Refuse a table that deltalake fails to open or to read, if its newest protocol says why.

    Raises Unsupported.
    """
    features = (_newest_protocol(DeltaLog(path)) or {}).get("readerFeatures") or ()
    if names := sorted(set(map(str, features)) - _READ_BY_DELTALAKE):
        raise Unsupported(path, names)


def _newest_protocol(log: DeltaLog) -> dict[str, Any] | None:
    for number in reversed(log.commits()):
        for line in log.lines(number):
            if b'"protocol"' in line and (found := _protocol_in(line)):
                return found
    return _checkpointed(log)


def _protocol_in(line: bytes) -> dict[str, Any] | None:
    try:
        action = json.loads(line)
    except ValueError:
        return None
    found = action.get("protocol") if isinstance(action, dict) else None
    return found if isinstance(found, dict) else None


def _checkpointed(log: DeltaLog) -> dict[str, Any] | None:
    """Return the protocol of the newest checkpoint that can be read: Delta removes old commits."""
    import pyarrow as pa
    from pyarrow import parquet

    for checkpoint in reversed(log.checkpoints()):
        try:
            table = parquet.read_table(checkpoint.key, columns=["protocol"])
            rows = table["protocol"].drop_null().to_pylist()
        except (pa.ArrowException, OSError, KeyError, ValueError):
            continue
        if rows:
            return dict(rows[0])
    return None
