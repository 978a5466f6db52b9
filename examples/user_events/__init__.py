"""A topic of a shop's events, some of them broken, and an oracle that computes the correct table independently."""
