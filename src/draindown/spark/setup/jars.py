"""Fetch and verify the jars that Spark needs beside PyPI's pyspark, pinned in `jars.lock`.

`python -m draindown.spark.setup.jars fetch [jars.lock]` installs them, `... verify` verifies their
hashes. Spark's own Ivy resolver downloads them, from the mirrors in `spark-defaults.conf`
(`spark.jars.ivySettings`, `spark.jars.repositories`) or in the file that `DRAINDOWN_IVY_SETTINGS`
names.
"""

from __future__ import annotations

import os
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from urllib.parse import urlsplit

from py4j.protocol import Py4JError
from pyspark.errors import PySparkException
from pyspark.sql import SparkSession

from draindown.base.errors import TerminalError
from draindown.base.exits import Exit, exit_for
from draindown.launch.jar_lock import LOCK_NAME, LockedJar, locked_jars, sha256_of
from draindown.launch.settings import jar_dir

__all__ = [
    "LockedJar",
    "cache_dir",
    "fetch",
    "jar_dir",
    "locked_jars",
    "main",
    "spark_resolver",
    "verify",
]
Resolver = Callable[[Sequence[LockedJar], Path], Mapping[LockedJar, Path]]
"""Downloads jars into a scratch directory. Returns the path of each jar; a jar that was not found
is absent.
"""


def cache_dir() -> Path:
    """Return the directory in the user's cache that keeps verified jars for other clones."""
    given = os.environ.get("XDG_CACHE_HOME", "")
    base = Path(given) if Path(given).is_absolute() else Path.home() / ".cache"
    return base / "draindown" / "jars"


def verify(target: Path | None = None, lock: Path | None = None) -> tuple[LockedJar, ...]:
    """Verify the hash of every locked jar in `target`, and return the jars.

    Raises TerminalError `jars-missing` or `jar-hash-mismatch`.
    """
    directory = target or jar_dir()
    jars = locked_jars(lock or directory / LOCK_NAME)
    absent = [jar.file_name for jar in jars if not (directory / jar.file_name).is_file()]
    if absent:
        raise TerminalError(
            "jars-missing",
            tried=f"verify the jars in {directory}",
            found=f"no {', '.join(absent)}",
            next="make setup",
        )
    for jar in jars:
        _require_hash(directory / jar.file_name, jar, from_where=str(directory))
    return jars


def fetch(
    lock: Path,
    target: Path | None = None,
    *,
    resolve: Resolver | None = None,
    say: Callable[[str], None] = print,
) -> tuple[LockedJar, ...]:
    """Install every locked jar into `target`, and return the jars. Idempotent.

    A jar that is in `target` with the right hash is kept; others come from the user's cache, else
    from `resolve`. Each file is verified and then placed atomically; a copy of the lock file is
    placed last.

    Raises TerminalError `jar-unresolved` or `jar-hash-mismatch`.
    """
    directory = target or jar_dir()
    jars = locked_jars(lock)
    directory.mkdir(parents=True, exist_ok=True)
    for jar in jars:
        if not jar.is_at(directory / jar.file_name) and jar.is_at(_cached(jar)):
            _place(_cached(jar), directory / jar.file_name)
    missing = [jar for jar in jars if not jar.is_at(directory / jar.file_name)]
    if missing:
        say(
            f"fetching {len(missing)} jars ({sum(jar.size for jar in missing) / 1e6:.0f} MB) with Spark's resolver"
        )
        _fetch_missing(missing, directory, resolve or spark_resolver)
    _drop_unlocked(directory, jars)
    _place(lock, directory / LOCK_NAME)
    return jars


def _fetch_missing(missing: Sequence[LockedJar], directory: Path, resolve: Resolver) -> None:
    with tempfile.TemporaryDirectory(prefix="draindown-jars-") as scratch:
        found = resolve(missing, Path(scratch))
        absent = [jar.coordinates for jar in missing if jar not in found]
        if absent:
            raise _unresolved(absent, "the resolver left no file")
        for jar in missing:  # verify all before the first is placed: a bad mirror changes nothing
            _require_hash(
                found[jar],
                jar,
                from_where="Spark's resolver, which looks in ~/.m2/repository first",
            )
        for jar in missing:
            _place(found[jar], directory / jar.file_name)
            with suppress(OSError):  # the cache is optional
                _place(found[jar], _cached(jar))


def spark_resolver(jars: Sequence[LockedJar], scratch: Path) -> dict[LockedJar, Path]:
    """Download `jars` without their dependencies, in a Spark session of its own."""
    spark = _throw_away_session(scratch)
    try:
        for jar in jars:
            spark.sql(f"ADD JAR ivy://{jar.coordinates}?transitive=false")
    except (Py4JError, PySparkException) as error:
        raise _unresolved([jar.coordinates], _first_reason(str(error))) from error
    finally:
        spark.stop()
    places = {jar: scratch / "jars" / f"{jar.group}_{jar.file_name}" for jar in jars}
    return {jar: path for jar, path in places.items() if path.is_file()}


