"""Set-up of Spark: fetch the pinned jars, build the class-data archive."""
