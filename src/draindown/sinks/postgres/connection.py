"""A connection to Postgres whose every wait is bounded, and whose secrets are in no text."""

from __future__ import annotations

import os
import re
import socket
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

from draindown.base.errors import DraindownError, TerminalError
from draindown.base.secrets import names_in, resolved
from draindown.config.postgres_sink import PostgresSink
from draindown.sinks.port import SinkPlace
from draindown.sinks.postgres import failures

if TYPE_CHECKING:
    import psycopg

_CONNECT = 10  # seconds
_SLACK = 5.0  # seconds after which a server that should have given up by itself counts as silent
_SETTINGS = """select set_config('statement_timeout', %(wait)s, false), set_config('lock_timeout', %(wait)s, false),
    set_config('idle_in_transaction_session_timeout', %(wait)s, false), set_config('TimeZone', 'UTC', false),
    set_config('DateStyle', 'ISO', false),
    (select set_config(name, '0', false) from pg_settings where name = 'transaction_timeout'),
    set_config('synchronous_commit', case current_setting('synchronous_commit') when 'off' then 'on'
        else current_setting('synchronous_commit') end, false)"""


class Connection:
    """At most one connection, made when it is needed. After an error the next use makes another.

    Construction raises TerminalError `sink-client-missing`. Blocks of `step` raise what `failures`
    names.
    """

    def __init__(
        self, spec: PostgresSink, place: SinkPlace, environ: Mapping[str, str] = os.environ
    ) -> None:
        self._spec, self._place, self._environ = spec, place, environ
        self._client = _library()
        self._open: psycopg.Connection[Any] | None = None
        self._secrets: tuple[str, ...] = ()
        self._watch: _Watch | None = None

    @contextmanager
    def step(
        self, tried: str, changed: str = failures.NOT_BEGUN
    ) -> Iterator[psycopg.Connection[Any]]:
        """Give a connection to a block that ends within a bit more than `timeout`.

        `changed`: what the table has of a batch if the connection breaks in the block.
        """
        tried, wait = f"{tried} {self._spec.place}", self._spec.timeout + _SLACK
        watch = None
        try:
            opened = self._opened()
            with _Watch(opened, wait) as watch:
                self._watch = watch
                yield opened
        except self._client.Error as error:
            self.close()
            if watch is not None and watch.is_late:
                raise failures.silent(tried, wait, self._place, changed) from error
            raise self.named(error, tried, changed) from error
        except BaseException:  # the state of the connection is unknown
            self.close()
            raise
        finally:
            self._watch = None

    def again(self) -> None:
        """Have a block of `step` begin anew with its time, as it does before each statement that
        may take `timeout`.
        """
        if self._watch is not None:
            self._watch.begin()

    def named(
        self, error: psycopg.Error, tried: str, changed: str = failures.NOT_BEGUN
    ) -> DraindownError:
        """Return the error that a client's error stands for."""
        return failures.named(error, tried, self._place, self._secrets, changed)

    def close(self) -> None:
        """Close the connection, if there is one. What was not committed is undone by the server."""
        opened, self._open = self._open, None
        if opened is not None:
            with suppress(self._client.Error):
                opened.close()

    def _opened(self) -> psycopg.Connection[Any]:
        if self._open is None:
            made = self._client.connect(**self._parameters(), autocommit=True)
            made.prepare_threshold = None  # poolers don't keep prepared statements
            made.isolation_level = self._client.IsolationLevel.READ_COMMITTED
            self._open = made
            with _Watch(made, self._spec.timeout + _SLACK):
                made.execute(_SETTINGS, {"wait": f"{self._spec.timeout}s"})
        return self._open

    def _parameters(self) -> dict[str, Any]:
        """Return libpq's parameters. Raises TerminalError `secret-missing` or `sink-options`."""
        url = self._spec.url
        names = names_in(url)
        whole = url == "${secret:%s}" % (names[0] if names else "")
        values = {name: resolved(f"${{secret:{name}}}", self._environ) for name in names}
        text = re.sub(
            r"\$\{secret:(\w+)\}",
            lambda at: values[at[1]] if whole else quote(values[at[1]], safe=""),
            url,
        )
        try:
            if not text.startswith(("postgresql://", "postgres://")):
                raise ValueError
            found = self._client.conninfo.conninfo_to_dict(text)
        except (self._client.Error, ValueError):
            raise TerminalError(  # the client's text may have the password
                "sink-options",
                tried=f"read the url of {self._spec.place}",
                found="it is no URL such as postgresql://USER:PASSWORD@HOST:PORT/DATABASE; its text is not shown",
                next="draindown validate   # correct `url`, or the secret it refers to",
            ) from None
        own = (str(found[name]) for name in ("password", "sslpassword") if found.get(name))
        self._secrets = (*values.values(), *own)
        defaults = {
            "application_name": "draindown",
            "connect_timeout": min(_CONNECT, self._spec.timeout),
        }
        keep = {"keepalives_idle": 30, "keepalives_interval": 10, "keepalives_count": 3}
        return {**defaults, **keep, **found, "client_encoding": "utf8"}


class _Watch:
    """Breaks the connection if a block takes longer: a frozen server keeps its sockets open, and
    clients wait.

    `begin` has the time begin anew. `is_late`: whether the connection was broken.
    """

    def __init__(self, opened: psycopg.Connection[Any], seconds: float) -> None:
        self._handle, self._seconds, self.is_late = opened.fileno(), seconds, False
        self._timer: threading.Timer | None = None

    def __enter__(self) -> _Watch:
        self.begin()
        return self

    def __exit__(self, *_: object) -> None:
        self._end()

    def begin(self) -> None:
        self._end()
        self._timer = threading.Timer(self._seconds, self._cut)
        self._timer.daemon = True
        self._timer.start()

    def _end(self) -> None:
        if self._timer is not None:
            self._timer.cancel()

    def _cut(self) -> None:
        self.is_late = True
        with suppress(OSError), socket.socket(fileno=os.dup(self._handle)) as shared:
            shared.shutdown(socket.SHUT_RDWR)


def _library() -> Any:
    """Return the client's module. It is imported where it is used: flows without Postgres do not
    need it.
    """
    try:
        import psycopg
    except ImportError as error:
        raise TerminalError(
            "sink-client-missing",
            tried="import psycopg",
            found=str(error),
            next="pip install 'draindown[postgres]'",
        ) from error
    return psycopg
