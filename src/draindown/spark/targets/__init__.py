"""The target table: deduplication of changes per key, file skipping, MERGE and append."""
