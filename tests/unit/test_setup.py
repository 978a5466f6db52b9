"""Set-up refuses with one clear sentence, skips what is done, and never calls half a job done."""

from __future__ import annotations

import importlib
import os
import re
import shutil
import subprocess
import sys
from collections import namedtuple
from pathlib import Path
from typing import Any

import pytest

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit

ROOT = Path(__file__).resolve().parents[2]
Usage = namedtuple("Usage", "total used free")


def script(name: str) -> Any:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


# `setup` is a name other tools have too, so it is loaded from its path.
preflight, packages = script("setup_preflight"), script("setup_packages")
_spec = importlib.util.spec_from_file_location("draindown_setup", ROOT / "scripts" / "setup.py")
assert _spec and _spec.loader
setup = importlib.util.module_from_spec(_spec)
sys.path.insert(0, str(ROOT / "scripts"))
_spec.loader.exec_module(setup)
sys.path.remove(str(ROOT / "scripts"))


def fake_java(home: Path, banner: str) -> Path:
    """A program that answers `-version` as a Java of that version does, on stderr."""
    java = home / "bin" / "java"
    java.parent.mkdir(parents=True)
    java.write_text(f"#!/bin/sh\necho '{banner}' >&2\n")
    java.chmod(0o755)
    return java


# --- prerequisites


