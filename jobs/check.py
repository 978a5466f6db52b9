"""spark-submit main of the check step: `check.py --request <encoded request>`."""

from draindown.spark.checks.check import check
from draindown.spark.job.main import job_main

if __name__ == "__main__":
    job_main("check", lambda request, spark, _stop: check(request, spark))
