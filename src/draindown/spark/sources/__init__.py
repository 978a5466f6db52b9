"""Readers: load the slice of one batch as records, with the place of each."""