def test_an_activated_environment_is_not_what_it_is_made_of(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    real, link = tmp_path / "python3.11", tmp_path / "python3"
    real.touch()
    link.symlink_to(real)
    for base in (
        link,
        real,
    ):  # as the system's Python names itself, and as one in an environment names the system's
        monkeypatch.setattr(sys, "_base_executable", str(base))
        monkeypatch.setattr(sys, "executable", "/project/.venv/bin/python3")
        assert preflight.choose_python((3, 11)) == str(real)


def test_java_home_wins_over_path(tmp_path: Path) -> None:
    java = fake_java(tmp_path / "jdk", 'openjdk version "21.0.2" 2024-01-16')
    other = fake_java(tmp_path / "old", 'java version "1.8.0_292"')

    found = preflight.find_java({"JAVA_HOME": str(tmp_path / "jdk"), "PATH": str(other.parent)})

    assert found == (str(java), "21.0.2")


@pytest.mark.parametrize(
    ("banner", "code", "major"),
    [
        ('"11.0.2" 2019-01-15', "java-too-old", 11),
        ('"23"', "java-too-new", 23),
        ('"25.0.3"', "java-too-new", 25),
    ],
)
def test_java_that_spark_does_not_run_on_is_refused_by_version(
    tmp_path: Path, banner: str, code: str, major: int
) -> None:
    java = fake_java(tmp_path, f"openjdk version {banner}")

    error = refused(preflight.find_java, {"PATH": str(java.parent)})

    assert (error.code, error.found) == (code, f"{java} is version {major}")
    assert error.next


def test_no_java_at_all(tmp_path: Path) -> None:
    error = refused(preflight.find_java, {"PATH": str(tmp_path)})

    assert error.code == "java-missing"
    assert re.search("JAVA_HOME|install", error.next[0])


def test_wrong_java_home_is_named(tmp_path: Path) -> None:
    error = refused(preflight.find_java, {"JAVA_HOME": str(tmp_path), "PATH": os.environ["PATH"]})

    assert error.code == "java-home-wrong"
    assert str(tmp_path / "bin" / "java") in error.found


def test_old_python_without_a_newer_one() -> None:
    error = refused(preflight.choose_python, (3, 10), lambda name: None)

    assert error.code == "python-too-old"
    assert " is 3.10, " in error.found


def test_full_disk_is_found_before_anything_is_written(tmp_path: Path) -> None:
    error = refused(
        preflight.check_disk,
        {tmp_path / "not" / "there": 3.0},
        lambda place: Usage(9, 8, 1_200_000_000),
    )

    assert error.code == "disk-full"
    assert error.found == "1.2 GB free"
    assert "3.0 GB" in error.tried


# --- pip's failures


@pytest.mark.parametrize(
    ("output", "code"),
    [
        (
            "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE.\n"
            "    a2wsgi==1.10.10 from https://x/y.whl:\n        Expected sha256 aaaa\n             Got        bbbb\n",
            "package-hash-mismatch",
        ),
        ("OSError: [Errno 28] No space left on device", "disk-full"),
        (
            "WARNING: Retrying (...) after connection broken by 'ProxyError('Cannot connect to proxy.'",
            "proxy-refused",
        ),
        (
            "SSLError(SSLCertVerificationError(1, '[SSL: CERTIFICATE_VERIFY_FAILED]",
            "certificate-untrusted",
        ),
        (
            "NewConnectionError(': Failed to establish a new connection: [Errno -2] Name",
            "no-network",
        ),
        ("ERROR: No matching distribution found for zipp==4.1.2", "package-not-found"),
        ("ERROR: something new", "package-install-failed"),
    ],
)
def test_pip_failures_get_a_name_and_a_command(output: str, code: str) -> None:
    error = packages.explain(output, "/x/rest.log", {})

    assert error.code == code
    assert "/x/rest.log" in error.found
    assert error.next


def test_proxies_are_shown_without_their_password() -> None:
    error = packages.explain(
        "ProxyError", "log", {"HTTPS_PROXY": "http://me:hunter2@proxy.example:3128"}
    )

    assert "HTTPS_PROXY=proxy.example:3128" in error.tried
    assert "hunter2" not in str(error)


def test_settings_that_send_packages_elsewhere_are_dropped() -> None:
    kept = packages.pip_environment(
        {"PIP_TARGET": "/x", "PIP_USER": "1", "PIP_INDEX_URL": "mirror", "HOME": "/h"}
    )

    assert kept.keys() >= {"PIP_INDEX_URL", "HOME"}
    assert not {"PIP_TARGET", "PIP_USER"} & kept.keys()


# --- pins and the wheel cache


def test_the_lock_pins_every_package_by_hash() -> None:
    pins = packages.read_pins(ROOT / "requirements.lock")

    assert len(pins) > 150
    assert pins["pyspark"].version == pins["pyspark-client"].version, (
        "they share files: the last one installed wins"
    )
    assert {"setuptools", "wheel", "packaging"} <= pins.keys(), (
        "sources are built with pinned tools"
    )


def test_every_requirement_is_locked() -> None:
    pins = packages.read_pins(ROOT / "requirements.lock")
    asked = re.findall(
        r"^([A-Za-z0-9-]+)(?:\[.*?\])?(?:==(\S+))?",
        (ROOT / "requirements.in").read_text(),
        re.MULTILINE,
    )

    for name, version in asked:
        assert name.lower() in pins
        assert version in ("", pins[name.lower()].version)


def test_a_pin_without_a_hash_is_refused(tmp_path: Path) -> None:
    (tmp_path / "lock").write_text(
        "zipp==4.1.2 \\\n    --hash=sha256:" + "0" * 64 + "\nrich==15.0.0\n"
    )

    error = refused(packages.read_pins, tmp_path / "lock")

    assert error.code == "lock-invalid"
    assert "rich==15.0.0" in error.found


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "zipp-4.1.2-py3-none-any.whl"
    path.write_bytes(b"wheel")
    return path


def pin(*hashes: str) -> Any:
    return packages.Pin("zipp", "4.1.2", frozenset(hashes), "zipp==4.1.2")


def cache(tmp_path: Path, tag: str = "Python 3.11") -> Any:
    (tmp_path / "wheels").mkdir(exist_ok=True)
    return packages.WheelCache(tmp_path / "wheels", tag)


def test_a_wheel_is_found_again_for_its_pin_only(tmp_path: Path, wheel: Path) -> None:
    digest = packages.sha256(wheel)
    cache(tmp_path).add(pin(digest), wheel)

    found, sum_found = cache(tmp_path).find(pin(digest))
    assert (found.name, sum_found) == (wheel.name, digest)
    assert cache(tmp_path).find(pin("0" * 64)) is None
    assert cache(tmp_path, "Python 3.12").find(pin(digest)) is None


def test_a_changed_wheel_is_as_good_as_none(tmp_path: Path, wheel: Path) -> None:
    digest = packages.sha256(wheel)
    cache(tmp_path).add(pin(digest), wheel)
    cache(tmp_path).find(pin(digest))[0].write_bytes(b"other")

    assert cache(tmp_path).find(pin(digest)) is None


# --- the steps


class Recorder(setup.Setup):  # type: ignore[misc]
    """A set-up whose heavy steps only note that they ran, or fail where told."""

    def __init__(self, root: Path, breaks: str = "") -> None:
        super().__init__(root, {"JAVA_HOME": str(root / "jdk")}, say=lambda line: None)
        self.ran: list[str] = []
        self._breaks = breaks

    def _do(self, step: str) -> None:
        if step == self._breaks:
            raise KeyboardInterrupt
        self.ran.append(step)

    def _packages(self, base: str, tag: str) -> None:
        self.venv.mkdir(exist_ok=True)
        self._mark()
        self._do("packages")
        self.python.parent.mkdir(exist_ok=True)
        self.python.touch()

    def _project(self) -> None:
        self._do("project")

    def _bytecode(self) -> None:
        self._do("bytecode")

    def _jars(self) -> None:
        self._do("jars")
        placed = self.venv / "share" / "draindown" / "jars"
        placed.mkdir(parents=True, exist_ok=True)
        (placed / "jars.lock").write_bytes((self.root / "jars.lock").read_bytes())

    def _archive(self) -> None:
        self._do("archive")


@pytest.fixture
def clone(tmp_path: Path) -> Path:
    for name in ("requirements.lock", "pyproject.toml", "jars.lock"):
        (tmp_path / name).write_text(name)
    fake_java(tmp_path / "jdk", 'openjdk version "17.0.15"')
    return tmp_path


def test_the_second_set_up_has_nothing_to_do(clone: Path) -> None:
    assert Recorder(clone).run() is True

    again = Recorder(clone)
    assert again.run() is False
    assert again.ran == []


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ("requirements.lock", ["packages", "project", "bytecode", "jars", "archive"]),
        ("pyproject.toml", ["project"]),
        ("jars.lock", ["jars", "archive"]),
    ],
)
def test_a_changed_lock_redoes_what_hangs_on_it(
    clone: Path, changed: str, expected: list[str]
) -> None:
    Recorder(clone).run()
    (clone / changed).write_text("other")

    again = Recorder(clone)
    again.run()
    assert again.ran == expected


