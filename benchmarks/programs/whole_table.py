"""Great Expectations over a whole Delta table, as its documentation has it; prints {position in the
suite: success}.

spark-submit --conf ... benchmarks/programs/whole_table.py --table PATH --suite
expectations/changes.json
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path

import great_expectations as gx
from great_expectations.expectations.expectation_configuration import ExpectationConfiguration
from pyspark.sql import SparkSession


def main() -> None:
    """Judge the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--table", required=True)
    parser.add_argument("--suite", type=Path, required=True)
    asked = parser.parse_args()
    spark = SparkSession.builder.appName("whole_table").getOrCreate()
    context = gx.get_context(mode="ephemeral")
    # persist=False: caching the whole table costs more than it brings
    asset = context.data_sources.add_spark("spark", persist=False).add_dataframe_asset("table")
    frame = spark.read.format("delta").load(asked.table)
    batch = asset.add_batch_definition_whole_dataframe("all").get_batch({"dataframe": frame})
    suite = gx.ExpectationSuite(name="suite")
    for at, one in enumerate(json.loads(asked.suite.read_text())["expectations"]):
        config = ExpectationConfiguration(type=one["type"], kwargs=one["kwargs"], meta={"at": at})
        suite.add_expectation(config.to_domain_obj())
    found = batch.validate(suite, result_format="SUMMARY").results
    judged = [(one.expectation_config, bool(one.success)) for one in found]
    print(
        json.dumps(
            {str((config.meta or {})["at"]): success for config, success in judged if config}
        )
    )


if __name__ == "__main__":
    main()
