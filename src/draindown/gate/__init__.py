"""The gate between a table and its readers: published version, waivers, suite, the page of a
check.
"""
