"""Projects to look at and to run: each a directory that says what it shows."""
