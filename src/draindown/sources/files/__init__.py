"""Files as a source: list, inspect, take in, cut into batches, park unreadable files."""
