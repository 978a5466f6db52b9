"""The sinks of a flow: where a batch goes beside its table, which rows, and under which
names.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any, Literal

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    Tag,
    WithJsonSchema,
    model_validator,
)

from draindown.base.digests import Meaning, digest
from draindown.config import expression_names
from draindown.config.base import Model, Problem, refuse, repeated
from draindown.config.kafka_sink import KafkaSink
from draindown.config.names import (
    LISTED_FORM,
    RENAMED_FORM,
    ColumnName,
    Expression,
    chosen_form,
    is_own,
    unlike,
)
from draindown.config.postgres_sink import PostgresSink
from draindown.config.sink import SinkSpec

SINKS: Mapping[str, type[SinkSpec]] = {"postgres": PostgresSink, "kafka": KafkaSink}
"""The kinds of sinks by the name of their part. A new kind is one more entry, and one field
below.
"""
ORIGIN_KEY = "_origin"
"""The key of a row of an append table in a sink: `unit:position` of the record that it came
from.
"""
QUARANTINED: Mapping[str, str] = {
    "quarantine_id": "string",
    "input": "string",
    "position": "bigint",
    "arrived_at": "timestamp",
    "raw": "string",
    "reason": "string",
    "field": "string",
    "detail": "string",
}
"""The columns of a quarantined row as a sink gets it, and their types. `quarantine_id` is the key."""
_BETWEEN = "put a derived flow between, which reads published rows only, and give it the sink"
_OTHER_DATABASES = {
    *(
        "bigquery",
        "elasticsearch",
        "iceberg",
        "jdbc",
        "mariadb",
        "mongodb",
        "mssql",
        "mysql",
        "oracle",
    ),
    *(
        "redis",
        "redshift",
        "snowflake",
        "sqlite",
        "sqlserver",
        "http",
        "webhook",
        "kinesis",
        "pubsub",
        "s3",
    ),
}
_MAY_FAIL = frozenset(
    ("best_effort", "ignore_errors", "may_fail", "on_error", "on_failure", "optional", "required")
)
_AVRO = "values are JSON: leave it out, and have a consumer of the topic write another format"
_NOT_ASIDE = (
    f"a sink that fails ends its batch, so that it lacks nothing: leave it out, or {_BETWEEN}"
)


def _sink_name(name: str) -> str:
    if not name or len(name) > 255 or not name.isprintable():
        raise ValueError(f"{name!r} is no name of a column at the sink")
    return name


SinkName = Annotated[
    str,
    AfterValidator(_sink_name),
    WithJsonSchema({"type": "string", "minLength": 1, "maxLength": 255}),
]


SentColumns = Annotated[
    Annotated[list[ColumnName], Tag(LISTED_FORM)]
    | Annotated[dict[ColumnName, SinkName], Tag(RENAMED_FORM)],
    Discriminator(chosen_form),
]


class FlowSink(Model):
    """One sink of a flow."""

    model_config = ConfigDict(serialize_by_alias=True)

    postgres: PostgresSink | None = Field(
        default=None, description="A table of a Postgres database."
    )
    kafka: KafkaSink | None = Field(default=None, description="A topic of a Kafka cluster.")
    where: Expression | None = Field(
        default=None,
        description="SQL condition over the columns of the table: the rows that the sink holds; absent: all.",
        examples=["flagged"],
    )
    columns: SentColumns | None = Field(
        default=None,
        description="The columns that are sent, as a list, or with the names that they get; absent: all.",
        examples=[["payment_id", "amount"], {"payment_id": "id"}],
    )
    taken_from: Literal["table", "quarantine"] = Field(
        default="table",
        alias="from",
        description="What is sent: rows that a batch applies to the table, or each quarantined row once.",
    )

    @model_validator(mode="before")
    @classmethod
    def _impossible(cls, given: Any) -> Any:
        refuse(list(_impossible(given)) if isinstance(given, dict) else [])
        return given

    @model_validator(mode="after")
    def _combination(self) -> FlowSink:
        given = [name for name in SINKS if getattr(self, name) is not None]
        if len(given) != 1:
            choices = " or ".join(SINKS)
            refuse(
                [
                    (
                        (),
                        f"has {' and '.join(given)}: keep one"
                        if given
                        else f"needs one of {choices}: where rows go",
                    )
                ]
            )
        names = list(self.columns or ())
        refuse([(("columns",), f"names {twice!r} twice") for twice in repeated(names)])
        if isinstance(self.columns, dict):
            twice = repeated(list(self.columns.values()))
            refuse([(("columns",), f"sends two columns as {name!r}") for name in twice])
            refuse(
                [
                    (("columns", n), "_fate is draindown's own")
                    for n, to in self.columns.items()
                    if to == "_fate"
                ]
            )
        return self

    @property
    def kind(self) -> str:
        """The kind of sink: its key in `SINKS`."""
        return next(name for name in SINKS if getattr(self, name) is not None)

    @property
    def part(self) -> SinkSpec:
        """The options of the sink's kind."""
        found: SinkSpec = getattr(self, self.kind)
        return found

    @property
    def delivered(self) -> str:
        """How often a row may arrive."""
        return self.part.delivered

    @property
    def is_of_refused(self) -> bool:
        """Whether the sink gets quarantined rows."""
        return self.taken_from == "quarantine"

    def named(self, table: Sequence[str], keys: Sequence[str]) -> dict[str, str]:
        """Return the columns that are sent, keys first, each with its name at the sink.

        `table`: the columns of the table, from which those of draindown are left out unless they
        are keys.
        """
        chosen = self.columns or [name for name in table if not is_own(name)]
        renamed = chosen if isinstance(chosen, dict) else {name: name for name in chosen}
        return {key: renamed.get(key, key) for key in keys} | {
            n: to for n, to in renamed.items() if n not in keys
        }

    def fingerprint(self, keys: Sequence[str], zone: str) -> str:
        """Return a hash of what decides which rows the sink holds, of which columns, and where.

        `zone`: the time zone in which `where` is evaluated.
        """
        columns = self.columns
        named = dict(zip(columns, columns, strict=True)) if isinstance(columns, list) else columns
        said: Meaning = {
            "kind": self.kind,
            "target": self.part.meaning(),
            "from": "quarantine" if self.is_of_refused else "table",
            "where": self.where,
            "zone": None if self.where is None else zone,
            "columns": None if named is None else list(named.items()),
            "keys": list(keys),
        }
        return digest(said)[:16]


