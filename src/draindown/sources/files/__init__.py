"""Files as a source: list, inspect, take in, cut into batches, keep apart what can't be read."""