@pytest.mark.parametrize("step", ["packages", "project", "bytecode", "jars", "archive"])
def test_an_interrupted_set_up_goes_on_where_it_stopped(clone: Path, step: str) -> None:
    order = ["packages", "project", "bytecode", "jars", "archive"]
    with pytest.raises(KeyboardInterrupt):
        Recorder(clone, breaks=step).run()

    again = Recorder(clone)
    assert again.run() is True
    assert again.ran == order[order.index(step) :]


def test_a_removed_environment_is_made_again(clone: Path) -> None:
    Recorder(clone).run()
    (clone / ".venv" / "bin" / "python").unlink()

    again = Recorder(clone)
    again.run()
    assert again.ran[0] == "packages"


def test_somebody_elses_environment_is_left_alone(clone: Path) -> None:
    (clone / ".venv").mkdir()
    (clone / ".venv" / "mine").touch()

    error = refused(Recorder(clone).run)

    assert error.code == "venv-foreign"
    assert (clone / ".venv" / "mine").exists()


def test_the_exit_code_is_the_one_of_the_project() -> None:
    assert setup.NEEDS_PERSON == Exit.NEEDS_PERSON


def test_the_program_says_what_is_missing(tmp_path: Path) -> None:
    environ = {"PATH": str(tmp_path), "HOME": str(tmp_path)}
    done = subprocess.run(
        [sys.executable, ROOT / "scripts" / "setup.py"],
        env=environ,
        capture_output=True,
        text=True,
        check=False,
    )

    assert done.returncode == Exit.NEEDS_PERSON
    assert done.stderr.startswith("java-missing: ")
    assert "  next:   " in done.stderr
    assert "Traceback" not in done.stderr


# --- the frame


def test_ci_runs_the_documented_command() -> None:
    runner = ROOT / ".ci" / "run"

    assert os.access(runner, os.X_OK)
    assert runner.read_text().splitlines()[-1] == "exec make test-all"


def refused(function: Any, *arguments: Any) -> TerminalError:
    with pytest.raises(TerminalError) as caught:
        function(*arguments)
    return caught.value


def test_byte_code_is_there_before_anything_was_imported(
    clone: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("PYTHONDONTWRITEBYTECODE", "1")
    # tests of packages are left out, not a clone below a directory of that name
    home = clone / "tests" / "here"
    shutil.copytree(clone, home, ignore=shutil.ignore_patterns("tests"))
    Recorder(home).run()
    package = home / ".venv" / "lib" / "python3" / "site-packages" / "some"
    (package / "tests").mkdir(parents=True)
    for name in ("some.py", "odd.py", "tests/test_some.py"):
        (package / name).write_text("def broken(:" if name == "odd.py" else "x = 1\n")
    again = setup.Setup(home, say=lambda line: None)
    again.python.unlink()
    again.python.symlink_to(sys.executable)
    again.work.mkdir()
    again._bytecode()

    assert [path.parent.parent for path in package.rglob("some*.pyc")] == [package]
    assert not list((package / "tests").rglob("*.pyc"))
