"""Set-up of Spark: the pinned jars, the class-data archive."""
