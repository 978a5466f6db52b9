"""A million real events to try draindown on, and an oracle that computes the correct result independently."""
