"""Examination of the installation: jars, the class-data archive, the Spark master."""

from __future__ import annotations

import os
import re
import socket
import sys

from draindown.base.formatting import count
from draindown.doctor.model import Desk
from draindown.launch import jvm
from draindown.launch import settings as spark_settings
from draindown.launch.jar_lock import LOCK_NAME, locked_jars

_ANSWERS = 5.0
"""Seconds within which a master must accept a connection."""


def look_at_jars(desk: Desk) -> None:
    """Compare the jars on the class path with `jars.lock`."""
    directory = spark_settings.jar_dir()
    spark_settings.class_path()
    lock = directory / LOCK_NAME
    pinned = locked_jars(lock) if lock.is_file() else ()
    desk.say(
        "jars",
        f"{count(len(pinned))} verified in {directory}"
        if pinned
        else f"in {directory}, no {LOCK_NAME}",
    )
    if not pinned:
        desk.wrong("jars-unverified", "jars", f"no {lock} to verify them by", "make setup")
    for jar in pinned:
        path = directory / jar.file_name
        if not path.is_file():
            desk.wrong("jars-missing", "jars", f"no {path}", "make setup")
        elif not jar.is_at(path):
            desk.wrong(
                "jar-hash-mismatch",
                "jars",
                f"{path} has other bytes than {LOCK_NAME} names",
                "make setup",
            )


def look_at_master(desk: Desk) -> None:
    """Name the Spark master of the command line. Ask a standalone one whether it listens."""
    master = spark_settings.master()
    desk.say("master", master)
    for address in (
        re.findall(r"([^/,]+):([0-9]+)", master) if master.startswith("spark://") else ()
    ):
        try:
            socket.create_connection((address[0], int(address[1])), _ANSWERS).close()
        except OSError as error:
            found = f"nothing answers at {':'.join(address)}: {error}"
            desk.wrong(
                "cluster-gone",
                "master",
                found,
                "start the cluster's master, or unset DRAINDOWN_MASTER",
            )


def look_at_class_archive(desk: Desk) -> None:
    """Examine whether the JVM accepts the class-data archive."""
    archive, again = (
        spark_settings.class_archive(),
        f"{sys.executable} -m draindown.spark.setup.class_archive   # a minute",
    )
    if not archive.is_file():
        desk.say("class archive", "none")
        desk.note(
            "class-archive-missing",
            "class archive",
            f"no {archive}; every JVM starts slower",
            again,
        )
        return
    jvm.require()
    desk.say("class archive", str(archive))
    found = jvm.tried(archive)
    if found == "untried":
        desk.unlooked.append(
            "class archive: spark-submit does not start a JVM, or not within a minute"
        )
    if found == "ignored":
        text = f"no class is taken from {archive}: made by another Java or for other jars; JVMs start slower"
        # if the directory has files, no archive matches the class path
        if "SPARK_CONF_DIR" in os.environ:
            text, again = (
                f"SPARK_CONF_DIR keeps JVMs from {archive}: they start slower",
                "unset SPARK_CONF_DIR",
            )
        desk.note("class-archive-foreign", "class archive", text, again)
    if found == "fatal":
        desk.wrong("class-archive-torn", "class archive", f"no JVM starts with {archive}", again)
