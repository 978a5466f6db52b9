"""The right to drain a flow: one driver at a time, by kernel locks or by numbered epochs in a shared directory."""
