"""The ledger: one row per batch, and the table that holds the rows."""
