"""The target table: resolution of changes per key, pruning, MERGE and append."""
