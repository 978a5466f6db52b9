"""Set up draindown in this directory: packages and jars, nothing else. Idempotent.

    python3 scripts/setup.py          called by `make setup`, `make demo` and `make test`

Needs only the standard library. pip downloads the packages, so its index, proxy and certificate
settings apply. Verified wheels are cached under `${XDG_CACHE_HOME:-~/.cache}/draindown` for the
next clone. The virtual environment is changed only after all downloads are verified, and a step is
marked done only when it is complete, so an interrupted set-up resumes.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import re
import shlex
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "src"))  # to import draindown's errors before draindown is installed

from setup_packages import WheelCache, cache_dir, download, read_pins, run, sha256  # noqa: E402
from setup_preflight import check_disk, choose_python, find_java, quiet  # noqa: E402

from draindown.base.errors import TerminalError  # noqa: E402

DISK_GB = 3.0
NEEDS_PERSON = 78  # draindown.base.exits needs a newer Python than this file
STATE = "draindown-setup.json"
ARCHIVE = 3  # increase it when jobs load other classes than before: then the archive is made again


class Setup:
    """The steps of a set-up under `root`, and the record of completed steps."""

    def __init__(self, root, environ=os.environ, say=print):
        self.root = root
        self.venv = root / ".venv"
        self.python = self.venv / "bin/python"
        self.work = root / ".work"
        self._environ = environ
        self._say = say

    def run(self):
        """Run the steps that are missing. Return whether there was anything to do."""
        base = choose_python()
        java = " ".join(find_java(self._environ))
        tag = platform_tag(base)
        wanted = self.fingerprints(base, tag, java)
        if self.state() == wanted and self.python.exists() and self._jars_in_place():
            return False
        self._refuse_foreign_venv()
        self._say(f"[1/6] Prerequisites: {tag}, Java {java}")
        stale = {"packages": not self.python.exists(), "jars": not self._jars_in_place()}
        steps = {
            "packages": lambda: self._packages(base, tag),
            "project": self._project,
            "bytecode": self._bytecode,
            "jars": self._jars,
            "archive": self._archive,
        }
        for name, step in steps.items():
            if self.state().get(name) != wanted[name] or stale.get(name):
                step()
                self._mark(**{name: wanted[name]})
        return True

    def fingerprints(self, base, tag, java):
        """Return the hash of each step's inputs.

        Only content counts, not the age of a clone or mtimes of a checkout.
        """
        about = "\n".join([base, tag, str(self.root), sha256(self.root / "requirements.lock")])
        packages = hashlib.sha256(about.encode()).hexdigest()
        return {
            "packages": packages,
            "project": f"{packages[:16]}-{sha256(self.root / 'pyproject.toml')}",
            "bytecode": packages,
            "jars": f"{packages[:16]}-{sha256(self.root / 'jars.lock')}",
            "archive": f"{ARCHIVE}-{packages[:16]}-{sha256(self.root / 'jars.lock')[:16]}-{java}",
        }

    def state(self):
        """Return the completed steps, each with its fingerprint."""
        try:
            return json.loads((self.venv / STATE).read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return {}

    def _mark(self, **done):
        partial = self.venv / f"{STATE}.partial"
        partial.write_text(json.dumps({**self.state(), **done}), encoding="utf-8")
        os.replace(partial, self.venv / STATE)

    def _refuse_foreign_venv(self):
        if self.venv.exists() and not (self.venv / STATE).exists():
            raise TerminalError(
                "venv-foreign",
                tried=f"make {self.venv}",
                found="a virtual environment that this set-up did not make",
                next=["mv .venv .venv.old && make setup"],
            )

    def _packages(self, base, tag):
        pins = read_pins(self.root / "requirements.lock")
        home = cache_dir(self._environ)
        check_disk({self.root: DISK_GB, home: DISK_GB})
        cache = WheelCache(home / "wheels", tag)
        missing = [pin for pin in pins.values() if cache.find(pin) is None]
        if missing:
            self._say(
                f"[2/6] Python packages: fetching {len(missing)} of {len(pins)}, hashes verified ..."
            )
            download(base, {"all": pins, "missing": missing}, cache, self.work)
        self._say(f"[2/6] Python packages: installing {len(pins)}, hashes verified ...")
        self._install({pin: cache.find(pin) for pin in pins.values()}, base)

    def _install(self, wheels, base):
        absent = [f"{pin.name}=={pin.version}" for pin, found in wheels.items() if found is None]
        if absent:
            raise TerminalError(
                "package-missing",
                tried="install the pinned packages",
                found=f"no wheel of {absent}",
                next="make setup",
            )
        place = self.venv.resolve()  # it may be a link to a larger disk
        shutil.rmtree(place, ignore_errors=True)
        place.mkdir()
        self._mark()  # marks the environment as ours, with no step completed
        run([base, "-m", "venv", self.venv], self.work / "venv.log")
        listed = self.work / "wheels.txt"
        listed.write_text(
            "".join(f"{wheel} --hash=sha256:{digest}\n" for wheel, digest in wheels.values())
        )
        options = ["--isolated", "--no-index", "--no-deps", "--no-compile", "--require-hashes"]
        run(
            [self.python, "-m", "pip", "install", *options, "-r", listed], self.work / "install.log"
        )

    def _project(self):
        self._say("[3/6] draindown itself: linked into the environment")
        options = ["--isolated", "--no-index", "--no-deps", "--no-build-isolation", "--editable"]
        run([self.python, "-m", "pip", "install", *options, self.root], self.work / "project.log")

    def _bytecode(self):
        """Compile all packages to byte code.

        Where PYTHONDONTWRITEBYTECODE is set, as in many containers, each process would otherwise
        compile for seconds.
        """
        self._say("[4/6] Python byte code ...")
        log, packages = self.work / "bytecode.log", self.venv / "lib"
        command = [
            self.python,
            "-m",
            "compileall",
            "-q",
            "-j",
            "0",
            "-x",
            f"^{re.escape(str(packages))}/.*/tests/",
        ]
        with open(log, "w", encoding="utf-8") as out:
            done = subprocess.run(
                [*command, packages, self.root / "src"], stdout=out, stderr=out, check=False
            )
        if done.returncode:  # without byte code processes only start slower
            self._say(f"      not all of it was made: {log}")

    def _jars(self):
        self._say("[5/6] Jars for Spark: Delta, Kafka, JDBC, hashes verified ...")
        log = self.work / "jars.log"
        command = [
            str(self.python),
            "-m",
            "draindown.spark.setup.jars",
            "fetch",
            str(self.root / "jars.lock"),
        ]
        with open(log, "w", encoding="utf-8") as out:
            done = subprocess.run(
                command,
                stdout=out,
                stderr=out,
                env=self._spark_environ(),
                cwd=self.work,
                check=False,
            )
        if done.returncode:
            said = log.read_text(errors="replace")
            found = re.findall(r"^jars?-[a-z-]+: .*", said, re.M)
            raise TerminalError(
                found[-1].partition(":")[0] if found else "jars-failed",
                tried="fetch the jars of jars.lock with Spark's resolver",
                found=(found[-1].partition(": ")[2] if found else "it failed")
                + f" (all of it: {log})",
                changed="packages are installed; no unverified jar was put in place",
                next=[
                    "make setup",
                    "DRAINDOWN_IVY_SETTINGS=/path/to/ivysettings.xml make setup   # with your mirror",
                ],
            )

    def _archive(self):
        self._say("[6/6] Class-data archive, for a faster start of every job ...")
        log = self.work / "archive.log"
        with open(log, "w", encoding="utf-8") as out:
            command = [str(self.python), "-m", "draindown.spark.setup.class_archive"]
            done = subprocess.run(
                command,
                stdout=out,
                stderr=out,
                env=self._spark_environ(),
                cwd=self.work,
                check=False,
            )
        if done.returncode:  # without an archive jobs only start slower
            again = f"{self.python} -m draindown.spark.setup.class_archive"
            self._say(f"      not made, jobs start slower: {log}; to try again: {again}")

    def _spark_environ(self):
        return {
            **self._environ,
            "PYSPARK_PYTHON": str(self.python),
            "PYSPARK_DRIVER_PYTHON": str(self.python),
        }

    def _jars_in_place(self):
        given = self._environ.get("DRAINDOWN_JARS")
        placed = Path(given) if given else self.venv / "share/draindown/jars"
        try:  # written last, so it exists only if all jars do
            return (placed / "jars.lock").read_bytes() == (self.root / "jars.lock").read_bytes()
        except OSError:
            return False


def platform_tag(python):
    """Return the platform that a wheel must fit, in readable form: `Python 3.11 linux-x86_64
    glibc`.
    """
    ask = "import platform as p, sys, sysconfig as s; v = sys.version_info; print(v[0], v[1], sep='.', end=' ')"
    return (
        "Python "
        + quiet([python, "-c", f"{ask}; print(s.get_platform(), p.libc_ver()[0])"]).stdout.strip()
    )


@contextmanager
def only_one(work):
    """Make a second set-up wait for the first."""
    work.mkdir(exist_ok=True)
    with open(work / "setup.lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            print("Waiting for another set-up of this directory ...", flush=True)
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def main():
    """Run the set-up and print its progress. Exit with 78 and a clear message if a person must
    act.
    """
    started = time.monotonic()
    setup = Setup(ROOT, say=lambda line: print(line, flush=True))
    try:
        with only_one(setup.work):
            worked = setup.run()
    except TerminalError as error:
        print(error, file=sys.stderr)
        return NEEDS_PERSON
    except OSError as error:
        where = error.filename or ROOT
        print(f"setup-failed: {where}: {error.strerror or error}", file=sys.stderr)
        print(
            f"  next:    ls -ld {shlex.quote(str(where))}   # then make setup, which goes on",
            file=sys.stderr,
        )
        return NEEDS_PERSON
    except KeyboardInterrupt:
        print(
            "interrupted: nothing half-done counts as done; run it again to go on", file=sys.stderr
        )
        return 130
    if worked:
        print(f"Ready after {time.monotonic() - started:.0f} s. Next: make demo, or make test")
    return 0


if __name__ == "__main__":
    sys.exit(main())
