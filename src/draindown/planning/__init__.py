"""Plan what a run would do, and what maintenance would do. Without Spark."""
