"""Checkpoints, tables and logs that are gone, older, torn (F17, F18, F20): refused, and put right
by command.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from tests.faults import lakes
from tests.faults.lakes import Control
from tests.faults.trial import Trial, conclude
from tests.landing import Landing


def _forget(spark: SparkSession) -> None:
    """As a process that starts anew: nothing of a table is remembered."""
    spark._jvm.org.apache.spark.sql.delta.DeltaLog.clearCache()  # type: ignore[union-attr]


def _recover(
    trial: Trial, landing: Landing, spark: SparkSession, control: Control, *, reset: bool
) -> None:
    """Run, do what the error says, run again."""
    _forget(spark)
    trial.run(landing, spark)
    if trial.runs[-1].code and reset:
        trial.follow(landing, "reset")
    if trial.runs[-1].code:
        trial.run(landing, spark)
    lakes.hold(trial, landing, control, again=bool(trial.commands))


@pytest.mark.campaign
@pytest.mark.timeout(900)
def test_lost_checkpoint_is_refused_and_reset(
    tmp_path: Path, spark: SparkSession, control: Control
) -> None:
    trials = []
    for done, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=done)
        trial = Trial("F17", f"after the {place} batch", "the checkpoint deleted")
        shutil.rmtree(landing.layout.checkpoint(1))
        trial.fired = "its directory is gone"
        _recover(trial, landing, spark, control, reset=True)
        trial.promise("refused by name", trial.runs[0].error == "checkpoint-missing")
        trials.append(trial)
    conclude(*trials)


def _dropped(landing: Landing, spark: SparkSession) -> None:
    shutil.rmtree(landing.layout.tables.target.path)


def _recreated(landing: Landing, spark: SparkSession) -> None:
    empty = spark.read.format("delta").load(landing.layout.tables.target.path).where("false")
    columns = empty.schema
    shutil.rmtree(landing.layout.tables.target.path)
    _forget(spark)
    spark.createDataFrame([], columns).write.format("delta").save(landing.layout.tables.target.path)


def _restored(landing: Landing, spark: SparkSession) -> None:
    to = landing.layout.tables.target.version - 1
    spark.sql(f"RESTORE TABLE delta.`{landing.layout.tables.target.path}` TO VERSION AS OF {to}")


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("damage", [_dropped, _recreated, _restored])
def test_another_table_is_refused_and_reset(
    tmp_path: Path,
    spark: SparkSession,
    control: Control,
    damage: Callable[[Landing, SparkSession], None],
) -> None:
    trials = []
    for done, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=done)
        trial = Trial(
            "F18",
            f"after the {place} batch,{damage.__name__.replace('_', ' ')}",
            "rm -r, CREATE, RESTORE",
        )
        damage(landing, spark)
        there = landing.layout.tables.target.exists
        trial.fired = (
            f"the table is at version {landing.layout.tables.target.version}"
            if there
            else "it is gone"
        )
        _recover(trial, landing, spark, control, reset=True)
        trial.promise("refused by name", trial.runs[0].error == "table-behind-checkpoint")
        trials.append(trial)
    conclude(*trials)


def _newest(directory: Path) -> Path:
    return directory / str(
        max(int(path.name) for path in directory.iterdir() if path.name.isdigit())
    )


def _checkpoint(landing: Landing) -> Path:
    return Path(landing.layout.checkpoint(1))


def _log(path: str) -> Path:
    return max(Path(path, "_delta_log").glob("*.json"))


def _empty(path: Path) -> str:
    path.write_bytes(b"")
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return f"{path.parent.name}/{path.name} is empty"


def _half(path: Path) -> str:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return f"{path.parent.name}/{path.name} is torn"


def _gone(path: Path) -> str:
    path.unlink()
    path.with_name(f".{path.name}.crc").unlink(missing_ok=True)
    return f"{path.parent.name}/{path.name} is gone"


def _checksum(path: Path) -> str:
    path.with_name(f".{path.name}.crc").write_bytes(b"crc\0\0\0\2\0\1\2\3\4")
    return f"the checksum of {path.name} is wrong"


def _stale_temporary(path: Path) -> str:
    left = path.with_name(f".{path.name}.0a0a0a0a.tmp")
    left.write_text("v1\n")
    return f"{left.name} was left behind"


def _last_checkpoint(landing: Landing) -> str:
    path = Path(landing.layout.tables.target.path, "_delta_log", "_last_checkpoint")
    path.write_text('{"version": 9999, "si')
    return "_last_checkpoint is torn"


DAMAGES: dict[str, Callable[[Landing], str]] = {
    "empty commit file": lambda flow: _empty(_newest(_checkpoint(flow) / "commits")),
    "torn commit file": lambda flow: _half(_newest(_checkpoint(flow) / "commits")),
    "commit file gone": lambda flow: _gone(_newest(_checkpoint(flow) / "commits")),
    "empty offset file": lambda flow: _empty(_newest(_checkpoint(flow) / "offsets")),
    "torn offset file": lambda flow: _half(_newest(_checkpoint(flow) / "offsets")),
    "offset file gone": lambda flow: _gone(_newest(_checkpoint(flow) / "offsets")),
    "empty metadata": lambda flow: _empty(_checkpoint(flow) / "metadata"),
    "metadata gone": lambda flow: _gone(_checkpoint(flow) / "metadata"),
    "wrong checksum": lambda flow: _checksum(_newest(_checkpoint(flow) / "offsets")),
    "stale temporary": lambda flow: _stale_temporary(_newest(_checkpoint(flow) / "commits")),
    "torn _last_checkpoint": _last_checkpoint,
    "table: newest version empty": lambda flow: _empty(_log(flow.layout.tables.target.path)),
    "table: newest version torn": lambda flow: _half(_log(flow.layout.tables.target.path)),
    "table: newest version gone": lambda flow: _gone(_log(flow.layout.tables.target.path)),
    "intake: newest version empty": lambda flow: _empty(_log(flow.layout.tables.intake(1).path)),
    "intake: newest version gone": lambda flow: _gone(_log(flow.layout.tables.intake(1).path)),
    "ledger: newest version empty": lambda flow: _empty(_log(flow.layout.tables.ledger.path)),
    "ledger: newest version gone": lambda flow: _gone(_log(flow.layout.tables.ledger.path)),
    "quarantine: newest version empty": lambda flow: _empty(
        _log(flow.layout.tables.quarantine.path)
    ),
    "tombstones: newest version empty": lambda flow: _empty(
        _log(flow.layout.tables.tombstones.path)
    ),
    "quarantine: newest version gone": lambda flow: _gone(_log(flow.layout.tables.quarantine.path)),
    "tombstones: newest version gone": lambda flow: _gone(_log(flow.layout.tables.tombstones.path)),
    "empty generation": lambda flow: _empty(_named(Path(flow.layout.generation.path))),
}


def _named(path: Path) -> Path:
    path.parent.mkdir(exist_ok=True)
    path.touch()
    return path


@pytest.mark.campaign
@pytest.mark.timeout(900)
@pytest.mark.parametrize("name", DAMAGES)
def test_torn_file_is_refused_or_healed(
    tmp_path: Path, spark: SparkSession, control: Control, name: str
) -> None:
    trials = []
    for done, place in enumerate(lakes.PLACES, 1):
        landing = lakes.lake(tmp_path / place)
        landing.drain(spark, max_batches=done)
        trial = Trial("F20", f"{place} batch, {name}", "a file emptied, torn, removed")
        trial.fired = DAMAGES[name](landing)
        _recover(trial, landing, spark, control, reset=True)
        trials.append(trial)
    conclude(*trials)
