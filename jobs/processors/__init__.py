"""Processors of the flows in dags/pipelines/."""
