"""What Delta's log says of the newest MERGE of a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

_FACTS = {
    "numTargetFilesAdded": "files_added",
    "numTargetFilesRemoved": "files_removed",
    "numTargetDeletionVectorsAdded": "vectors_added",
    "numTargetBytesAdded": "bytes_added",
    "scanTimeMs": "scan_ms",
    "rewriteTimeMs": "rewrite_ms",
    "executionTimeMs": "merge_ms",
}


def newest_merge(table: Path) -> dict[str, float]:
    """Files touched and milliseconds of the newest MERGE; nothing if there was none."""
    from deltalake import DeltaTable

    history: list[dict[str, Any]] = DeltaTable(str(table)).history(20)
    metrics = next(
        (c.get("operationMetrics") or {} for c in history if c.get("operation") == "MERGE"), {}
    )
    return {name: float(metrics[key]) for key, name in _FACTS.items() if key in metrics}
