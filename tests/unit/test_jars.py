"""Jars are placed whole and verified, or not at all."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from draindown.base.errors import TerminalError
from draindown.launch import jar_lock
from draindown.launch.jar_lock import LockedJar
from draindown.spark.setup import jars

ROOT = Path(__file__).resolve().parents[2]
CONTENT = {"delta-spark_4.1_2.13": b"spark jar", "delta-storage": b"storage jar"}


class Mirror:
    """A resolver over a dictionary: what it was asked, and bytes by artifact."""

    def __init__(self, content: Mapping[str, bytes]) -> None:
        self.content = content
        self.asked: list[str] = []

    def __call__(self, wanted: Sequence[LockedJar], scratch: Path) -> dict[LockedJar, Path]:
        places = {}
        for jar in wanted:
            self.asked.append(jar.artifact)
            if jar.artifact in self.content:
                places[jar] = scratch / jar.file_name
                places[jar].write_bytes(self.content[jar.artifact])
        return places


def write_lock(path: Path, content: Mapping[str, bytes] = CONTENT) -> Path:
    lines = [
        f"io.delta:{name}:4.4.0 {hashlib.sha256(body).hexdigest()} {len(body)}"
        for name, body in content.items()
    ]
    path.write_text("# header\n\n" + "\n".join(lines) + "\n")
    return path


@pytest.fixture
def lock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return write_lock(tmp_path / "jars.lock")


@pytest.fixture
def target(tmp_path: Path) -> Path:
    return tmp_path / "share" / "jars"


def test_the_repository_pins_delta_kafka_and_jdbc() -> None:
    pinned = {jar.coordinates for jar in jar_lock.locked_jars(ROOT / "jars.lock")}

    assert {"io.delta:delta-spark_4.1_2.13:4.4.0", "io.delta:delta-storage:4.4.0"} <= pinned
    assert {"org.apache.kafka:kafka-clients:3.9.1", "org.postgresql:postgresql:42.7.14"} <= pinned


def test_no_lock_names_a_host() -> None:
    for name in ("jars.lock", "requirements.lock", "requirements.in"):
        text = (ROOT / name).read_text(encoding="utf-8")
        assert "://" not in text, name
        assert "--index" not in text, name
        assert "--extra-index" not in text, name


@pytest.mark.parametrize(
    "line", ["io.delta:delta-spark:4.4.0", "a:b:1 xyz 3", "a:b:../1 " + "0" * 64 + " 3"]
)
def test_a_bad_line_is_named(lock: Path, line: str) -> None:
    lock.write_text(f"# header\n{line}\n")

    with pytest.raises(TerminalError) as caught:
        jar_lock.locked_jars(lock)

    assert caught.value.code == "jars-lock-invalid"
    assert caught.value.tried.endswith("jars.lock:2")


def test_fetch_places_and_verify_agrees(lock: Path, target: Path) -> None:
    fetched = jars.fetch(lock, target, resolve=Mirror(CONTENT), say=lambda _: None)

    assert jars.verify(target) == fetched
    assert sorted(path.name for path in target.iterdir()) == [
        "delta-spark_4.1_2.13-4.4.0.jar",
        "delta-storage-4.4.0.jar",
        "jars.lock",
    ]


def test_fetch_again_asks_nobody(lock: Path, target: Path) -> None:
    mirror = Mirror(CONTENT)
    jars.fetch(lock, target, resolve=mirror, say=lambda _: None)
    jars.fetch(lock, target, resolve=mirror, say=lambda _: None)

    assert mirror.asked == list(CONTENT)


def test_a_second_clone_is_served_by_the_cache(lock: Path, target: Path, tmp_path: Path) -> None:
    jars.fetch(lock, target, resolve=Mirror(CONTENT), say=lambda _: None)
    mirror = Mirror({})

    jars.fetch(lock, tmp_path / "clone", resolve=mirror, say=lambda _: None)

    assert mirror.asked == []
    assert len(jars.verify(tmp_path / "clone")) == 2


def test_a_spoilt_cache_is_not_used(lock: Path, target: Path, tmp_path: Path) -> None:
    jars.fetch(lock, target, resolve=Mirror(CONTENT), say=lambda _: None)
    for cached in jars.cache_dir().iterdir():
        cached.write_bytes(b"x" * cached.stat().st_size)
    mirror = Mirror(CONTENT)

    jars.fetch(lock, tmp_path / "clone", resolve=mirror, say=lambda _: None)

    assert mirror.asked == list(CONTENT)
    assert len(jars.verify(tmp_path / "clone")) == 2


def test_other_bytes_are_refused_and_nothing_is_placed(lock: Path, target: Path) -> None:
    mirror = Mirror({**CONTENT, "delta-storage": b"storage jaR"})

    with pytest.raises(TerminalError) as caught:
        jars.fetch(lock, target, resolve=mirror, say=lambda _: None)

    assert caught.value.code == "jar-hash-mismatch"
    assert hashlib.sha256(b"storage jaR").hexdigest() in caught.value.found
    assert list(target.iterdir()) == []
    assert not jars.cache_dir().exists()


def test_what_no_repository_has_is_named(lock: Path, target: Path) -> None:
    with pytest.raises(TerminalError) as caught:
        jars.fetch(lock, target, resolve=Mirror({}), say=lambda _: None)

    assert caught.value.code == "jar-unresolved"
    assert "io.delta:delta-storage:4.4.0" in caught.value.tried
    assert any("DRAINDOWN_IVY_SETTINGS" in step for step in caught.value.next)


def test_a_changed_jar_is_found_and_replaced(lock: Path, target: Path) -> None:
    jars.fetch(lock, target, resolve=Mirror(CONTENT), say=lambda _: None)
    (target / "delta-storage-4.4.0.jar").write_bytes(b"storage jaR")

    with pytest.raises(TerminalError) as caught:
        jars.verify(target)
    jars.fetch(lock, target, resolve=Mirror({}), say=lambda _: None)

    assert caught.value.code == "jar-hash-mismatch"
    assert len(jars.verify(target)) == 2


def test_verify_before_set_up_says_what_to_type(tmp_path: Path) -> None:
    with pytest.raises(TerminalError) as caught:
        jars.verify(tmp_path)

    assert caught.value.code == "jars-missing"
    assert caught.value.next == ("make setup",)


def test_proxies_of_the_environment_reach_the_jvm() -> None:
    environ = {
        "https_proxy": "http://user:word@proxy.example:3128",
        "NO_PROXY": "localhost, .corp.example",
    }

    assert jars.proxy_options(environ) == [
        "-Dhttps.proxyHost=proxy.example",
        "-Dhttps.proxyPort=3128",
        "-Dhttp.nonProxyHosts=localhost|*.corp.example",
    ]
    assert jars.proxy_options({"NO_PROXY": "localhost"}) == []


def test_the_command_reports_errors_with_exit_codes(
    lock: Path, target: Path, monkeypatch, capsys
) -> None:
    monkeypatch.setenv("DRAINDOWN_JARS", str(target))

    assert jars.main(["verify"]) == 78
    assert "jars-missing" in capsys.readouterr().err
    assert jars.main(["sing"]) == 2
    jars.fetch(lock, target, resolve=Mirror(CONTENT), say=lambda _: None)
    assert jars.main(["verify"]) == 0
    assert jars.main(["fetch", str(lock)]) == 0
