"""Measurements of draindown beside other ways to the same table: `python -m benchmarks.bench
--help`.
"""
