"""The Kafka source in a pipeline file: what is refused and where, and what clients are told."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from confluent_kafka import KafkaError

from draindown.base.errors import TerminalError
from draindown.base.secrets import names_in, redacted, resolved
from draindown.config.kafka import KafkaCluster, KafkaSource
from draindown.config.kafka_sink import KafkaSink
from draindown.config.landing import FlowSpec
from draindown.config.loader import digest, load
from draindown.config.models import PipelineSpec
from draindown.lake.home import FlowHome
from draindown.planning import validation
from draindown.sinks.kafka import client as sink_client
from draindown.sinks.port import SinkPlace
from draindown.sources.kafka import client as source_client
from draindown.sources.kafka.options import of_java, of_librdkafka, secrets_of
from draindown.sources.kafka.source import Kafka
from draindown.sources.port import Failure

GOOD = """\
pipeline: events
lake: lake
flows:
  events:
    source:
      kafka: {topics: [a], bootstrap_servers: "127.0.0.1:9092"}
      format: json
    columns:
      user: {type: string not null, from: key}
      at: {type: timestamp not null, from: timestamp}
      n: int
    target: {keys: [user], sequence_by: [at]}
"""
KAFKA = 'kafka: {topics: [a], bootstrap_servers: "127.0.0.1:9092"}'


def loaded(tmp_path: Path, text: str) -> Any:
    path = tmp_path / "events.yaml"
    path.write_text(text)
    return load(path, {})


def test_a_kafka_flow_is_read_and_survives_its_own_json(tmp_path: Path) -> None:
    spec = loaded(tmp_path, GOOD)
    flow = spec.flows["events"]
    assert isinstance(flow.source, KafkaSource)
    assert {name: column.taken_from for name, column in flow.columns.items()} == {
        "user": "key",
        "at": "timestamp",
        "n": None,
    }
    assert list(flow.record_columns) == list(flow.as_recorded.columns) == ["n"]
    again = type(spec).model_validate_json(spec.model_dump_json())
    assert again == spec and digest(again) == digest(spec)


@pytest.mark.parametrize(
    ("old", "new", "place", "words"),
    [
        (
            KAFKA,
            KAFKA.replace("topics: [a]", "topics: []"),
            "6:15: flows.events.source.kafka.topics",
            "needed",
        ),
        (
            KAFKA,
            KAFKA.replace("[a]", "[a, b, a]"),
            "6:15: flows.events.source.kafka.topics",
            "twice",
        ),
        (
            KAFKA,
            KAFKA.replace("[a]", '["a b"]'),
            "6:24: flows.events.source.kafka.topics[0]",
            "no topic",
        ),
        (
            KAFKA,
            KAFKA.replace("topics: [a]", 'topic_pattern: "a["'),
            "6:30: flows.events.source.kafka.topic_pattern",
            "regular",
        ),
        (
            KAFKA,
            KAFKA.replace(":9092", ""),
            "flows.events.source.kafka.bootstrap_servers",
            "no list of brokers",
        ),
        (
            KAFKA,
            KAFKA.replace("}", ", group_id: x}"),
            "flows.events.source.kafka.group_id",
            "unknown key",
        ),
        (
            KAFKA,
            KAFKA.replace("}", ", sasl_username: x}"),
            "flows.events.source.kafka.sasl_username",
            "sasl_",
        ),
        (
            KAFKA,
            KAFKA.replace("}", ", ssl_ca_location: x}"),
            "flows.events.source.kafka.ssl_ca_location",
            "ssl",
        ),
        ("format: json", "format: csv", "7:15: flows.events.source.format", "'json' or 'text'"),
        ("format: json", "format: json\n      files: x", "flows.events.source", "exactly one of"),
        (
            KAFKA,
            KAFKA.replace("{", '{topic_pattern: "a.*", '),
            "6:15: flows.events.source.kafka.topic_pattern",
            "excludes topics: keep one of the two",
        ),
        (
            KAFKA,
            KAFKA.replace("{", "{starting_offsets: soon, "),
            "6:33: flows.events.source.kafka.starting_offsets",
            "earliest",
        ),
        (
            "format: json",
            "format: json\n      fail_on_data_loss: false",
            "8:7: flows.events.source",
            "unknown key",
        ),
        ("from: key", "from: kay", "9:7: flows.events.columns.user", "header:NAME"),
        ("from: key", 'from: "User Id"', "9:7: flows.events.columns.user", 'from: "field:User Id"'),
        ("from: key", 'from: "field:"', "9:7: flows.events.columns.user", "is empty"),
        ("from: key", 'from: "header:"', "9:7: flows.events.columns.user", "header:NAME"),
        (
            "timestamp not null, from",
            "date not null, from",
            "10:7: flows.events.columns.at",
            "is timestamp",
        ),
        (
            "{type: string not null, from: key}",
            "{type: string}",
            "9:13: flows.events.columns.user",
            "from: key",
        ),
    ],
)
def test_what_can_not_work_is_refused_at_its_place(
    tmp_path: Path, old: str, new: str, place: str, words: str
) -> None:
    assert GOOD.count(old) == 1
    with pytest.raises(TerminalError) as found:
        loaded(tmp_path, GOOD.replace(old, new))
    assert found.value.code == "invalid-pipeline"
    assert place in found.value.found and words in found.value.found


@pytest.mark.parametrize("value", ["hunter2", "${secret:A}x", "${secret:}"])
def test_a_password_is_a_reference_and_is_never_shown(tmp_path: Path, value: str) -> None:
    sasl = f', security_protocol: sasl_ssl, sasl_mechanism: PLAIN, sasl_username: u, sasl_password: "{value}"}}'
    with pytest.raises(TerminalError) as found:
        loaded(tmp_path, GOOD.replace(KAFKA, KAFKA.replace("}", sasl)))
    assert found.value.code == "invalid-pipeline"
    assert "hunter2" not in str(found.value)


def test_of_files_and_with_field_a_column_is_taken_from_a_field(tmp_path: Path) -> None:
    flow = loaded(tmp_path, GOOD.replace(KAFKA, "files: landing/*")).flows["events"]
    assert flow.fields["user"] == "key" and "timestamp" in flow.as_recorded.columns
    flow = loaded(tmp_path, GOOD.replace("from: key", 'from: "field:User Id"')).flows["events"]
    assert flow.fields["user"] == "User Id" and list(flow.as_recorded.columns) == ["User Id", "n"]
    assert list(flow.record_columns) == ["user", "n"]


KEY, AT = (
    {"type": "string not null", "from": "key"},
    {"type": "timestamp not null", "from": "timestamp"},
)
OFFSET = {"type": "bigint not null", "from": "offset"}


@pytest.mark.parametrize(
    ("keys", "order", "deletes"),
    [
        (["user"], ["at"], True),
        (["user"], ["at", "offset"], True),
        (["user"], ["offset"], False),
        (["user"], ["offset", "at"], False),
        (["user"], ["own"], False),
        (["user"], ["at", "own"], False),
        (["user", "own"], ["at"], False),
        ([], [], False),
    ],
)
def test_a_null_value_deletes_where_key_and_time_name_what(
    keys: list[str], order: list[str], deletes: bool
) -> None:
    source = {"kafka": {"topics": ["a"], "bootstrap_servers": "h:1"}, "format": "json"}
    columns = {"user": KEY, "at": AT, "offset": OFFSET, "own": "int not null"}
    target = {"keys": keys, "sequence_by": order} if keys else {}
    flow = FlowSpec.model_validate({"source": source, "columns": columns, "target": target})
    assert flow.deletes_by_null is deletes
    assert flow.refuses_null_of_keys is ("user" in keys and not deletes)


@pytest.mark.parametrize(("order", "told"), [("at", []), ("own", ["null-value-refused"])])
def test_validate_tells_beforehand_that_a_null_value_deletes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, told: list[str]
) -> None:
    source = {"kafka": {"topics": ["a"], "bootstrap_servers": "h:1"}, "format": "json"}
    columns = {"user": KEY, "at": AT, "own": "int not null"}
    flow = {
        "source": source,
        "columns": columns,
        "target": {"keys": ["user"], "sequence_by": [order]},
    }
    spec = PipelineSpec.model_validate(
        {"pipeline": "p", "lake": str(tmp_path), "flows": {"f": flow}}
    )
    assert [warning.code for warning in validation.warnings(spec, tmp_path, strict=False)] == told


CLUSTER = {
    "topics": ["a"],
    "bootstrap_servers": "h:1",
    "security_protocol": "sasl_ssl",
    "sasl_mechanism": "SCRAM-SHA-512",
    "sasl_username": 'us"er',
    "sasl_password": "${secret:WORD}",
}
ENVIRON = {"DRAINDOWN_SECRET_WORD": 'pa"ss\\word'}


def test_clients_get_the_secret_and_the_spec_keeps_the_reference(tmp_path: Path) -> None:
    ca = tmp_path / "ca.pem"
    ca.write_text("-----BEGIN CERTIFICATE-----\n")
    cluster = KafkaCluster.model_validate(CLUSTER | {"ssl_ca_location": str(ca)})
    assert ENVIRON["DRAINDOWN_SECRET_WORD"] not in cluster.model_dump_json()
    assert of_librdkafka(cluster, ENVIRON)["sasl.password"] == ENVIRON["DRAINDOWN_SECRET_WORD"]
    java = of_java(cluster, ENVIRON)
    assert java["sasl.jaas.config"].endswith(
        'required username="us\\"er" password="pa\\"ss\\\\word";'
    )
    assert java["ssl.truststore.certificates"] == "-----BEGIN CERTIFICATE-----\n"
    assert java["security.protocol"] == "SASL_SSL"


HOSTS = ("kafka-1.inner", "k2", "10.7.7.7", "fd00::7")
BROKERS = "kafka-1.inner:9092, SASL_SSL://k2:9093,10.7.7.7:9094,[fd00::7]:9095"
HIDDEN = {
    "DRAINDOWN_SECRET_KAFKA": BROKERS,
    "DRAINDOWN_SECRET_USER": "svc-account",
    "DRAINDOWN_SECRET_WORD": "word",
}
AT_SECRETS = CLUSTER | {"bootstrap_servers": "${secret:KAFKA}", "sasl_username": "${secret:USER}"}
SAID = (
    "sasl_ssl://kafka-1.inner:9092/bootstrap: Connect to ipv4#10.9.9.9:9092 failed: Connection refused",
    "kafka-1.inner:9092/1: Failed to resolve 'kafka-1.inner:9092': Name or service not known (after 3ms)",
    "sasl_ssl://k2:9093/bootstrap: SSL handshake failed: certificate verify failed",
    "10.7.7.7:9094/bootstrap: Connect to ipv4#10.7.7.7:9094 failed: Connection timed out",
    "[fd00::7]:9095/bootstrap: Connect to ipv6#[fd00::7]:9095 failed: No route to host",
    "SASL authentication error: user svc-account: Authentication failed",
    "TimeoutException: Connection to node -1 (kafka-1.inner/10.9.9.9:9092) could not be established",
    "ConfigException: Invalid url in bootstrap.servers: SASL_SSL://k2:9093",
)


@pytest.mark.parametrize("text", SAID)
def test_texts_of_clients_do_not_show_brokers_that_are_a_secret(text: str) -> None:
    shown = redacted(text, secrets_of(KafkaCluster.model_validate(AT_SECRETS), HIDDEN))
    assert "***" in shown and not any(word in shown for word in (*HOSTS, "svc-account"))
    plain = KafkaCluster.model_validate(
        CLUSTER | {"bootstrap_servers": "kafka-1.inner:9092,k2:9093,10.7.7.7:9094"}
    )
    assert redacted(text, secrets_of(plain, HIDDEN)) == text, (
        "what the file says in the open is shown"
    )


def test_no_error_of_a_client_shows_brokers_that_are_a_secret(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    hidden = {"DRAINDOWN_SECRET_KAFKA": "127.0.0.7:1"}
    cluster = {"topics": ["a"], "bootstrap_servers": "${secret:KAFKA}"}
    text = "x" * 395 + " 127.0.0.7:1/bootstrap: Connect to ipv4#127.0.0.7:1 failed"
    codes = (
        KafkaError._TRANSPORT,
        KafkaError._AUTHENTICATION,
        KafkaError._SSL,
        KafkaError.TOPIC_AUTHORIZATION_FAILED,
    )
    found = []
    for code in codes:
        reader = source_client.Client(
            KafkaSource.model_validate({"kafka": cluster, "format": "json"}), hidden
        )
        reader._heard.append(KafkaError(code, text))
        found.append(reader._explained("look", TimeoutError()))
        sink = KafkaSink.model_validate({"topic": "a", "bootstrap_servers": "${secret:KAFKA}"})
        sender = sink_client.Client(sink, SinkPlace("l", "p", "f", "s"), hidden)
        found.append(sender.named(KafkaError(code, text)))
    monkeypatch.setenv(*next(iter(hidden.items())))
    flow = KafkaSource.model_validate({"kafka": cluster, "format": "json"})
    made = Kafka(flow, FlowHome(str(tmp_path), "p", "f", "t"), tmp_path, "r")
    found += [made.read_failed(Failure(kind, text), []) for kind in ("refused", "away")]
    assert len({error.code for error in found}) >= 6
    assert not any("127.0.0." in str(error.as_dict()) for error in found)


def test_no_client_gets_a_group_or_reads_what_is_not_committed() -> None:
    cluster = KafkaCluster.model_validate({"topics": ["a"], "bootstrap_servers": "h:1"})
    assert not {name for name in (*of_java(cluster), *of_librdkafka(cluster)) if "group" in name}


def test_a_certificate_that_is_not_there_is_named(tmp_path: Path) -> None:
    cluster = KafkaCluster.model_validate(CLUSTER | {"ssl_ca_location": str(tmp_path / "none.pem")})
    with pytest.raises(TerminalError) as found:
        of_java(cluster, ENVIRON)
    assert found.value.code == "kafka-tls"


def test_a_secret_is_looked_up_in_the_environment_then_in_files(tmp_path: Path) -> None:
    (tmp_path / "A").write_text("from file\n")
    files = {"DRAINDOWN_SECRETS": str(tmp_path)}
    assert resolved("x ${secret:A} y", files) == "x from file y"
    assert (
        resolved("${secret:A}", files | {"DRAINDOWN_SECRET_A": "from environment"})
        == "from environment"
    )
    assert names_in("${secret:A} and ${secret:B}") == ["A", "B"]
    for environ in ({}, files):
        with pytest.raises(TerminalError) as found:
            resolved("${secret:B}", environ)
        assert found.value.code == "secret-missing"
