"""Readers: load the files of one batch as rows, with the place of each record."""
