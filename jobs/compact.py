"""spark-submit main of the compact step: `compact.py --request <encoded request>`."""

from draindown.spark.maintenance import compact
from draindown.spark.runner import job_main

if __name__ == "__main__":
    job_main("compact", lambda request, spark, _stop: compact(request, spark))