def _impossible(given: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield what is asked of a sink that none can do, each with the way out."""
    for key in map(str, given):
        if key == "after":
            yield (key,), f"rows are sent before the gate judges them; {_BETWEEN}"
        elif key in ("format", "value_format", "key_format", "schema_registry"):
            yield (key,), _AVRO
        elif key in _MAY_FAIL:
            yield (key,), _NOT_ASIDE
        elif key.lower() in _OTHER_DATABASES:
            yield (
                (key,),
                f"no such sink: {' or '.join(SINKS)}; what another system needs it can read from a topic",
            )


def problems(
    sinks: Mapping[str, FlowSink],
    keys: Sequence[str],
    table: Sequence[str] | None,
    *,
    refuses: bool,
) -> Iterator[Problem]:
    """Yield what can't work of the sinks of a flow.

    `keys`: those of its target; none where it appends. `table`: its columns; None if only a run
    shows them. `refuses`: whether the flow has a quarantine.
    """
    for name, sink in sinks.items():
        place = ("sinks", name)
        if sink.is_of_refused and not refuses:
            yield (
                (*place, "from"),
                "quarantine: a derived flow refuses no rows; give the sink to the flow that it reads",
            )
            continue
        own = ["quarantine_id"] if sink.is_of_refused else list(keys)
        known = list(QUARANTINED) if sink.is_of_refused else table
        yield from ((place + where, why) for where, why in _column_problems(sink, known, own))


def _column_problems(
    sink: FlowSink, known: Sequence[str] | None, keys: Sequence[str]
) -> Iterator[Problem]:
    if sink.where is not None:
        scope = None if known is None else known
        for problem in expression_names.problems(sink.where, scope):
            yield ("where",), problem
    if sink.columns is None:
        return
    for at, column in enumerate(sink.columns):
        at_list = ("columns", str(at) if isinstance(sink.columns, list) else column)
        if known is not None and column not in known:
            yield at_list, f"there is no column {column!r}{unlike(column, list(known))}"
    sent = sink.columns.values() if isinstance(sink.columns, dict) else sink.columns
    placed = [name for name in getattr(sink.part, "partition_by", None) or () if name not in sent]
    if placed:
        yield (
            ("columns",),
            f"lacks {', '.join(placed)}, which partition_by names: it takes the names at the sink",
        )
    missing = [key for key in keys if key not in sink.columns]
    if missing:
        yield ("columns",), f"lacks {', '.join(missing)}: the sink's keys are those of the table"


def expressions(sinks: Mapping[str, FlowSink]) -> dict[tuple[str, ...], str]:
    """Return the conditions of the sinks by their place in the flow."""
    return {
        ("sinks", name, "where"): sink.where
        for name, sink in sinks.items()
        if sink.where is not None
    }
