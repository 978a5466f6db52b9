"""Why a row is in a table, or is not: the records and source rows behind it. No JVM."""
