"""Pinned packages: a cache of verified wheels, filled by pip, and explanations of pip's errors.

Standard library only.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from urllib.parse import urlsplit

from draindown.base.errors import TerminalError

SLOW_TO_BUILD = "pyspark"  # 30 s from its source archive; built beside the other downloads
BUILD_TOOLS = ("setuptools", "wheel", "packaging")


@dataclass(frozen=True)
class Pin:
    """One package of the lock, with every hash that an index may serve."""

    name: str
    version: str
    hashes: frozenset
    text: str


def read_pins(lock):
    """Return the packages of a lock by normalised name. Raises `lock-invalid`."""
    pins = {}
    for block in re.split(r"\n(?=[^\s#])", lock.read_text(encoding="utf-8")):
        match = re.match(r"([A-Za-z0-9._-]+)==([^\s;\\]+)", block)
        hashes = frozenset(re.findall(r"--hash=sha256:([0-9a-f]{64})", block))
        if not match or not hashes:
            raise TerminalError(
                "lock-invalid",
                tried=f"read {lock}",
                found=f"{block.splitlines()[0]!r} is not `name==version` with hashes",
                next=["git checkout requirements.lock", "make lock"],
            )
        name = _normal(match.group(1))
        pins[name] = Pin(name, match.group(2), hashes, block.rstrip())
    return pins


def _normal(name):
    return re.sub(r"[-_.]+", "-", name).lower()


class WheelCache:
    """Wheels by pin, each stored with its SHA-256.

    A wheel from an index must have a hash of the lock. A wheel built here, from a source archive
    whose hash pip verified, must have the hash that it was stored with.
    """

    def __init__(self, directory, tag):
        self.directory = directory
        self._tag = tag  # Python and platform, for which the wheels are valid

    def _home(self, pin):
        key = hashlib.sha256(
            "\n".join([self._tag, pin.name, pin.version, *sorted(pin.hashes)]).encode()
        ).hexdigest()
        return self.directory / f"{pin.name}-{pin.version}-{key[:16]}"

    def find(self, pin):
        """Return the pin's wheel and its SHA-256, or None if it is missing or differs from what was
        stored.
        """
        home = self._home(pin)
        try:
            stored = json.loads((home / "wheel.json").read_text(encoding="utf-8"))
            wheel, digest = home / stored["file"], stored["sha256"]
            intact = sha256(wheel) == digest and (stored["built"] or digest in pin.hashes)
        except (OSError, ValueError, KeyError):
            return None
        return (wheel, digest) if intact else None

    def add(self, pin, wheel):
        """Move a wheel into the cache atomically. One that another set-up stored first is kept."""
        if self.find(pin):
            return
        home, digest = self._home(pin), sha256(wheel)
        staging = Path(tempfile.mkdtemp(prefix=".incoming-", dir=self.directory))
        shutil.move(str(wheel), str(staging / wheel.name))
        stored = {"file": wheel.name, "sha256": digest, "built": digest not in pin.hashes}
        (staging / "wheel.json").write_text(json.dumps(stored), encoding="utf-8")
        shutil.rmtree(home, ignore_errors=True)
        staging.rename(home)


def sha256(path):
    """Return the SHA-256 of a file in hexadecimal."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        for block in iter(lambda: file.read(1 << 20), b""):
            digest.update(block)
    return digest.hexdigest()


def cache_dir(environ=os.environ):
    """Return draindown's directory in the user's cache."""
    given = environ.get("XDG_CACHE_HOME", "")
    return (Path(given) if os.path.isabs(given) else Path.home() / ".cache") / "draindown"


def download(python, pins, cache, work):
    """Download the wheels of `pins` into the cache, verified by pip against the lock.

    Sources are built with pinned tools.
    """
    cache.directory.mkdir(parents=True, exist_ok=True)
    for left in cache.directory.glob(".*-*"):  # leftovers of a killed set-up
        if left.stat().st_mtime < time.time() - 86400:
            shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=".building-", dir=cache.directory) as scratch:
        scratch = Path(scratch)
        run([python, "-m", "venv", scratch / "venv"], work / "venv.log")
        pip = [scratch / "venv/bin/python", "-m", "pip"]
        tools = _requirements(scratch / "tools.txt", [pins["all"][name] for name in BUILD_TOOLS])
        run([*pip, "install", "--no-deps", "--require-hashes", "-r", tools], work / "tools.log")
        groups = {
            "slow": [pin for pin in pins["missing"] if pin.name == SLOW_TO_BUILD],
            "rest": [pin for pin in pins["missing"] if pin.name != SLOW_TO_BUILD],
        }
        jobs = {}
        for name, group in groups.items():
            if group:
                listed = _requirements(scratch / f"{name}.txt", group)
                build = ["wheel", "--no-deps", "--no-build-isolation", "--require-hashes"]
                jobs[work / f"{name}.log"] = [*pip, *build, "-r", listed, "-w", scratch / "wheels"]
        _run_all(jobs, total=len(pins["missing"]))
        by_name = {(pin.name, pin.version): pin for pin in pins["missing"]}
        for wheel in sorted((scratch / "wheels").glob("*.whl")):
            name, version = wheel.name.split("-")[:2]
            cache.add(by_name[_normal(name), version.replace("_", "-")], wheel)


