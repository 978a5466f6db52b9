"""A landing directory that moved: no row twice, and everything is read again where it is now."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql import SparkSession

from draindown.audit.recount import audit
from draindown.base.errors import TerminalError
from draindown.config.models import PipelineSpec
from draindown.provenance.file_records import FileRecords
from draindown.recovery import moved_files
from draindown.sources import intake
from draindown.spark.limits import Stop
from draindown.spark.runs.rebuild import rebuild
from tests.landing import Landing


def test_moved_files_are_appended_once_and_read_again_in_their_new_directory(
    spark: SparkSession, tmp_path: Path
) -> None:
    it = Landing(tmp_path, spark, target={})
    it.deliver('{"id": "1", "seq": 1}', '{"id": "2", "seq": 1}', "no json")
    it.deliver('{"id": "3", "seq": 1}')
    it.drain(spark)
    it.landing.rename(tmp_path / "moved")
    it.landing = tmp_path / "moved"
    it.document["flows"]["f"]["source"]["files"] = "moved/*"
    it.spec = PipelineSpec.model_validate(it.document)
    with pytest.raises(TerminalError) as error:  # as when files come between plan and drain
        it.drain(spark)
    assert error.value.code == "files-moved" and intake.newest(it.layout, 1) == 1
    request = it.request()
    found = moved_files.find(request)
    assert found is not None and found.files == 2
    moved_files.answer(request, found, same=True, by="me", note="")
    it.deliver('{"id": "4", "seq": 1}')
    it.drain(spark)
    assert sorted(row["id"] for row in it.rows("id")) == ["1", "2", "3", "4"]
    checked = audit(it.spec, "f", root=it.home)
    assert checked.clean and not checked.unlooked, checked
    reader = FileRecords(it.spec.flow("f"), it.layout)
    units = [unit for one in intake.slices(it.layout, 1) for unit in one.units]
    assert not any(reader.gone(unit) for unit in units)
    assert sum(1 for unit in units for _ in reader.records(unit)) == 5
    rebuild(it.request("again"), spark, stop=Stop(), progress=lambda line: None)
    assert sorted(row["id"] for row in it.rows("id")) == ["1", "2", "3", "4"]
    origins = {Path(row["input"]).parent.name for row in it.rows("_origin.input as input")}
    assert origins == {"landing", "moved"}, "a record keeps its origin"
    assert audit(it.spec, "f", root=it.home).clean and len(it.refused()) == 1
