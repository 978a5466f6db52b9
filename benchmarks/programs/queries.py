"""Ask several Delta tables the same questions, turn by turn; prints milliseconds as JSON:
{question: {table: median}}.

spark-submit --conf ... benchmarks/programs/queries.py --repeat 15 grown=PATH fresh=PATH
"""

from __future__ import annotations

import argparse
import json
import statistics
import time

from pyspark.sql import SparkSession

QUESTIONS = {
    "sum by status": "select status, count(*), sum(amount) from {table} group by status",
    "one key": "select * from {table} where order_id = 17",
    "newest days": "select count(*), max(note) from {table} where event_date >= date '2026-03-01'",
    "biggest customers": "select customer, sum(amount) s from {table} group by customer order by s desc limit 10",
}


def main() -> None:
    """Warm up once, then measure."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--repeat", type=int, default=15)
    parser.add_argument("tables", nargs="+", help="name=path")
    asked = parser.parse_args()
    spark = SparkSession.builder.appName("queries").getOrCreate()
    tables = dict(one.split("=", 1) for one in asked.tables)
    spent: dict[str, dict[str, list[float]]] = {q: {name: [] for name in tables} for q in QUESTIONS}
    for number in range(asked.repeat + 1):
        turn = list(tables.items())[
            :: -1 if number % 2 else 1
        ]  # who is asked first finds colder code
        for question, text in QUESTIONS.items():
            for name, path in turn:
                started = time.monotonic()
                spark.sql(text.format(table=f"delta.`{path}`")).collect()
                spent[question][name].append((time.monotonic() - started) * 1000)
    print(
        json.dumps(
            {
                q: {n: round(statistics.median(t[1:]), 1) for n, t in by.items()}
                for q, by in spent.items()
            }
        )
    )


if __name__ == "__main__":
    main()