def _requirements(path, pins):
    path.write_text("\n".join(pin.text for pin in pins) + "\n", encoding="utf-8")
    return path


def pip_environment(environ=os.environ):
    """Return the user's environment without variables that would install packages elsewhere."""
    unwanted = {
        "PIP_TARGET",
        "PIP_PREFIX",
        "PIP_USER",
        "PIP_ROOT",
        "PIP_REQUIRE_VIRTUALENV",
        "PYTHONPATH",
        "PYTHONHOME",
    }
    kept = {name: value for name, value in environ.items() if name not in unwanted}
    return {**kept, "PIP_DISABLE_PIP_VERSION_CHECK": "1", "PIP_NO_INPUT": "1"}


def run(command, log):
    """Run one command with its output in a log. On failure raise the error that `explain`
    returns.
    """
    _run_all({log: command})


def _run_all(jobs, total=0):
    """Run commands in parallel with their output in logs; the first failure ends all. Raises the
    error of `explain`.
    """
    running = {}
    try:
        for log, command in jobs.items():
            with open(log, "w", encoding="utf-8") as out:
                command = [str(part) for part in command]
                running[log] = subprocess.Popen(
                    command, stdout=out, stderr=out, env=pip_environment()
                )
        started = shown = time.monotonic()
        while any(process.poll() is None for process in running.values()):
            _raise_if_failed(running)
            time.sleep(0.1)
            if total and time.monotonic() - shown > 5:
                shown = time.monotonic()
                fetched = sum(
                    log.read_text(errors="replace").count("Collecting ") for log in running
                )
                print(f"      {fetched} of {total} fetched, {shown - started:.0f} s", flush=True)
        _raise_if_failed(running)
    finally:
        for process in running.values():
            if process.poll() is None:
                process.terminate()
                process.wait()


def _raise_if_failed(running):
    for log, process in running.items():
        if process.poll():
            raise explain(log.read_text(errors="replace"), str(log), os.environ)


_CAUSES = (
    (
        "package-hash-mismatch",
        r"DO NOT MATCH THE HASHES",
        "an index served other bytes than the lock names",
    ),
    ("disk-full", r"No space left on device", "the disk is full"),
    ("proxy-refused", r"ProxyError|Cannot connect to proxy|407 Proxy", "the proxy refused"),
    (
        "certificate-untrusted",
        r"CERTIFICATE_VERIFY_FAILED|SSLError",
        "the index's certificate is not trusted here",
    ),
    (
        "no-network",
        r"NewConnectionError|Failed to establish|Temporary failure in name|ConnectTimeout|ReadTimeout|Max retries|"
        r"Connection (?:refused|reset)|Network is unreachable|NameResolutionError",
        "no answer from the package index",
    ),
    (
        "package-not-found",
        r"No matching distribution|Could not find a version",
        "the index lacks a pinned package",
    ),
)
_ADVICE = {
    "package-hash-mismatch": [
        "make setup   # again; if it repeats, ask who runs the mirror, or use another index"
    ],
    "disk-full": ["df -h . ~/.cache", "XDG_CACHE_HOME=/roomy/disk make setup"],
    "proxy-refused": ["HTTPS_PROXY=http://user:password@proxy:port make setup"],
    "certificate-untrusted": ["PIP_CERT=/path/to/your-ca.pem make setup"],
    "no-network": [
        "make setup   # with a network",
        "pip config set global.index-url ADDRESS   # with a mirror",
    ],
    "package-not-found": [
        "pip config list   # which index is asked",
        "make setup PYTHON=python3.11",
    ],
}


def explain(output, log, environ):
    """Return the error for pip's output: the cause in one sentence, and the command that helps."""
    code, cause = next(
        ((code, cause) for code, pattern, cause in _CAUSES if re.search(pattern, output)),
        ("package-install-failed", "pip failed"),
    )
    proxies = proxies_in_force(environ)
    lines = [line.strip() for line in output.splitlines() if line.strip()]
    pattern = next((pattern for named, pattern, _ in _CAUSES if named == code), r"^(ERROR|error:)")
    telling = [line for line in lines if re.search(pattern, line)]
    detail = " ".join((telling or lines or ["no output"])[-1].split())[:240]
    if code == "package-hash-mismatch":
        detail = " ".join(
            " ".join(
                re.findall(r"(\S+==\S+) from|(Expected sha256 \S+)|(Got\s+\S+)", output)[0]
            ).split()
        )
        detail += " " + " ".join(
            " ".join(re.findall(r"(?:Expected sha256|Got)\s+\S+", output)).split()
        )
    return TerminalError(
        code,
        tried="install the pinned Python packages"
        + (f", through {', '.join(proxies)}" if proxies else ""),
        found=f"{cause}: {detail} (all of it: {log})",
        changed="nothing was marked done; packages verified before are kept",
        next=_ADVICE.get(code, [f"less {log}"]),
    )


def proxies_in_force(environ):
    """Return the proxy variables as `NAME=address`, without user and password."""
    shown = []
    for name in (
        "HTTPS_PROXY",
        "https_proxy",
        "HTTP_PROXY",
        "http_proxy",
        "ALL_PROXY",
        "all_proxy",
        "PIP_PROXY",
    ):
        value = environ.get(name)
        if value:
            shown.append(
                f"{name}={urlsplit(value if '://' in value else '//' + value).netloc.rpartition('@')[2]}"
            )
    return shown
