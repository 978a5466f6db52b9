"""Everything that needs a Spark session: reading, parsing, merging, checking, compacting."""
