"""spark-submit main of the compact step: `compact.py --request <encoded request>`."""

from draindown.spark.job.main import job_main
from draindown.spark.runs.compaction import compact

if __name__ == "__main__":
    job_main("compact", lambda request, spark, _stop: compact(request, spark))
