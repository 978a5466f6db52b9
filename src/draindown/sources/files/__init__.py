"""Files as a source: list, inspect, pin in slices, park unreadable files."""
