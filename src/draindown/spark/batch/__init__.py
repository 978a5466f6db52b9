"""Process one batch of a flow, from its input to its ledger row."""
