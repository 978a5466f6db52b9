"""Derived flows over several tables and over tables of other pipelines, as files say it: form, and
what is refused.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from jsonschema import Draft202012Validator

from draindown.airflow.wording import doc_of
from draindown.base.errors import TerminalError
from draindown.config import loader
from draindown.config.derived import DerivedFlow
from draindown.config.json_schema import schema
from draindown.config.loader import BrokenPipeline
from draindown.config.models import PipelineSpec
from draindown.config.neighbours import Reader
from draindown.runs.request import Request


def landing(**columns: str) -> dict[str, Any]:
    key = next(iter(columns))
    columns = {key: f"{columns.pop(key)} not null", **columns}
    return {
        "source": {"files": "landing/*.json", "format": "json"},
        "columns": columns,
        "target": {"keys": [key], "sequence_by": [key]},
    }


ORDERS = landing(order_id="bigint", customer_id="bigint", amount="int", speed="double")
CUSTOMERS = landing(id="bigint", name="string")
MAPPED = {"table": "customers", "keys": {"customer_id": "id"}}
PER = {
    "keys": ["customer_id"],
    "sql": "select customer_id from orders o join customers c on o.customer_id = c.id",
}
WINDOW = {"time": "at", "size": "1 hour", "measures": {"n": "count(*)"}}


def derived(*tables: Any, **more: Any) -> dict[str, Any]:
    return {"source": {"tables": list(tables)}, "query": PER, **more}


def project(home: Path, **pipelines: Any) -> Path:
    """Write pipeline files. A value: its flows, or text as it is."""
    where = home / "dags" / "pipelines"
    where.mkdir(parents=True, exist_ok=True)
    for name, flows in pipelines.items():
        said = (
            {"pipeline": name, "lake": "lake", "flows": flows} if isinstance(flows, dict) else flows
        )
        (where / f"{name}.yaml").write_text(
            said if isinstance(said, str) else yaml.safe_dump(said, sort_keys=False)
        )
    return where


def loaded(home: Path, pipeline: str, **pipelines: Any) -> PipelineSpec:
    return loader.load_alone(project(home, **pipelines) / f"{pipeline}.yaml", home, {})


def refused(home: Path, pipeline: str, **pipelines: Any) -> list[str]:
    """The problems of a file, each as `line:column: path: message`."""
    with pytest.raises(TerminalError) as error:
        loaded(home, pipeline, **pipelines)
    assert error.value.code == "invalid-pipeline"
    file = home / "dags" / "pipelines" / f"{pipeline}.yaml"
    lines = error.value.found.splitlines()
    assert all(line.startswith(f"{file}:") for line in lines)
    return [line.removeprefix(f"{file}:") for line in lines]


def test_several_tables_are_named_and_may_rename_the_keys(tmp_path: Path) -> None:
    spec = loaded(
        tmp_path, "p", p={"orders": ORDERS, "customers": CUSTOMERS, "d": derived("orders", MAPPED)}
    )
    flow = spec.flows["d"]
    assert isinstance(flow, DerivedFlow) and flow.upstream == ("orders", "customers")
    assert [(one.table, one.written_by, one.column("customer_id")) for one in flow.source.read] == [
        ("orders", "orders", "customer_id"),
        ("customers", "customers", "id"),
    ]
    assert spec.graph.order == ["orders", "customers", "d"]
    assert [(one.flow, one.columns) for one in spec.readers("customers")] == [("d", ("id",))]
    assert "table `orders`, table `customers`" in doc_of(spec)


@pytest.mark.parametrize(
    ("flow", "path", "part"),
    [
        (derived(), "d.source.table", "is needed, or `tables`"),
        (
            {"source": {"table": "orders", "tables": ["customers"]}, "query": PER},
            "d.source.table",
            "but not both",
        ),
        (derived("orders", "orders"), "d.source.tables[1]", "twice"),
        (derived("orders", "d"), "d.source.tables[1]", "reads its own table"),
        (
            derived("orders", MAPPED | {"kees": {}}),
            "d.source.tables[1].kees",
            "did you mean 'keys'?",
        ),
        (
            derived("orders", MAPPED | {"keys": {"customer": "id"}}),
            "d.source.tables[1].keys.customer",
            "is no key",
        ),
        (
            derived("orders", MAPPED | {"keys": {"customer_id": "i"}}),
            "d.source.tables[1].keys.customer_id",
            "did you mean",
        ),
        (
            {
                "source": {"tables": [MAPPED | {"keys": {"a": "id", "b": "id"}}]},
                "query": PER | {"keys": ["a", "b"]},
            },
            "d.source.tables[0].keys",
            "column 'id' would be two keys",
        ),
        (
            derived("orders", "customers"),
            "d.query.keys[0]",
            "'customer_id' is no column of table customers",
        ),
        (
            derived(MAPPED, {"table": "orders", "keys": {"customer_id": "speed"}}),
            "d.source.tables[1].keys",
            "exactly",
        ),
        (
            {"source": {"tables": ["orders", "customers"]}, "window": WINDOW},
            "d.source.tables",
            "reads one table",
        ),
        (
            {"source": {"tables": ["orders"], "pipeline": "q"}, "query": PER},
            "d.source.pipeline",
            "a lake has one table of a name",
        ),
        (
            derived("orders", MAPPED | {"pipeline": "q"}),
            "d.source.tables[1].pipeline",
            "a lake has one table of a name",
        ),
        (derived("Orders"), "d.source.tables[0]", "lower-case"),
        (derived(7), "d.source.tables[0]", "must be"),
    ],
)
def test_what_cant_work_is_named_with_its_line(
    tmp_path: Path, flow: dict[str, Any], path: str, part: str
) -> None:
    problems = refused(tmp_path, "p", p={"orders": ORDERS, "customers": CUSTOMERS, "d": flow})
    found = [one for one in problems if f": flows.{path}" in one]
    assert len(found) == 1 and part in found[0], problems
    line, column = map(int, found[0].split(":")[:2])
    assert line > 30 and column >= 5


def test_only_what_changes_the_result_is_another_derivation(tmp_path: Path) -> None:
    def digest(*tables: Any) -> str:
        found = derived(*tables) | ({} if len(tables) > 1 else {"query": ONE})
        flow = loaded(
            tmp_path, "p", p={"orders": ORDERS, "customers": CUSTOMERS, "d": found}
        ).flows["d"]
        assert isinstance(flow, DerivedFlow)
        return flow.source.derivation

    assert digest("orders", MAPPED) == digest(MAPPED, {"table": "orders"})
    other = {"table": "orders", "keys": {"customer_id": "order_id"}}
    assert (
        len({digest("orders"), digest("orders", MAPPED), digest(other, MAPPED), digest(other)}) == 4
    )
    alone = loaded(
        tmp_path, "p", p={"orders": ORDERS, "d": {"source": {"table": "orders"}, "query": ONE}}
    ).flows["d"]
    assert isinstance(alone, DerivedFlow) and alone.source.derivation == digest("orders")


@pytest.mark.parametrize(
    ("flow", "valid"),
    [
        (derived("orders", "customers"), True),
        (derived("orders", MAPPED), True),
        ({"source": {"table": "orders"}, "window": WINDOW}, True),
        ({"source": {"table": "orders", "pipeline": "crm"}, "window": WINDOW}, False),
        (derived("orders", {"keys": {}}), False),
        (derived(["orders"]), False),
    ],
)
def test_editors_know_several_tables(flow: dict[str, Any], valid: bool) -> None:
    document = {"pipeline": "p", "lake": "lake", "flows": {"f": flow}}
    assert Draft202012Validator(schema()).is_valid(document) is valid


ONE = {"keys": ["customer_id"], "sql": "select customer_id from orders"}
SHOP = {"orders": ORDERS, "d": derived("orders", MAPPED)}


def test_a_table_of_another_pipeline_is_written_by_a_flow_of_its_file(tmp_path: Path) -> None:
    crm = {"people": CUSTOMERS | {"target": CUSTOMERS["target"] | {"table": "customers"}}}
    spec = loaded(tmp_path, "shop", shop=SHOP, crm=crm)
    flow = spec.flows["d"]
    assert isinstance(flow, DerivedFlow) and [one.written_by for one in flow.source.read] == [
        "orders",
        "people",
    ]
    assert flow.upstream == ("orders", "customers")
    assert spec.graph.upstream("d") == ("orders",), "no edge within the DAG"
    assert "table `crm/customers`" in doc_of(spec)
    writer = loader.load_alone(tmp_path / "dags" / "pipelines" / "crm.yaml", tmp_path, {})
    assert writer.readers("customers") == [
        Reader(pipeline="shop", flow="d", table="customers", columns=("id",))
    ]


def test_a_flow_may_read_tables_of_other_pipelines_alone(tmp_path: Path) -> None:
    only = {
        "d": {
            "source": {"table": "orders"},
            "query": {"keys": ["order_id"], "sql": "select order_id from orders"},
        }
    }
    spec = loaded(tmp_path, "p", p=only, shop={"orders": ORDERS})
    assert spec.is_derived("d") and spec.graph.order == ["d"] and spec.graph.upstream("d") == ()


def test_a_request_carries_who_writes_and_who_reads(tmp_path: Path) -> None:
    spec = loaded(tmp_path, "shop", shop=SHOP, crm={"customers": CUSTOMERS})
    request = Request.decode(
        Request(spec=spec, flow="d", step="drain", run_id="r", root="/p").encode()
    )
    assert request.neighbours == spec.neighbours
    assert isinstance(request.declared, DerivedFlow)
    assert [one.written_by for one in request.declared.source.read] == ["orders", "customers"]
    writer = loader.load_alone(tmp_path / "dags" / "pipelines" / "crm.yaml", tmp_path, {})
    request = Request.decode(
        Request(spec=writer, flow="customers", step="drain", run_id="r", root="/p").encode()
    )
    assert [str(one) for one in request.spec.readers("customers")] == ["shop/d"]


@pytest.mark.parametrize(
    ("others", "part"),
    [
        ({}, "no flow of this project writes table 'customers'"),
        ({"crm": {"customer": CUSTOMERS}}, "did you mean 'customer'?"),
        ({"crm": {"people": CUSTOMERS}}, "no flow of this project writes table 'customers'"),
        (
            {"crm": {"customers": landing(code="bigint")}},
            "'id' is no column of table customers",
        ),
        (
            {"crm": {"customers": landing(id="double")}},
            "'id' is double: a key needs a type that compares exactly",
        ),
        (
            {"crm": "pipeline: crm\nlake: lake\nflows: {customers: 1}"},
            "pipeline 'crm' may, but its file can't be loaded, see: draindown validate",
        ),
        ({"crm": "pipeline: crm\nlake: [lake"}, "pipeline 'crm' may, but its file can't be loaded"),
    ],
)
def test_a_table_that_cant_be_found_is_named_with_file_and_line(
    tmp_path: Path, others: Any, part: str
) -> None:
    (problem,) = refused(tmp_path, "shop", shop=SHOP, **others)
    place, _, message = problem.partition(": flows.d.source.tables[1].table: ")
    text = (tmp_path / "dags" / "pipelines" / "shop.yaml").read_text().splitlines()
    assert part in message and "table: customers" in text[int(place.split(":")[0]) - 1]


def test_a_table_of_another_lake_is_refused(tmp_path: Path) -> None:
    where = project(tmp_path, shop=SHOP, crm={"customers": CUSTOMERS})
    other = (where / "crm.yaml").read_text().replace("lake: lake", "lake: elsewhere")
    (problem,) = refused(tmp_path, "shop", crm=other)
    assert "pipeline 'crm' writes table 'customers' to another lake, elsewhere" in problem


def test_a_cycle_through_pipelines_is_refused_where_it_crosses_them(tmp_path: Path) -> None:
    of_a, of_b, of_c = ({"keys": ["id"], "sql": f"select id from {table}"} for table in "abc")
    first = {"c": CUSTOMERS, "a": {"source": {"table": "b"}, "query": of_b}}
    second = {"b": {"source": {"table": "a"}, "query": of_a}}
    assert "depends on itself: p/a → q/b → p/a" in refused(tmp_path, "p", p=first, q=second)[0]
    assert "depends on itself: q/b → p/a → q/b" in refused(tmp_path, "q")[0]
    straight = {"b": {"source": {"table": "c"}, "query": of_c}}
    assert loaded(tmp_path, "p", p=first, q=straight).neighbours.readers[0].flow == "b", (
        "pipelines may read each other"
    )


def test_a_broken_file_stops_what_reads_it_and_no_other(tmp_path: Path) -> None:
    where = project(
        tmp_path,
        shop=SHOP,
        crm="pipeline: crm\nflows: [",
        other={"orders2": ORDERS},
        far={
            "e": {
                "source": {"table": "d"},
                "query": {"keys": ["customer_id"], "sql": "select customer_id from d"},
            }
        },
    )
    found = {
        path.pipeline if isinstance(path, PipelineSpec) else path.name: path
        for path in loader.load_all(where, {})
    }
    assert {name for name, one in found.items() if isinstance(one, BrokenPipeline)} == {
        "shop",
        "crm",
    }
    other = found["other"]
    assert isinstance(other, PipelineSpec) and other.neighbours.unreadable == ("crm",)
