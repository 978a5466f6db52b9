"""One batch of a landing flow, from its files to its ledger row."""
