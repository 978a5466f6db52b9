"""Incremental ETL for Airflow and Spark that on-call can trust."""

__version__ = "0.1.0"
