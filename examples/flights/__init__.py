"""A million real events to try draindown on, and an oracle that knows what must become of them."""
