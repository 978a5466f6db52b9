"""Flags of the JVM, as text."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from draindown.base.run_size import RunSize, largest, size_of
from draindown.launch import settings as spark_settings


@pytest.fixture(autouse=True)
def _jars(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(spark_settings, "class_path", lambda: "delta.jar")


def _flags(master: str, *, size: RunSize = "medium") -> list[str]:
    return spark_settings.settings(master, size=size)["spark.driver.extraJavaOptions"].split()


@pytest.mark.parametrize(
    ("master", "heap", "young"),
    [
        ("local[2]", "2g", ["-Xmn65536k"]),
        ("local[2, 3]", "8g", ["-Xmn65536k"]),
        ("local[4]", "2g", ["-Xmn131072k"]),
        ("local[64]", "2g", [f"-Xmn{2 * 1024**2 // 3}k"]),
        ("local[4]", "300m", ["-Xmn102400k"]),
        ("local", "2g", ["-Xmn65536k"]),
        ("local[*]", "2g", ["-Xmn98304k"]),
        ("spark://host:7077", "2g", []),
        ("yarn", "2g", []),
    ],
)
def test_a_long_run_on_one_machine_has_a_young_generation_by_its_tasks(
    monkeypatch: pytest.MonkeyPatch, master: str, heap: str, young: list[str]
) -> None:
    monkeypatch.setattr(spark_settings.os, "cpu_count", lambda: 3)
    monkeypatch.setenv("DRAINDOWN_DRIVER_MEMORY", heap)
    assert [flag for flag in _flags(master) if flag.startswith("-Xmn")] == young


@pytest.mark.parametrize(
    ("master", "executors"), [("local[2]", None), ("spark://host:7077", "UTC")]
)
def test_every_jvm_reads_orc_by_one_clock(master: str, executors: str | None) -> None:
    assert "-Duser.timezone=UTC" in _flags(master)
    assert spark_settings.settings(master).get("spark.executorEnv.TZ") == executors


def test_a_short_run_has_one_by_its_heap(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINDOWN_DRIVER_MEMORY", "2g")
    assert [flag for flag in _flags("local[2]", size="small") if flag.startswith("-Xmn")] == [
        f"-Xmn{2 * 1024**2 // 4 * 5 // 8}k"
    ]


@pytest.mark.parametrize(("heap", "tight"), [("2g", True), ("1g", True), ("3g", False)])
def test_only_a_long_run_on_one_machine_is_told_what_to_compile_well(
    monkeypatch: pytest.MonkeyPatch, heap: str, tight: bool
) -> None:
    monkeypatch.setenv("DRAINDOWN_DRIVER_MEMORY", heap)
    told = {
        flag
        for flag in set(_flags("local[2]")) - set(_flags("yarn"))
        if not flag.startswith("-Xmn")
    }
    assert told == {*spark_settings._SPARING, *(spark_settings._TIGHT_HEAP if tight else ())}
    assert not told & set(_flags("local[2]", size="small"))


@pytest.mark.parametrize(
    ("master", "size", "collector"),
    [
        ("local[2]", "small", "-XX:+UseSerialGC"),
        ("local[2]", "medium", "-XX:+UseSerialGC"),
        ("local[2]", "large", "-XX:+UseParallelGC"),
        ("yarn", "large", "-XX:+UseSerialGC"),
    ],
)
def test_a_jvm_has_one_collector(master: str, size: RunSize, collector: str) -> None:
    assert [flag for flag in _flags(master, size=size) if flag.endswith("GC")] == [collector]


@pytest.mark.parametrize(
    ("batches", "unpacked", "size"),
    [
        (0, 0, "small"),
        (1, 128 * 1024**2, "small"),
        (2, 1024, "medium"),
        (1, 128 * 1024**2 + 1, "medium"),
        (1, 1024**3, "large"),
        (40, 8 * 1024**3, "large"),
    ],
)
def test_the_size_of_a_run_is_that_of_all_its_input(
    batches: int, unpacked: int, size: RunSize
) -> None:
    assert size_of(batches, unpacked) == size
    assert largest([size, "small"]) == size and largest([]) == "small"


@pytest.mark.parametrize("master", ["local[2]", "spark://host:7077"])
def test_spark_leaves_no_directory_in_the_project(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, master: str
) -> None:
    monkeypatch.chdir(tmp_path)
    warehouse = Path(spark_settings.settings(master)["spark.sql.warehouse.dir"])
    assert warehouse.is_absolute() and tmp_path not in warehouse.parents
    assert str(os.getuid()) in warehouse.name, "that of another user could not be written"


@pytest.mark.parametrize(
    ("master", "local"),
    [
        *((one, True) for one in ("local", "local[2]", "local[*]", "local[2, 3]")),
        *(
            (one, False)
            for one in (
                "local-cluster[2,1,1024]",
                "spark://localhost:7077",
                "yarn",
                "k8s://https://h:6443",
            )
        ),
    ],
)
def test_a_cluster_gets_jars_and_no_setting_that_suits_one_jvm(
    monkeypatch: pytest.MonkeyPatch, master: str, local: bool
) -> None:
    monkeypatch.setattr(spark_settings, "class_path", lambda: "/jars/delta.jar:/jars/storage.jar")
    monkeypatch.delenv("DRAINDOWN_EXECUTOR_JARS", raising=False)
    found = spark_settings.settings(master)
    assert spark_settings.is_local(master) == local
    assert found.get("spark.jars") == (None if local else "/jars/delta.jar,/jars/storage.jar")
    assert (found.keys() >= spark_settings._ONE_MACHINE.keys()) == local
    assert local or not found.keys() & spark_settings._ONE_MACHINE.keys()
    assert not [name for name in found if name.startswith("spark.executor.")]


def test_executors_that_have_the_jars_are_sent_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("DRAINDOWN_EXECUTOR_JARS", "/opt/jars/")
    found = spark_settings.settings("spark://h:7077")
    assert "spark.jars" not in found
    assert found["spark.executor.extraClassPath"] == "/opt/jars/*"
    assert "spark.executor.extraClassPath" not in spark_settings.settings("local[2]")
