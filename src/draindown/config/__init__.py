"""The pipeline file: models, types, expressions, schedule, YAML with positions, JSON Schema,
project root, scaffold.
"""
