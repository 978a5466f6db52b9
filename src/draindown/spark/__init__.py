"""All code that needs a Spark session: read, parse, merge, check, compact."""
