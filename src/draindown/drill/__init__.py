"""Drills: inject faults into scratch copies of a user's pipeline, and verify that no row is lost or
doubled.

Nothing here imports Spark: drivers and commands run as separate processes, which can be killed.
"""
