"""draindown inside Airflow: one DAG per pipeline file, one operator per step, one place that maps
exit codes.
"""
