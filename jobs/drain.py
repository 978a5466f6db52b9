"""spark-submit main of the drain step: `drain.py --request <encoded request>`."""

from draindown.spark.job.main import job_main
from draindown.spark.runs.dispatch import run_drain

if __name__ == "__main__":
    job_main("drain", lambda request, spark, stop: run_drain(request, spark, stop=stop))
