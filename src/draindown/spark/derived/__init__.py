"""Derived flows: which keys a change concerns, the query over their rows, and the difference from
the table.
"""
