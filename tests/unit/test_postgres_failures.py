"""What a server says, as an error of draindown: who acts."""

from __future__ import annotations

import psycopg
import pytest

from draindown.sinks.port import SinkPlace
from draindown.sinks.postgres.failures import is_refusal, named

PLACE = SinkPlace("lake", "p", "f", "s")


def _of(state: str) -> psycopg.Error:
    return psycopg.errors.lookup(state)("what it said")


@pytest.mark.parametrize(
    ("state", "code"),
    [
        ("25P04", "sink-busy"),  # transaction_timeout
        ("25P03", "sink-busy"),
        ("55P03", "sink-busy"),
        ("57014", "sink-busy"),
        ("55000", "sink-unfit"),  # a table that publishes deletes and names no row
        ("40001", "sink-unreachable"),
        ("53300", "sink-full"),
        ("42501", "sink-denied"),
        ("23505", "sink-refused"),
        ("54000", "sink-refused"),
        ("21000", "sink-refused"),
    ],
)
def test_a_state_says_who_acts(state: str, code: str) -> None:
    assert named(_of(state), "send", PLACE).code == code
    assert is_refusal(_of(state)) == (code == "sink-refused")


@pytest.mark.parametrize(
    "host", ["10.0.0.1", "authentication-db", "password-vault", "certificates.example"]
)
@pytest.mark.parametrize(
    ("said", "code"),
    [
        ("Connection refused\n\tIs the server running on that host?", "sink-unreachable"),
        ("timeout expired", "sink-unreachable"),
        ("FATAL:  canceling authentication due to timeout", "sink-unreachable"),
        ('FATAL:  password authentication failed for user "x"', "sink-auth"),
        ("fe_sendauth: no password supplied", "sink-auth"),
        (
            'FATAL:  no pg_hba.conf entry for host "10.0.0.2", user "x", database "d", no encryption',
            "sink-auth",
        ),
        ('FATAL:  role "x" does not exist', "sink-auth"),
        ('FATAL:  role "x" is not permitted to log in', "sink-auth"),
        ("FATAL:  empty password returned by client", "sink-auth"),
        (
            'authentication method requirement "scram-sha-256" failed: server requested another',
            "sink-auth",
        ),
        ('FATAL:  database "d" does not exist', "sink-missing"),
        ("FATAL:  sorry, too many clients already", "sink-full"),
        ("SSL error: certificate verify failed", "sink-tls"),
    ],
)
def test_without_a_state_the_words_say_it_and_not_the_name_of_a_host(
    host: str, said: str, code: str
) -> None:
    text = f'connection failed: connection to server at "{host}", port 5432 failed: {said}'
    assert named(psycopg.OperationalError(text), "connect to", PLACE).code == code


@pytest.mark.parametrize("name", ["'password-vault'", '"authentication-db"'])
def test_a_host_that_no_name_server_knows_is_unreachable(name: str) -> None:
    text = f"failed to resolve host {name}: [Errno -3] Temporary failure in name resolution"
    assert named(psycopg.OperationalError(text), "connect to", PLACE).code == "sink-unreachable"
