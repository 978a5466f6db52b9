"""Transforms of the pipelines: columns only, one module per pipeline."""
