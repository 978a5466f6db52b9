"""What a run would do, worked out without Spark: the plan of a run, the plan of maintenance."""