def _throw_away_session(scratch: Path) -> SparkSession:
    # loopback only, no UI: the JVM lives for one download
    builder = (
        SparkSession.builder.appName("draindown jars")
        .master("local[1]")
        .config("spark.ui.enabled", "false")
        .config("spark.driver.host", "127.0.0.1")
        .config("spark.driver.bindAddress", "127.0.0.1")
        .config("spark.log.level", "ERROR")
        .config("spark.sql.warehouse.dir", str(scratch / "warehouse"))
        .config("spark.jars.ivy", str(scratch))
    )
    settings = os.environ.get("DRAINDOWN_IVY_SETTINGS")
    if settings:
        builder = builder.config("spark.jars.ivySettings", settings)
    proxy = proxy_options(os.environ)
    if proxy:
        builder = builder.config("spark.driver.extraJavaOptions", " ".join(proxy))
    return builder.getOrCreate()


def proxy_options(environ: Mapping[str, str]) -> list[str]:
    """Return JVM options for the proxy environment variables, which a JVM does not read by
    itself.
    """
    options = []
    for scheme in ("http", "https"):
        value = environ.get(f"{scheme}_proxy") or environ.get(f"{scheme.upper()}_PROXY")
        proxy = urlsplit(value if value and "://" in value else f"//{value or ''}")
        if proxy.hostname:
            options += [
                f"-D{scheme}.proxyHost={proxy.hostname}",
                f"-D{scheme}.proxyPort={proxy.port or 80}",
            ]
    direct = environ.get("no_proxy") or environ.get("NO_PROXY")
    if options and direct:
        hosts = [
            f"*{host}" if host.startswith(".") else host
            for host in re.split(r"[,\s]+", direct.strip())
            if host
        ]
        options.append(f"-Dhttp.nonProxyHosts={'|'.join(hosts)}")
    return options


def _unresolved(coordinates: Iterable[str], reason: str) -> TerminalError:
    return TerminalError(
        "jar-unresolved",
        tried=f"fetch {', '.join(coordinates)} with Spark's resolver",
        found=reason,
        changed="jars fetched before are kept in place, verified",
        next=[
            "make setup                                # with a network",
            "DRAINDOWN_IVY_SETTINGS=ivysettings.xml make setup   # with your mirror",
        ],
    )


def _first_reason(text: str) -> str:
    """Return the line of the resolver's output that names the cause."""
    lines = [line.strip(" :\t") for line in text.splitlines() if line.strip(" :\t")]
    named = [line for line in lines if "unresolved dependency" in line or "Exception" in line]
    return (named or lines or ["no reason given"])[0][:300]


def _require_hash(path: Path, jar: LockedJar, *, from_where: str) -> None:
    if not jar.is_at(path):
        raise TerminalError(
            "jar-hash-mismatch",
            tried=f"verify {jar.coordinates} from {from_where}",
            found=f"{path.stat().st_size} bytes with SHA-256 {sha256_of(path)}, "
            f"{LOCK_NAME} says {jar.size} bytes and {jar.sha256}",
            changed="no unverified jar was put in place",
            next=[
                "make setup   # after removing the wrong file from the mirror, or from ~/.m2/repository"
            ],
        )


def _cached(jar: LockedJar) -> Path:
    return cache_dir() / f"{jar.sha256[:16]}-{jar.file_name}"


def _place(source: Path, destination: Path) -> None:
    """Copy a file atomically: a reader sees the whole file or none."""
    destination.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(prefix=".incoming-", dir=destination.parent)
    os.close(handle)
    try:
        shutil.copyfile(source, name)
        Path(name).chmod(0o644)
        Path(name).replace(destination)
    except BaseException:
        Path(name).unlink(missing_ok=True)
        raise


def _drop_unlocked(directory: Path, jars: Iterable[LockedJar]) -> None:
    """Remove jars of the previous lock that are not in the new one. Other files are kept."""
    keep = {jar.file_name for jar in jars}
    with suppress(TerminalError):  # no lock, or a damaged one, which is about to be replaced
        for old in locked_jars(directory / LOCK_NAME):
            if old.file_name not in keep:
                (directory / old.file_name).unlink(missing_ok=True)


def main(arguments: Sequence[str]) -> int:
    """Run `fetch [LOCK]` or `verify [LOCK]`. Prints the result or the error, returns the exit
    code.
    """
    verb, *rest = arguments or ("",)
    lock = Path(rest[0]) if rest else None
    if verb not in ("fetch", "verify") or len(rest) > 1:
        print(
            "usage: python -m draindown.spark.setup.jars fetch|verify [jars.lock]", file=sys.stderr
        )
        return Exit.USAGE
    try:
        jars = verify(lock=lock) if verb == "verify" else fetch(lock or Path(LOCK_NAME))
    except TerminalError as error:
        print(error, file=sys.stderr)
        return exit_for(error)
    print(f"{len(jars)} jars verified in {jar_dir()}")
    return Exit.DONE


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
