"""Proof that a derived table equals its query: recomputed from the source at the pinned version by
another engine.
"""
