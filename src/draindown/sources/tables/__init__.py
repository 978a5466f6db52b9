"""Tables that other flows write, as a source: a unit is a range of versions of a table. No
Spark.
"""
