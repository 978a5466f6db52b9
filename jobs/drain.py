"""spark-submit main of the drain step: `drain.py --request <encoded request>`."""

from draindown.spark.modes import run_drain
from draindown.spark.runner import job_main

if __name__ == "__main__":
    job_main("drain", lambda request, spark, stop: run_drain(request, spark, stop=stop))
