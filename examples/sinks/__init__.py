"""Pipelines whose batches also go to topics and to Postgres, and an oracle of what is there then."""
