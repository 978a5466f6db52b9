"""What lies under the lake: paths, JSON documents, Delta tables without Spark, transaction ids."""
