"""Ways back: replay, reset, rebuild with its swap, fencing of an earlier driver."""
