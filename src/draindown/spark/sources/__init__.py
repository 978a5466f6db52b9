"""Readers: the files of one batch as rows with the place of every record."""
