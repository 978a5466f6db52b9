"""Storage of the lake: paths, JSON documents, Delta tables without Spark, transaction ids."""
