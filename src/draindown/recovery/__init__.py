"""Recovery: replay, reset, rebuild with its swap, and fencing of an earlier driver."""
