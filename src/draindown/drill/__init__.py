"""Drills: faults on scratch copies of a user's own pipeline, to see that nothing is lost and nothing doubled.

Nothing here loads Spark: drivers and commands are processes of their own, because that is what can be killed.
"""
