"""spark-submit main: drain one flow's backlog. See draindown.spark.drain."""

from draindown.spark.drain import drain
from draindown.spark.runner import job_main

if __name__ == "__main__":
    job_main("drain", lambda request, spark, stop: drain(request, spark, stop=stop))
