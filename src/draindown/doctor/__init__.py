"""Whether all that a flow keeps agrees: checkpoint, intake, target, ledger, quarantine, lease, publication, set-up."""
