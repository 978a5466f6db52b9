"""Process one batch of a flow, from its files to its ledger row."""
