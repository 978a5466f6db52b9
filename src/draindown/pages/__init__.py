"""Pages made from the lake: HTML that needs neither Airflow nor Spark."""
